//! Nodes by hand, one value on each line, alone and below a launcher's process.
#![no_main]

mod shared;

const NAMES: [&str; 8] =
    ["NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE", "RANK", "WORLD_SIZE", "LOCAL_RANK"];

libfuzzer_sys::fuzz_target!(|text: &str| {
    let pairs: Vec<(&str, &str)> = NAMES.into_iter().zip(text.lines()).collect();
    shared::resolved(&pairs, None);
    shared::resolved(&pairs[..pairs.len().min(5)], None);
});

//! AWS Batch's multi-node variables, one value on each line; a missing line is a variable that is not set.
#![no_main]

mod shared;

const NAMES: [&str; 4] = [
    "AWS_BATCH_JOB_NUM_NODES",
    "AWS_BATCH_JOB_NODE_INDEX",
    "AWS_BATCH_JOB_MAIN_NODE_INDEX",
    "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",
];

libfuzzer_sys::fuzz_target!(|text: &str| {
    let pairs: Vec<(&str, &str)> = NAMES.into_iter().zip(text.lines()).collect();
    shared::resolved(&pairs, None);
});

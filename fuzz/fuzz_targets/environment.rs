//! Whole environments, one `NAME=value` on each line: every source at once.
#![no_main]

mod shared;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let pairs: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once('=')).collect();
    shared::resolved(&pairs, None);
});

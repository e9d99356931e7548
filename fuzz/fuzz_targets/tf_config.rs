//! TF_CONFIG, read and rewritten.
#![no_main]

mod shared;

libfuzzer_sys::fuzz_target!(|text: &str| shared::resolved(&[("TF_CONFIG", text)], None));

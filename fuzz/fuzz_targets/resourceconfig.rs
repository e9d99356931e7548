//! SageMaker's resourceconfig.json.
#![no_main]

mod shared;

libfuzzer_sys::fuzz_target!(|text: &str| shared::resolved(&[], Some(text)));

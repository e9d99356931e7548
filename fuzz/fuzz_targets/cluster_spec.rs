//! Vertex AI's CLUSTER_SPEC.
#![no_main]

mod shared;

libfuzzer_sys::fuzz_target!(|text: &str| shared::resolved(&[("CLUSTER_SPEC", text)], None));

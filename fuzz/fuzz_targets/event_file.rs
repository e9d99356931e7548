//! TensorBoard's event files: framing, then the protocol buffer in each record. The input is also read as the data of a record,
//! because the fuzzer seldom finds a right checksum. The size of the pieces does not change the records.
#![no_main]

use trainit_rules::metric::files::event::scalars;
use trainit_rules::metric::files::tfrecord::{Record, Records};

fn read(file: &[u8], size: usize) -> Vec<Option<Vec<u8>>> {
    let mut records = Records::default();
    let mut all = Vec::new();
    for piece in file.chunks(size) {
        records.feed(piece, |record| {
            all.push(match record {
                Record::Whole { data, .. } => Some(data.to_vec()),
                Record::Damaged | Record::Lost => None,
            })
        });
    }
    all
}

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    let whole = read(file, file.len().max(1));
    assert_eq!(whole, read(file, 7));
    for data in whole.iter().flatten().map(Vec::as_slice).chain([file]) {
        for scalar in scalars(data).unwrap_or_default() {
            assert!(!scalar.tag.is_empty());
        }
    }
});

//! The file of records that `--metric-file` follows: lines, then measurements in each.
#![no_main]

use trainit::rules::metric::records::{Lines, read};

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    let mut lines = Lines::default();
    let mut all = Vec::new();
    for piece in file.chunks(11) {
        lines.feed(piece, |line| all.push(line.to_vec()));
    }
    lines.finish(|line| all.push(line.to_vec()));
    for line in all {
        assert!(!line.is_empty() && !line.contains(&b'\n'));
        for found in read(&line).0 {
            assert!(found.tag.is_some_and(|tag| !tag.is_empty()));
        }
    }
});

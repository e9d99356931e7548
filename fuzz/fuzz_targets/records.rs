//! The file that `--metric-file` follows: lines, then measurements in each (JSON objects, tables, text).
#![no_main]

use trainit_rules::metric::files::records::{Lines, Reader};

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    for step in [None, Some("epoch")] {
        let (mut lines, mut all) = (Lines::default(), Vec::new());
        let mut reader = Reader::new("log".to_owned(), step, vec!["loss".to_owned()]);
        for piece in file.chunks(11) {
            lines.feed(piece, |line| all.push(line.to_vec()));
        }
        lines.finish(|line| all.push(line.to_vec()));
        let mut remarks = 0;
        // Twice, as for a rewritten file.
        for _ in 0..2 {
            for line in &all {
                assert!(!line.is_empty() && !line.contains(&b'\n') && !line.contains(&b'\r'));
                let (found, remarked) = reader.read(line);
                remarks += remarked.len();
                assert!(found.iter().all(|found| found.tag.as_ref().is_some_and(|tag| !tag.is_empty())));
            }
            reader.start_again();
        }
        assert!(remarks <= 20 && reader.counts().understood <= reader.counts().lines);
    }
});

//! Keys of a store: the key of a commit or an attempt is written back the same. Every data key contains its stamp, does not lead
//! outside, and has only parts that a file system accepts.
#![no_main]

use trainit_rules::store::manifest::{key as allowed, path};
use trainit_rules::store::names::{Attempt, CommitName, Stamp, data_key, stamp_of_data};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Some(name) = CommitName::from_key(text) {
        assert_eq!(name.key(), text);
    }
    if let Some(attempt) = Attempt::from_key(text) {
        assert_eq!(attempt.key(), text);
    }
    let (unit, file) = text.split_once(' ').unwrap_or((text, "file"));
    if path(unit).is_ok() && path(&format!("{unit}/{file}")).is_ok() && !unit.starts_with("node-") {
        let stamp = Stamp { attempt: Attempt { number: 7, tag: None }, seq: 3 };
        let key = data_key(unit, &stamp, &format!("{unit}/{file}"));
        assert_eq!(allowed(&key), Ok(()), "{key:?}");
        assert!(key.len() <= 1000 && key.split('/').all(|part| part.len() <= 200), "{key:?}");
        // A unit may look like a stamp; as the first part it does not count as one.
        if !unit.split('/').skip(1).any(|part| Stamp::parse(part).is_some()) {
            assert_eq!(stamp_of_data(&key), Some(stamp), "{key:?}");
        }
    }
});

//! A manifest with a name that matches it: an accepted manifest stays beneath the checkpoint directory, and reads back the
//! same.
#![no_main]

use trainit_rules::store::archive::runs;
use trainit_rules::store::manifest::{Manifest, WHOLE};
use trainit_rules::store::names::{Attempt, CommitName, Stamp};

fn stays_beneath(path: &str) {
    assert!(!path.is_empty() && !path.starts_with('/') && !path.contains('\0'), "{path:?}");
    assert!(path.split('/').all(|part| !matches!(part, "" | "." | "..") && part.len() <= 255), "{path:?}");
    assert_ne!(path.split('/').next(), Some(".trainit"));
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // A hostile store chooses the name as well, so it is made from the content.
    #[derive(serde::Deserialize)]
    struct Head {
        attempt: u64,
        seq: u64,
        step: Option<u64>,
    }
    let head: Option<Head> = serde_json::from_slice(bytes).ok();
    let (attempt, seq, step) = head.map_or((1, 1, None), |head| (head.attempt, head.seq, head.step));
    let stamp = Stamp { attempt: Attempt { number: attempt, tag: None }, seq };
    let name = CommitName::of(stamp.clone(), step, bytes);
    let Ok(manifest) = Manifest::read(&name, bytes) else { return };
    if manifest.unit != WHOLE {
        stays_beneath(&manifest.unit);
    }
    manifest
        .files
        .iter()
        .map(|f| &f.path)
        .chain(manifest.pointers.iter().map(|p| &p.path))
        .for_each(|p| stays_beneath(p));
    manifest.regular().for_each(|f| stays_beneath(&f.key));
    assert_eq!(manifest.files.iter().map(|f| f.size).sum::<u64>(), manifest.total_bytes);
    let archived: Vec<_> = manifest.regular().filter(|f| f.offset.is_some()).collect();
    let count = archived.len();
    assert_eq!(runs(archived).iter().map(Vec::len).sum::<usize>(), count);
    let again = manifest.bytes().expect("it is as short as before");
    assert_eq!(Manifest::read(&CommitName::of(stamp, step, &again), &again), Ok(manifest));
});

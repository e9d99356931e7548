//! A manifest whose name fits it: whatever is accepted stays beneath the checkpoint directory and reads back the same.
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
    // The name is the hostile store's to choose as well: take the one that the content asks for.
    #[derive(serde::Deserialize)]
    struct Asks {
        attempt: u64,
        seq: u64,
        step: Option<u64>,
    }
    let asks: Option<Asks> = serde_json::from_slice(bytes).ok();
    let (attempt, seq, step) = asks.map_or((1, 1, None), |a| (a.attempt, a.seq, a.step));
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
    let again = manifest.bytes().expect("what was short enough still is");
    assert_eq!(Manifest::read(&CommitName::of(stamp, step, &again), &again), Ok(manifest));
});

//! A directory of small files: every recogniser finds, judges and points without a panic, and what it points at stays
//! inside. A line `PATH CONTENT` is a file, `PATH -> TARGET` a link; the first byte picks the options.
#![no_main]

use std::collections::BTreeMap;

use trainit::rules::checkpoint::listing::parent_of;
use trainit::rules::checkpoint::{Entry, Kind, LAYOUTS, Listing, Options, Peek, Scan, recognise};

struct Memory(BTreeMap<String, Vec<u8>>);

impl Peek for Memory {
    fn read(&self, path: &str, from: u64, length: usize) -> Option<Vec<u8>> {
        let rest = self.0.get(path)?.get(usize::try_from(from).ok()?..).unwrap_or_default();
        Some(rest[..length.min(rest.len())].to_vec())
    }
}

fn entry(path: &str, kind: Kind, size: usize, time: i64) -> Entry {
    let path = path.to_owned();
    Entry { path, kind, size: size as u64, mtime_ns: time, ctime_ns: 0, inode: 1, device: 1, mode: 0o644, through: None }
}

fn plain(path: &str) -> bool {
    path.len() < 200
        && path.split('/').count() < 8
        && path.split('/').all(|p| !matches!(p, "" | "." | ".." | ".trainit"))
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let mut files = Memory(BTreeMap::new());
    let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
    for (number, line) in rest.split(|b| *b == b'\n').enumerate().take(40) {
        let at = line.iter().position(|b| *b == b' ').unwrap_or(line.len());
        let Ok(path) = std::str::from_utf8(&line[..at]) else { continue };
        // As a file system has it: no name is a file and a directory.
        let is_taken = entries.contains_key(path)
            || path
                .match_indices('/')
                .any(|(at, _)| entries.get(&path[..at]).is_some_and(|e| e.kind != Kind::Directory));
        if !plain(path) || is_taken {
            continue;
        }
        let content = line.get(at + 1..).unwrap_or_default().to_vec();
        let kind = match std::str::from_utf8(&content).ok().and_then(|text| text.strip_prefix("-> ")) {
            Some(target) => Kind::Symlink(target.to_owned()),
            None => Kind::File,
        };
        let mut parent = parent_of(path);
        while !parent.is_empty() {
            entries.entry(parent.to_owned()).or_insert_with(|| entry(parent, Kind::Directory, 0, 0));
            parent = parent_of(parent);
        }
        entries.insert(path.to_owned(), entry(path, kind, content.len(), number as i64 * 300_000_000));
        files.0.insert(path.to_owned(), content);
    }
    let listing = Listing::new(entries.into_values().collect());
    let options = Options {
        format: LAYOUTS.get(usize::from(*first & 31)).map(|l| l.name.to_owned()),
        marker: (first & 32 != 0).then(|| "DONE".to_owned()),
        step: None,
        world_size: (first & 64 != 0).then_some(2),
        begun_ns: 0,
        follow: false,
        left_out: (first & 128 != 0).then(|| "a".to_owned()),
        restless: Default::default(),
        has_other_nodes: first & 192 == 192,
    };
    let scan = Scan { listing: &listing, peek: &files, options: &options };
    let Some(found) = recognise(&scan) else { return };
    for candidate in &found.candidates {
        assert!(candidate.paths.iter().all(|p| listing.get(p).is_some()), "{candidate:?}");
        if let Err(why) = (found.layout.complete)(&scan, candidate, &found.memo) {
            assert!(!why.is_empty(), "{candidate:?}");
        }
        for pointer in (found.layout.pointers)(&scan, candidate) {
            assert!(plain(&pointer.path), "{pointer:?}");
        }
    }
});

//! A directory of small files: the engine divides, judges, plans and rolls back without a panic, each path belongs to one part,
//! and a commit takes only existing files. A line `PATH CONTENT` is a file, `PATH -> TARGET` a link; the first byte selects the
//! options.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use trainit_rules::checkpoint::listing::parent_of;
use trainit_rules::checkpoint::{
    Earlier, Entry, Exclusions, Facts, Format, Kind, Listing, Options, Peek, PlanFile, Scan, Tracker, Writer, explain,
    format_names, partition, resume,
};

struct Memory(BTreeMap<String, Vec<u8>>);

impl Peek for Memory {
    fn read(&self, path: &str, from: u64, length: usize) -> Option<Vec<u8>> {
        let rest = self.0.get(path)?.get(usize::try_from(from).ok()?..).unwrap_or_default();
        Some(rest[..length.min(rest.len())].to_vec())
    }
}

fn entry(path: &str, kind: Kind, size: usize, time: i64) -> Entry {
    let path = path.to_owned();
    Entry {
        path,
        kind,
        size: size as u64,
        mtime_ns: time,
        ctime_ns: 0,
        inode: 1,
        device: 1,
        mode: 0o644,
        through: None,
    }
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
        // As in a file system, no name is both a file and a directory.
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
    let format = format_names().nth(usize::from(*first & 31)).and_then(|name| Format::parse(name).ok());
    let options = Options {
        format: format.unwrap_or_default(),
        marker: (first & 32 != 0).then(|| "DONE".to_owned()),
        step: None,
        world_size: (first & 64 != 0).then_some(2),
        exclusions: Exclusions::default(),
        keep_saves: (first & 128 != 0).then_some(1),
        follow: false,
    };
    let scan = Scan { listing: &listing, peek: &files, options: &options };
    let open = BTreeSet::new();
    let facts = |seconds: u64, writer: Writer| Facts {
        now: Duration::from_secs(seconds),
        scan,
        open: &open,
        heartbeat_step: None,
        writer,
        died_ns: None,
        settle: Duration::from_secs(2),
    };
    let mut tracker = Tracker::begin(Duration::ZERO, &Listing::default(), &files, None, Earlier::default());
    tracker.look(&facts(1, Writer::Running));
    let found = partition(&scan, tracker.history());
    let units = || found.roots.iter().flat_map(|root| &root.units);
    let owned = || units().flat_map(|unit| &unit.members).chain(&found.rest).map(|entry| &entry.path);
    assert_eq!(owned().count(), owned().collect::<BTreeSet<_>>().len(), "each path belongs to one part");
    if let Some(plan) = tracker.look(&facts(100, Writer::Finished)).plan {
        let is_there =
            |file: &PlanFile| matches!(file, PlanFile::Local { entry, .. } if listing.get(&entry.path).is_some());
        assert!(plan.files.iter().all(is_there), "{plan:?}");
        tracker.committed(&plan);
        assert!(tracker.look(&facts(101, Writer::Finished)).plan.is_none(), "nothing is new after a commit");
    }
    let _ = resume(&scan, &tracker);
    for entry in listing.entries() {
        let _ = explain(&facts(102, Writer::Running), &tracker, &entry.path);
    }
    let back = tracker.after_death(&facts(103, Writer::Killed));
    assert!(back.to_torn.iter().all(|(path, why)| listing.get(path).is_some() && !why.is_empty()), "{back:?}");
});

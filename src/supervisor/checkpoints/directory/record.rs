//! `.trainit/committed.json` in the checkpoint directory: the last commit of this directory, with the stat(2) data of its
//! files.
//! At a start it shows whether the directory or the store is newer; no clocks are compared. Each node has its own file,
//! because nodes may share a directory.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::edge::fs::rooted_dir::RootedDir;
use crate::rules::checkpoint::listing::OWN;
use crate::rules::checkpoint::{Beside, Committed, Entry, Kind, Listing, Options};
use crate::rules::store::address::Address;
use crate::rules::store::names::{Attempt, Stamp};
use crate::supervisor::checkpoints::directory::disk::RECORD_LIMIT;

const RECORD: &str = "committed";
/// Exists while a restore installs files.
const RESTORING: &str = ".trainit/restoring";

/// The last commit of a directory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    /// The attempt that used the directory last.
    pub(crate) attempt: Option<Attempt>,
    /// The commit; `None`: no commit.
    pub(crate) stamp: Option<Stamp>,
    pub(crate) hash: Option<String>,
    /// Its parts, and its files with their entries in the directory.
    pub(crate) committed: Committed,
    /// See [`Tracker::beside`](crate::rules::checkpoint::Tracker::beside).
    pub(crate) beside: Beside,
    /// Whole files of a save that a killed trainer left half finished.
    pub(crate) unproven: Beside,
}

/// Whether a file of the commit was deleted and no file has come since: then the commit is newer than the directory.
pub(crate) fn lacks_the_newest(committed: &Committed, before: &Beside, listing: &Listing, options: &Options) -> bool {
    let is_gone = |entry: &Entry| entry.kind == Kind::File && listing.file(&entry.path).is_none();
    let is_excluded = |file: &Entry| options.exclusions.decide(&file.path).is_some();
    let is_old = |file: &Entry| before.get(&file.path) == Some(&file.signature()) || is_excluded(file);
    committed.entries.values().any(is_gone) && listing.files().all(is_old)
}

#[derive(Serialize, Deserialize)]
struct Text {
    store: String,
    attempt: Option<String>,
    commit: Option<String>,
    #[serde(default)]
    hash: Option<String>,
    committed: Committed,
    #[serde(default)]
    beside: Beside,
    #[serde(default)]
    unproven: Beside,
}

/// The path of a node's record, relative to the checkpoint directory.
pub(crate) fn path(node: u32) -> String {
    if node == 0 { format!("{OWN}/{RECORD}.json") } else { format!("{OWN}/{RECORD}-{node:05}.json") }
}

/// The records of all nodes.
pub(crate) fn written(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let Ok(dir) = RootedDir::open(dir) else { return BTreeMap::new() };
    let names = dir.names(OWN).unwrap_or_default().into_iter().filter(|name| name.starts_with(RECORD));
    let paths = names.map(|name| format!("{OWN}/{name}"));
    paths.map(|path| (path.clone(), dir.read(&path, RECORD_LIMIT).unwrap_or_default())).collect()
}

fn store_text(store: Option<&Address>) -> String {
    store.map_or(String::new(), Address::to_string)
}

/// Reads the record, if it is of this store (`None`: no store). The device number of a file changes when its file system is
/// mounted again; a file of which nothing else changed gets its entry from the listing.
pub(crate) fn read(dir: &RootedDir, store: Option<&Address>, node: u32, listing: &Listing) -> Option<Record> {
    let text = dir.read(&path(node), RECORD_LIMIT).ok()?;
    let text: Text = serde_json::from_slice(&text).ok().filter(|text: &Text| text.store == store_text(store))?;
    let mut committed = text.committed;
    for (path, then) in &mut committed.entries {
        if let Some(now) = listing.get(path).filter(|now| now.same_bytes(&Entry { device: now.device, ..then.clone() }))
        {
            then.clone_from(now);
        }
    }
    Some(Record {
        attempt: text.attempt.as_deref().and_then(Attempt::parse),
        stamp: text.commit.as_deref().and_then(Stamp::parse),
        hash: text.hash,
        committed,
        beside: text.beside,
        unproven: text.unproven,
    })
}

/// Errors: as open(2), write(2), rename(2).
pub(crate) fn write(dir: &RootedDir, store: Option<&Address>, node: u32, record: Record) -> io::Result<()> {
    let text = Text {
        store: store_text(store),
        attempt: record.attempt.as_ref().map(Attempt::to_string),
        commit: record.stamp.as_ref().map(Stamp::to_string),
        hash: record.hash,
        committed: record.committed,
        beside: record.beside,
        unproven: record.unproven,
    };
    dir.replace(&path(node), &serde_json::to_vec(&text)?, 0o644)
}

/// Removes the record, and marks that the directory may mix two commits. Errors: as open(2), unlink(2).
pub(crate) fn begin_restore(dir: &RootedDir, node: u32) -> io::Result<()> {
    dir.replace(RESTORING, b"", 0o644)?;
    dir.remove_file(&path(node))
}

/// The directory is complete again. Errors: as unlink(2).
pub(crate) fn end_restore(dir: &RootedDir) -> io::Result<()> {
    dir.remove_file(RESTORING)
}

/// Whether a restore was interrupted or is running.
pub(crate) fn is_half_restored(dir: &RootedDir) -> bool {
    dir.look(RESTORING).is_ok_and(|mark| mark.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::fs::walk::walk;

    #[test]
    fn a_record_is_read_for_its_own_store_even_if_the_device_number_changed() {
        let place = tempfile::tempdir().expect("temporary directory");
        std::fs::write(place.path().join("w.bin"), "weights").expect("writes");
        std::os::unix::fs::symlink("w.bin", place.path().join("last")).expect("links");
        let (dir, listing) = (RootedDir::create(place.path()).expect("opens"), walk(place.path()).expect("walks"));
        let moved = |entry: &Entry| (entry.path.clone(), Entry { device: entry.device + 1, ..entry.clone() });
        let committed = Committed { entries: listing.entries().iter().map(moved).collect(), ..Committed::default() };
        let attempt = Attempt { number: 3, tag: None };
        let stamp = Some(Stamp { attempt: attempt.clone(), seq: 9 });
        let store = Address::Directory("/store".into());
        write(
            &dir,
            Some(&store),
            0,
            Record { attempt: Some(attempt), stamp: stamp.clone(), committed, ..Record::default() },
        )
        .expect("writes");
        let back = read(&dir, Some(&store), 0, &listing).expect("is there");
        assert_eq!(back.stamp, stamp);
        assert!(back.committed.entries.values().eq(listing.entries()), "{:?}", back.committed.entries);
        assert!(read(&dir, None, 0, &listing).is_none() && read(&dir, Some(&store), 1, &listing).is_none());
    }
}

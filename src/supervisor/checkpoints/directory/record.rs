//! `.trainit/committed.json` in the checkpoint directory: the last commit of this directory, with the stat(2) data of its files.
//! At a start it decides whether the directory or the store is newer; no clocks are compared. Each node has its own file,
//! because nodes may share a directory.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::edge::fs::rooted_dir::Beneath;
use crate::rules::checkpoint::{Committed, Entry, Kind, Listing};
use crate::rules::store::address::Address;
use crate::rules::store::names::{Attempt, OWN, Stamp};
use crate::supervisor::checkpoints::directory::disk::RECORD_LIMIT;

const RECORD: &str = "committed";
/// Is there while a restore puts files in place.
const RESTORING: &str = ".trainit/restoring";

/// What a directory took part in last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    /// The attempt that used the directory last.
    pub(crate) attempt: Option<Attempt>,
    /// The commit; `None`: there was none.
    pub(crate) stamp: Option<Stamp>,
    /// The hash in the commit's name.
    pub(crate) hash: Option<String>,
    /// Its parts, and its files as they are here.
    pub(crate) committed: Committed,
    /// What else lay beside them then.
    pub(crate) beside: Beside,
}

/// Files by path, as far as stat tells one from another: size, modification time, inode.
pub(crate) type Beside = BTreeMap<String, (u64, i64, u64)>;

pub(crate) fn beside(listing: &Listing) -> Beside {
    listing.files().map(|file| (file.path.clone(), signature(file))).collect()
}

fn signature(file: &Entry) -> (u64, i64, u64) {
    (file.size, file.mtime_ns, file.inode)
}

/// Whether something of the commit is gone from the directory, and every file that is there was there when the commit was
/// made: then the commit is newer than what is left.
pub(crate) fn lacks_the_newest(committed: &Committed, before: &Beside, listing: &Listing) -> bool {
    let is_gone = |entry: &Entry| entry.kind == Kind::File && listing.file(&entry.path).is_none();
    let is_old = |file: &Entry| before.get(&file.path) == Some(&signature(file));
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
}

/// Where a node writes it, relative to the checkpoint directory.
pub(crate) fn path(node: u32) -> String {
    if node == 0 { format!("{OWN}/{RECORD}.json") } else { format!("{OWN}/{RECORD}-{node:05}.json") }
}

/// What nodes have written down of the directory. Each run writes anew when it has restored.
pub(crate) fn written(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let Ok(dir) = Beneath::open(dir) else { return BTreeMap::new() };
    let names = dir.names(OWN).unwrap_or_default().into_iter().filter(|name| name.starts_with(RECORD));
    let paths = names.map(|name| format!("{OWN}/{name}"));
    paths.map(|path| (path.clone(), dir.read(&path, RECORD_LIMIT).unwrap_or_default())).collect()
}

fn store_text(store: Option<&Address>) -> String {
    store.map_or(String::new(), Address::to_string)
}

/// The record for this store, which is `None` for a run without one; nothing where there is none, or one of another store.
/// Where only the number of a file's device changed, as it does where a file system is mounted again, the file is as the
/// listing has it now.
pub(crate) fn read(dir: &Beneath, store: Option<&Address>, node: u32, listing: &Listing) -> Option<Record> {
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
    })
}

/// Writes it. Errors: as open(2), write(2), rename(2).
pub(crate) fn write(dir: &Beneath, store: Option<&Address>, node: u32, record: Record) -> io::Result<()> {
    let text = Text {
        store: store_text(store),
        attempt: record.attempt.as_ref().map(Attempt::to_string),
        commit: record.stamp.as_ref().map(Stamp::to_string),
        hash: record.hash,
        committed: record.committed,
        beside: record.beside,
    };
    dir.replace(&path(node), &serde_json::to_vec(&text)?, 0o644)
}

/// Removes it, and writes down that the directory may be half of one commit and half of another until there is one again.
/// Errors: as open(2), unlink(2).
pub(crate) fn begin_restore(dir: &Beneath, node: u32) -> io::Result<()> {
    dir.replace(RESTORING, b"", 0o644)?;
    dir.remove_file(&path(node))
}

/// The directory is complete again. Errors: as unlink(2).
pub(crate) fn end_restore(dir: &Beneath) -> io::Result<()> {
    dir.remove_file(RESTORING)
}

/// Whether a restore was cut short there, or is under way.
pub(crate) fn is_half_restored(dir: &Beneath) -> bool {
    dir.look(RESTORING).is_ok_and(|mark| mark.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::fs::walk::walk;

    #[test]
    fn a_record_reads_back_for_its_own_store_whatever_the_devices_number_is() {
        let place = tempfile::tempdir().expect("temporary directory");
        std::fs::write(place.path().join("w.bin"), "weights").expect("writes");
        std::os::unix::fs::symlink("w.bin", place.path().join("last")).expect("links");
        let (dir, listing) = (Beneath::create(place.path()).expect("opens"), walk(place.path()).expect("walks"));
        let moved = |entry: &Entry| (entry.path.clone(), Entry { device: entry.device + 1, ..entry.clone() });
        let committed = Committed { entries: listing.entries().iter().map(moved).collect(), ..Committed::default() };
        let attempt = Attempt { number: 3, tag: None };
        let stamp = Some(Stamp { attempt: attempt.clone(), seq: 9 });
        let store = Address::Directory("/store".into());
        write(
            &dir,
            Some(&store),
            0,
            Record { attempt: Some(attempt), stamp: stamp.clone(), hash: None, committed, beside: Beside::new() },
        )
        .expect("writes");
        let back = read(&dir, Some(&store), 0, &listing).expect("is there");
        assert_eq!(back.stamp, stamp);
        assert!(back.committed.entries.values().eq(listing.entries()), "{:?}", back.committed.entries);
        assert!(read(&dir, None, 0, &listing).is_none() && read(&dir, Some(&store), 1, &listing).is_none());
    }
}

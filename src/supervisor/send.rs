//! The files of one commit on their way out: held, read once, summed and sent. Which checkpoint, when, and whether it
//! becomes a commit is decided in `commit`.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::sync::Arc;

use super::mirror::{PINS, blocking};
use crate::edge::beneath::{Beneath, forget, read_at};
use crate::edge::store::{Store, StoreError};
use crate::rules::checkpoint::listing::parent_of;
use crate::rules::checkpoint::manifest::{CHUNK, Chunks, Item, ItemKind, hex};
use crate::rules::checkpoint::names::{Attempt, Stamp};
use crate::rules::checkpoint::{Entry, Kind};

/// Bytes read and sent at a time; divides [`CHUNK`].
const PART: u64 = 8 << 20;

/// Why a commit was given up.
pub(super) enum Stop {
    Changed(String),
    Fenced(Attempt),
    Failed(String),
    OutOfTime(String),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Stop {
        Stop::Failed(format!("{error}; the checkpoint is not committed, the one before it still is"))
    }
}

/// Gives every file a second name of ours, so that the framework may delete its own meanwhile. False where the file
/// system has no hard links or does not let us.
pub(super) async fn pin(dir: &Arc<Beneath>, stamp: &Stamp, entries: &[Entry]) -> io::Result<bool> {
    let (dir, stamp) = (Arc::clone(dir), stamp.clone());
    let files = entries.iter().filter(|e| e.kind == Kind::File);
    let paths: Vec<String> = files.map(|e| e.path.clone()).collect();
    blocking(move || {
        dir.remove_tree(PINS)?;
        for path in paths {
            match dir.link(&path, &format!("{PINS}/{stamp}/{path}")) {
                Ok(()) => {}
                // It vanished: the comparison that follows says so.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
                Err(_) => {
                    dir.remove_tree(PINS)?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    })
    .await
}

/// Fails unless what is held still is what the walk saw.
pub(super) async fn unchanged(
    dir: &Arc<Beneath>,
    entries: &[Entry],
    held: &dyn Fn(&str) -> String,
) -> Result<(), Stop> {
    let files = entries.iter().filter(|e| e.kind == Kind::File);
    let pairs: Vec<(Entry, String)> = files.map(|e| (e.clone(), held(&e.path))).collect();
    let dir = Arc::clone(dir);
    let changed = blocking(move || {
        for (entry, path) in pairs {
            if !dir.look(&path)?.is_some_and(|now| entry.same_bytes(&now)) {
                return Ok(Some(entry.path));
            }
        }
        Ok(None)
    });
    match changed.await {
        Ok(None) => Ok(()),
        Ok(Some(path)) => Err(Stop::Changed(format!("{path} changed while it was copied"))),
        Err(error) => Err(Stop::Failed(format!("cannot look at the checkpoint again: {error}"))),
    }
}

/// Checksums of a file as it goes by, in order.
#[derive(Default)]
struct Sums {
    whole: u32,
    chunk: u32,
    chunks: Vec<String>,
    seen: u64,
}

impl Sums {
    fn add(&mut self, bytes: &[u8]) {
        self.whole = crc32c::crc32c_append(self.whole, bytes);
        self.chunk = crc32c::crc32c_append(self.chunk, bytes);
        self.seen += bytes.len() as u64;
        if !bytes.is_empty() && self.seen.is_multiple_of(CHUNK) {
            self.chunks.push(hex(self.chunk));
            self.chunk = 0;
        }
    }

    fn finish(mut self) -> (String, Option<Chunks>) {
        if !self.seen.is_multiple_of(CHUNK) {
            self.chunks.push(hex(self.chunk));
        }
        (hex(self.whole), Some(Chunks { size: CHUNK, crc32c: self.chunks }))
    }
}

/// Copies one file to its key.
pub(super) async fn send(
    store: &Store,
    dir: &Arc<Beneath>,
    entry: &Entry,
    from: &str,
    key: String,
    told: &dyn Fn(u64),
) -> Result<Item, Stop> {
    let changed = |why: &str| Stop::Changed(format!("{} {why} while it was copied", entry.path));
    let (opened_in, path) = (Arc::clone(dir), from.to_owned());
    let file = blocking(move || opened_in.read_file(&path)).await;
    let mut file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(changed("vanished")),
        Err(error) => return Err(Stop::Failed(format!("cannot read {}: {error}", entry.path))),
    };
    let mut sums = Sums::default();
    let etag = if entry.size <= PART {
        let bytes = part(&mut file, &mut sums, 0, entry).await?;
        let etag = store.put(&key, bytes).await?;
        told(entry.size);
        etag
    } else {
        let mut upload = store.begin(&key).await?;
        let mut at = 0;
        while at < entry.size {
            let sent = async {
                let bytes = part(&mut file, &mut sums, at, entry).await?;
                let length = bytes.len() as u64;
                upload.part(bytes).await?;
                Ok(length)
            };
            match sent.await {
                Ok(length) => {
                    at += length;
                    told(length);
                }
                Err(stop) => {
                    upload.abort().await;
                    return Err(stop);
                }
            }
        }
        upload.finish().await?
    };
    let (crc32c, chunks) = sums.finish();
    Ok(Item {
        path: entry.path.clone(),
        kind: ItemKind::File,
        size: entry.size,
        mode: entry.mode,
        mtime_ns: entry.mtime_ns,
        key,
        target: None,
        etag,
        generation: None,
        crc32c,
        chunks,
    })
}

/// The next part of a file, summed.
async fn part(file: &mut File, sums: &mut Sums, at: u64, entry: &Entry) -> Result<Vec<u8>, Stop> {
    let wanted = PART.min(entry.size - at);
    let is_last = at + wanted == entry.size;
    let failed = |error: io::Error| Stop::Failed(format!("cannot read {}: {error}", entry.path));
    let reader = file.try_clone().map_err(failed)?;
    let state = std::mem::take(sums);
    let read = blocking(move || {
        let mut state = state;
        let bytes = read_at(&reader, at, wanted as usize)?;
        state.add(&bytes);
        if is_last {
            forget(&reader);
        }
        Ok((bytes, state))
    });
    let (bytes, state) = read.await.map_err(failed)?;
    *sums = state;
    if bytes.len() as u64 == wanted {
        Ok(bytes)
    } else {
        Err(Stop::Changed(format!("{} became shorter while it was copied", entry.path)))
    }
}

/// Every object is there with its size.
pub(super) async fn verify(store: &Store, prefix: &str, items: &[Item]) -> Result<(), Stop> {
    let objects = store.list(prefix).await?;
    let there: HashSet<(&str, u64)> = objects.iter().map(|o| (o.key.as_str(), o.size)).collect();
    match items.iter().find(|i| !there.contains(&(i.key.as_str(), i.size))) {
        Some(item) => Err(Stop::Failed(format!(
            "the store acknowledged {} and does not hold it whole; the checkpoint is not committed",
            item.key
        ))),
        None => Ok(()),
    }
}

/// Symbolic links, and directories that nothing in the manifest would make.
pub(super) fn without_data(entries: &[Entry]) -> Vec<Item> {
    let parents: BTreeSet<&str> = entries.iter().map(|e| parent_of(&e.path)).collect();
    let item = |entry: &Entry, kind: ItemKind, target: Option<String>| Item {
        path: entry.path.clone(),
        kind,
        size: 0,
        mode: entry.mode,
        mtime_ns: entry.mtime_ns,
        key: String::new(),
        target,
        etag: None,
        generation: None,
        crc32c: String::new(),
        chunks: None,
    };
    let mut items = Vec::new();
    for entry in entries {
        match &entry.kind {
            Kind::Symlink(target) => items.push(item(entry, ItemKind::Symlink, Some(target.clone()))),
            Kind::Directory if !parents.contains(entry.path.as_str()) => {
                items.push(item(entry, ItemKind::Directory, None));
            }
            _ => {}
        }
    }
    items
}

//! Hard links to the files of a commit while they are sent, so that the framework may delete its own names. The files are
//! compared afterwards, because a hard link does not protect from a write in place. Copies protect from that, too.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::edge::fs::links as followed;
use crate::edge::fs::rooted_dir::RootedDir;
use crate::edge::transfer::blocking::blocking;
use crate::rules::checkpoint::{Entry, Kind};
use crate::rules::store::plan::space_needed;
use crate::supervisor::checkpoints::directory::disk::HARD_LINKS;
use crate::supervisor::checkpoints::directory::scratch_dir::{ScratchDir, sweep};
use crate::supervisor::checkpoints::failure::Stop;

/// The path from which a file's bytes are read.
#[derive(Debug, Clone)]
pub(crate) enum Held {
    /// Beneath the checkpoint directory: its hard link, or its own name.
    Inside(String),
    /// The target of a symbolic link, if it has no hard link.
    Outside(PathBuf),
}

impl Held {
    pub(crate) fn loosely(entry: &Entry) -> Held {
        entry.through.clone().map_or_else(|| Held::Inside(entry.path.clone()), Held::Outside)
    }

    pub(crate) fn open(&self, dir: &RootedDir) -> io::Result<File> {
        match self {
            Held::Inside(path) => dir.read_file(path),
            Held::Outside(real) => followed::open(real),
        }
    }

    fn look(&self, dir: &RootedDir) -> io::Result<Option<Entry>> {
        match self {
            Held::Inside(path) => dir.look(path),
            Held::Outside(real) => followed::look("", real),
        }
    }
}

/// The hard links of a commit. A file has neither link nor copy if its file system has no hard links or refuses one.
pub(crate) struct HardLinks {
    under: Option<ScratchDir>,
    held: HashMap<String, Held>,
    /// Files that are copies, which nothing changes.
    copied: HashSet<String>,
}

impl HardLinks {
    pub(crate) fn remove(self, dir: &RootedDir, within: &str) -> io::Result<()> {
        self.under.map_or(Ok(()), |scratch| scratch.remove(dir))?;
        unlink(dir, within)
    }

    pub(crate) fn has_copy_of(&self, path: &str) -> bool {
        self.copied.contains(path)
    }

    pub(crate) fn held(&self, entry: &Entry) -> Held {
        self.held.get(&entry.path).cloned().unwrap_or_else(|| Held::loosely(entry))
    }
}

/// Removes the hard links of dead processes.
pub(crate) fn unlink(dir: &RootedDir, within: &str) -> io::Result<()> {
    sweep(dir, within)?;
    dir.remove_empty(HARD_LINKS)
}

/// Links these files; those of `copies` are copied, if the disk has room and they do not change meanwhile.
pub(crate) async fn link(
    dir: &Arc<RootedDir>,
    within: &str,
    entries: &[&Entry],
    copies: &[Entry],
) -> io::Result<HardLinks> {
    let (dir, within, copies) = (Arc::clone(dir), within.to_owned(), copies.to_vec());
    let files = entries.iter().filter(|e| e.kind == Kind::File);
    let files: Vec<(String, Option<PathBuf>)> = files.map(|e| (e.path.clone(), e.through.clone())).collect();
    blocking(move || {
        let mut links = HardLinks { under: None, held: HashMap::new(), copied: HashSet::new() };
        // Removes the links of a failed commit first.
        let Ok(scratch) = unlink(&dir, &within).and_then(|()| ScratchDir::take(&dir, &within)) else {
            return Ok(links);
        };
        for (path, through) in files {
            let to = format!("{}/{path}", scratch.files());
            let linked = match &through {
                Some(real) => dir.link_in(real, &to),
                None => dir.link(&path, &to),
            };
            if linked.is_ok() {
                links.held.insert(path, Held::Inside(to));
            }
        }
        let has_room = space_needed(copies.iter().map(|entry| entry.size).sum()) <= dir.free_bytes()?;
        for entry in copies.into_iter().filter(|_| has_room) {
            let to = format!("{}/copies/{}", scratch.files(), entry.path);
            if copy(&dir, &entry, &to).unwrap_or(false) {
                links.held.insert(entry.path.clone(), Held::Inside(to));
                links.copied.insert(entry.path);
            }
        }
        links.under = Some(scratch);
        Ok(links)
    })
    .await
}

/// Copies a file; where the file system can, both share the bytes. False: it changed meanwhile.
fn copy(dir: &RootedDir, entry: &Entry, to: &str) -> io::Result<bool> {
    let named = Held::loosely(entry);
    let before = named.look(dir)?;
    io::copy(&mut named.open(dir)?, &mut dir.create_file(to)?)?;
    let is_it =
        |now: &Entry| entry.same_bytes(now) && before.as_ref().is_some_and(|then| then.ctime_ns == now.ctime_ns);
    Ok(named.look(dir)?.as_ref().is_some_and(is_it))
}

/// Fails if a file differs from the walk, or if its change time differs from `since`: an in-place write may restore the
/// modification time. Returns the present change times, nanoseconds since 1970.
pub(crate) async fn unchanged(
    dir: &Arc<RootedDir>,
    entries: &[Entry],
    links: &HardLinks,
    since: Option<Vec<i64>>,
) -> Result<Vec<i64>, Stop> {
    let files = entries.iter().filter(|e| e.kind == Kind::File);
    let pairs: Vec<(Entry, Held)> = files.map(|e| (e.clone(), links.held(e))).collect();
    let dir = Arc::clone(dir);
    let looked = blocking(move || {
        let mut times = Vec::with_capacity(pairs.len());
        for (number, (entry, held)) in pairs.into_iter().enumerate() {
            let Some(now) = held.look(&dir)?.filter(|now| entry.same_bytes(now)) else { return Ok(Err(entry.path)) };
            // Removing the framework's own name changes this time, too.
            let is_touched = since.as_ref().is_some_and(|since| since.get(number) != Some(&now.ctime_ns));
            if is_touched && dir.look(&entry.path)?.is_some_and(|named| named.inode == now.inode) {
                return Ok(Err(entry.path));
            }
            times.push(now.ctime_ns);
        }
        Ok(Ok(times))
    });
    match looked.await {
        Ok(Ok(times)) => Ok(times),
        Ok(Err(path)) => Err(Stop::Changed(format!("{path} changed while it was copied"))),
        Err(error) => Err(Stop::Failed(format!("cannot look at the checkpoint again: {error}"))),
    }
}

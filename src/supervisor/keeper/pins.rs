//! The files of one commit held still while they are sent: by a second name where that can be had, and compared afterwards.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::mirror::{PINS, blocking};
use super::nook::{Nook, sweep};
use super::send::Stop;
use crate::edge::beneath::Beneath;
use crate::edge::links;
use crate::rules::checkpoint::{Entry, Kind};

/// Where a file's bytes are read from while they are sent.
#[derive(Debug, Clone)]
pub(super) enum Held {
    /// Beneath the checkpoint directory: by its second name, or its own.
    Here(String),
    /// At the end of a link, where no second name could be had.
    Elsewhere(PathBuf),
}

impl Held {
    pub(super) fn open(&self, dir: &Beneath) -> io::Result<File> {
        match self {
            Held::Here(path) => dir.read_file(path),
            Held::Elsewhere(real) => links::open(real),
        }
    }

    fn look(&self, dir: &Beneath) -> io::Result<Option<Entry>> {
        match self {
            Held::Here(path) => dir.look(path),
            Held::Elsewhere(real) => links::look("", real),
        }
    }
}

/// Second names of ours, so that the framework may delete its own meanwhile.
pub(super) struct Pins {
    /// Where they are; `None` where the file system has no hard links or does not let us.
    under: Option<Nook>,
    /// Files at the ends of links that have none: they lie on another file system.
    loose: HashSet<String>,
}

impl Pins {
    /// Lets go of the second names.
    pub(super) fn remove(self, dir: &Beneath, within: &str) -> io::Result<()> {
        self.under.map_or(Ok(()), |nook| nook.remove(dir))?;
        unpin(dir, within)
    }

    /// Where this file's bytes are to be read.
    pub(super) fn held(&self, entry: &Entry) -> Held {
        match (&self.under, &entry.through) {
            (Some(nook), _) if !self.loose.contains(&entry.path) => {
                Held::Here(format!("{}/{}", nook.files(), entry.path))
            }
            (_, Some(real)) => Held::Elsewhere(real.clone()),
            (_, None) => Held::Here(entry.path.clone()),
        }
    }
}

/// Lets go of the second names that nobody needs any more.
pub(super) fn unpin(dir: &Beneath, within: &str) -> io::Result<()> {
    sweep(dir, within)?;
    dir.remove_empty(PINS)
}

/// Gives every file a second name.
pub(super) async fn pin(dir: &Arc<Beneath>, within: &str, entries: &[Entry]) -> io::Result<Pins> {
    let (dir, within) = (Arc::clone(dir), within.to_owned());
    let files = entries.iter().filter(|e| e.kind == Kind::File);
    let files: Vec<(String, Option<PathBuf>)> = files.map(|e| (e.path.clone(), e.through.clone())).collect();
    blocking(move || {
        let mut loose = HashSet::new();
        // What a commit that did not come through has left is nobody's any more.
        let Ok(nook) = unpin(&dir, &within).and_then(|()| Nook::take(&dir, &within)) else {
            return Ok(Pins { under: None, loose });
        };
        let under = nook.files();
        for (path, through) in files {
            let to = format!("{under}/{path}");
            let linked = match &through {
                Some(real) => dir.link_in(real, &to),
                None => dir.link(&path, &to),
            };
            match linked {
                Ok(()) => {}
                // It vanished: the comparison that follows says so.
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(_) if through.is_some() => drop(loose.insert(path)),
                Err(_) => {
                    nook.remove(&dir)?;
                    return Ok(Pins { under: None, loose });
                }
            }
        }
        Ok(Pins { under: Some(nook), loose })
    })
    .await
}

/// Fails unless what is held still is what the walk saw, and has not been touched since the change times `since`: an
/// in-place write whose modification time was put back. The change times as they are now, nanoseconds since 1970.
pub(super) async fn unchanged(
    dir: &Arc<Beneath>,
    entries: &[Entry],
    pins: &Pins,
    since: Option<Vec<i64>>,
) -> Result<Vec<i64>, Stop> {
    let files = entries.iter().filter(|e| e.kind == Kind::File);
    let pairs: Vec<(Entry, Held)> = files.map(|e| (e.clone(), pins.held(e))).collect();
    let dir = Arc::clone(dir);
    let looked = blocking(move || {
        let mut times = Vec::with_capacity(pairs.len());
        for (number, (entry, held)) in pairs.into_iter().enumerate() {
            let Some(now) = held.look(&dir)?.filter(|now| entry.same_bytes(now)) else { return Ok(Err(entry.path)) };
            // A framework that takes its own name away changes that time, too.
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

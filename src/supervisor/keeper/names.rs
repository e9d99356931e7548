//! What names a checkpoint that is in place: its pointers (`latest`), and its copies where it is one file that its trainer
//! may look for under another name (`last.ckpt`). The store holds its bytes once; copies are made on this disk.

use std::io;
use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use super::fetch::Stop;
use super::mirror::{Mirror, TEMPORARY, blocking};
use super::nook::Nook;
use super::place::{Aside, point};
use crate::edge::beneath::Beneath;
use crate::edge::fault::Faults;
use crate::edge::{clock, places, writers};
use crate::rules::checkpoint::listing::{join, parent_of};
use crate::rules::checkpoint::manifest::Manifest;
use crate::rules::checkpoint::{Entry, Kind, Pointer, There, plan, pointing, there};

/// What was written less than this ago may be another's, who writes on.
const FRESH: Duration = Duration::from_secs(2);

/// What is to name a checkpoint where it is put.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    pub(crate) pointers: Vec<Pointer>,
    /// Paths.
    pub(crate) copies: Vec<String>,
}

impl Names {
    fn committed(manifest: &Manifest) -> Names {
        Names { pointers: manifest.pointers.clone(), copies: manifest.copies.clone() }
    }

    /// These, and what named it when it was committed and is gone since.
    pub(super) fn and(&self, before: &Names) -> Names {
        let mut all = self.clone();
        let gone = before.pointers.iter().filter(|p| self.pointers.iter().all(|ours| ours.path != p.path));
        all.pointers.extend(gone.cloned());
        all.copies.extend(before.copies.iter().filter(|path| !self.copies.contains(path)).cloned());
        all
    }
}

impl Mirror {
    /// The checkpoint directory, as a pointer spells it that names the unit in it by its absolute path. One that names it
    /// elsewhere, where perhaps only its trainer sees it, is none of ours.
    pub(super) async fn home(&self, names: &Names, unit: &str) -> Option<String> {
        let files = names.pointers.iter().filter(|pointer| !pointer.symlink);
        let homes: Vec<String> =
            files.filter_map(|file| pointing::home(&file.content, unit)).map(str::to_owned).collect();
        self.first_that_is_ours(homes).await
    }

    /// What names a commit in this directory.
    pub(super) async fn names_of_commit(&self, manifest: &Manifest) -> Names {
        let mut names = Names::committed(manifest);
        let path = std::path::absolute(&self.config.dir).unwrap_or_default();
        let (Some(from), Some(to)) = (&manifest.home, path.to_str()) else { return names };
        if self.first_that_is_ours(vec![from.clone()]).await.is_none() {
            for pointer in names.pointers.iter_mut().filter(|pointer| !pointer.symlink) {
                let moved = pointing::moved(&pointer.content, &manifest.unit, from, to.trim_end_matches('/'));
                pointer.content = moved.unwrap_or_else(|| pointer.content.clone());
            }
        }
        names
    }

    /// The first of these paths that leads to the checkpoint directory.
    async fn first_that_is_ours(&self, paths: Vec<String>) -> Option<String> {
        if paths.is_empty() {
            return None;
        }
        let dir = self.config.dir.clone();
        let found = blocking(move || {
            let dir = places::real(&dir);
            Ok(paths.into_iter().find(|path| places::real(Path::new(path)) == dir))
        });
        found.await.ok().flatten()
    }

    /// Lets everything name the unit, which is in place. A copy that cannot be made is told of. Errors: as open(2),
    /// rename(2).
    pub(super) async fn put_names(&self, dir: &Arc<Beneath>, unit: &str, names: &Names) -> Result<(), Stop> {
        let (unit, names) = (unit.to_owned(), names.clone());
        let mut naming = Naming {
            dir: Arc::clone(dir),
            aside: self.aside(),
            has_others: self.has_other_writers(),
            faults: self.config.faults.clone(),
        };
        let put = blocking(move || {
            let copies = names.copies.into_iter();
            let failed: Vec<_> =
                copies.filter_map(|path| Some((naming.copy(&unit, &path).err()?, unit.clone(), path))).collect();
            let pointed = names.pointers.iter().try_for_each(|pointer| naming.point(pointer));
            Ok((failed, pointed, naming.aside))
        });
        let (failed, pointed, aside) = put.await.map_err(|error| Stop::Fatal(self.unusable(&error)))?;
        self.note_all(aside);
        for (error, unit, path) in failed {
            self.note(format!(
                "{unit} is in place, but not under the name {path} as well: {error}; a trainer that looks for it there does not find it"
            ));
        }
        pointed.map_err(|error: io::Error| Stop::Fatal(self.unusable(&error)))
    }

    /// Whether somebody may write there who is not to be seen: a process of a run before this one, or of another node.
    pub(super) fn has_other_writers(&self) -> bool {
        self.is_first || self.config.options.has_other_nodes
    }
}

/// Names on their way into the directory.
struct Naming {
    dir: Arc<Beneath>,
    aside: Aside,
    has_others: bool,
    faults: Faults,
}

impl Naming {
    fn point(&mut self, pointer: &Pointer) -> io::Result<()> {
        let is_lost = |there: Kind| there == Kind::Directory || pointer.symlink && there == Kind::File;
        if self.dir.look(&pointer.path)?.is_some_and(|there| is_lost(there.kind)) {
            self.aside.clear(&self.dir, &pointer.path)?;
        }
        point(&self.dir, &pointer.path, &pointer.content, pointer.symlink)
    }

    /// Puts the unit under another name, unless what is whole and nobody's copy lies there.
    fn copy(&mut self, unit: &str, path: &str) -> io::Result<()> {
        let dir = &*self.dir;
        let Some(unit) = dir.look(unit)?.filter(|unit| unit.kind == Kind::File) else { return Ok(()) };
        let before = dir.look(path)?;
        let lies = before.as_ref().map(|file| what_lies(dir, file, &unit)).transpose()?;
        let is_free = match lies {
            None | Some(There::Copy) => true,
            Some(There::Torn) => {
                !before.as_ref().is_some_and(|file| is_being_written(self.has_others, slice::from_ref(file)))
            }
            Some(There::Same | There::Another) => false,
        };
        if !is_free {
            return Ok(());
        }
        if dir.free_bytes()? < plan::space_needed(unit.size) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let nook = Nook::take(dir, TEMPORARY)?;
        let fresh = format!("{}/{path}", nook.files());
        let mut put = || {
            dir.copy(&unit.path, &fresh, unit.mtime_ns)?;
            self.faults.point(30);
            let is_as_seen = match (&before, dir.look(path)?) {
                (Some(then), Some(now)) => then.same_bytes(&now),
                (then, now) => then.is_none() && now.is_none(),
            };
            if !is_as_seen {
                return Ok(());
            }
            if lies == Some(There::Torn) {
                self.aside.clear(dir, path)?;
            }
            self.faults.point(31);
            dir.rename(&fresh, path)
        };
        put().and(nook.remove(dir))
    }
}

/// Whether a process has one open for writing, or one that is not to be seen may (`has_others`).
pub(super) fn is_being_written(has_others: bool, files: &[Entry]) -> bool {
    let all = files.iter().map(|file| (file.device, file.inode)).collect();
    has_others && files.iter().any(is_fresh) || writers::writer_of(&all).is_some()
}

pub(super) fn what_lies(dir: &Beneath, file: &Entry, unit: &Entry) -> io::Result<There> {
    if file.kind != Kind::File {
        return Ok(There::Another);
    }
    let home = parent_of(&unit.path);
    let beside = dir.names(home)?.into_iter().filter_map(|name| dir.look(&join(home, &name)).ok().flatten());
    Ok(there(dir, file, unit, beside))
}

fn is_fresh(file: &Entry) -> bool {
    let now = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    let written = Duration::from_nanos(u64::try_from(file.mtime_ns).unwrap_or(0));
    now.saturating_sub(written) < FRESH
}

//! What names a checkpoint that is in place: its pointers (`latest`), and its copies where it is one file that its trainer
//! may look for under another name (`last.ckpt`). The store holds its bytes once; copies are made on this disk.

use std::io;
use std::sync::Arc;

use super::fetch::Stop;
use super::mirror::{Mirror, TEMPORARY, blocking};
use super::nook::Nook;
use super::place::point;
use crate::edge::beneath::Beneath;
use crate::rules::checkpoint::listing::name_of;
use crate::rules::checkpoint::manifest::{CopyItem, Manifest};
use crate::rules::checkpoint::{Entry, Kind, Pointer};

/// What is to name a checkpoint where it is put.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    pub(crate) pointers: Vec<Pointer>,
    pub(crate) copies: Vec<CopyItem>,
}

impl Names {
    pub(super) fn committed(manifest: &Manifest) -> Names {
        Names { pointers: manifest.pointers.clone(), copies: manifest.copies.clone() }
    }

    /// These, and what named it when it was committed and is gone since.
    pub(super) fn and(&self, before: &Names) -> Names {
        let mut all = self.clone();
        let gone = before.pointers.iter().filter(|p| self.pointers.iter().all(|ours| ours.path != p.path));
        all.pointers.extend(gone.cloned());
        let gone = before.copies.iter().filter(|c| self.copies.iter().all(|ours| ours.path != c.path));
        all.copies.extend(gone.cloned());
        all
    }
}

/// A checkpoint that is one file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unit<'a> {
    path: &'a str,
    size: u64,
    mtime_ns: i64,
}

impl<'a> Unit<'a> {
    pub(super) fn committed(manifest: &'a Manifest) -> Option<Unit<'a>> {
        manifest.only_file().map(|file| Unit { path: &file.path, size: file.size, mtime_ns: file.mtime_ns })
    }

    pub(super) fn local(entries: &'a [Entry]) -> Option<Unit<'a>> {
        let [file] = entries else { return None };
        Some(Unit { path: &file.path, size: file.size, mtime_ns: file.mtime_ns })
    }
}

impl Mirror {
    /// Lets everything name what is in place. What lies there under another name goes aside. Errors: no space, as open(2),
    /// rename(2).
    pub(super) async fn put_names(
        &self,
        dir: &Arc<Beneath>,
        unit: Option<Unit<'_>>,
        names: &Names,
    ) -> Result<(), Stop> {
        if let Some(unit) = unit {
            self.put_copies(dir, unit, &names.copies).await?;
        }
        let put = || {
            for pointer in &names.pointers {
                if dir.look(&pointer.path)?.is_some_and(|there| there.kind == Kind::Directory) {
                    self.clear(dir, &pointer.path)?;
                }
                point(dir, &pointer.path, &pointer.content, pointer.symlink)?;
            }
            Ok(())
        };
        put().map_err(|error: io::Error| Stop::Fatal(self.unusable(&error)))
    }

    async fn put_copies(&self, dir: &Arc<Beneath>, unit: Unit<'_>, copies: &[CopyItem]) -> Result<(), Stop> {
        let local = |error: io::Error| Stop::Fatal(self.unusable(&error));
        let missing = copies.iter().filter_map(|copy| match is_there(dir, copy, &unit) {
            Ok(true) => None,
            Ok(false) => Some(Ok(copy.path.clone())),
            Err(error) => Some(Err(error)),
        });
        let missing: Vec<String> = missing.collect::<io::Result<_>>().map_err(local)?;
        if missing.is_empty() {
            return Ok(());
        }
        self.check_space(dir, unit.size * missing.len() as u64)?;
        let nook = Nook::take(dir, TEMPORARY).map_err(local)?;
        let made = self.make_copies(dir, &unit, &nook, &missing).await;
        let there = Arc::clone(dir);
        let removed = blocking(move || nook.remove(&there)).await;
        made.and(removed).map_err(local)
    }

    async fn make_copies(&self, dir: &Arc<Beneath>, unit: &Unit<'_>, nook: &Nook, paths: &[String]) -> io::Result<()> {
        for path in paths {
            let fresh = format!("{}/{path}", nook.files());
            let (there, from, to, time) = (Arc::clone(dir), unit.path.to_owned(), fresh.clone(), unit.mtime_ns);
            blocking(move || there.copy(&from, &to, time)).await?;
            self.config.faults.point(30);
            if dir.look(path)?.is_some() {
                self.clear(dir, path)?;
            }
            self.config.faults.point(31);
            dir.rename(&fresh, path)?;
        }
        Ok(())
    }
}

/// Whether the same save lies there already: as it did when the unit was committed, as a restore put it there, or as a link.
fn is_there(dir: &Beneath, copy: &CopyItem, unit: &Unit) -> io::Result<bool> {
    let Some(there) = dir.look(&copy.path)? else { return Ok(false) };
    let now = (there.size, there.mtime_ns);
    Ok(match there.kind {
        Kind::File => now == (copy.size, copy.mtime_ns) || now == (unit.size, unit.mtime_ns),
        Kind::Symlink(to) => to == name_of(unit.path),
        _ => false,
    })
}

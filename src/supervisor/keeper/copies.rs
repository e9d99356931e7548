//! The copies of a checkpoint that is one file, under the names that its trainer may look for (`last.ckpt`). The store holds
//! its bytes once; these are made on this disk.

use std::io;
use std::sync::Arc;

use super::fetch::Stop;
use super::mirror::{Mirror, TEMPORARY, blocking};
use super::nook::Nook;
use crate::edge::beneath::Beneath;
use crate::rules::checkpoint::Kind;
use crate::rules::checkpoint::listing::name_of;
use crate::rules::checkpoint::manifest::CopyItem;

/// A checkpoint that is one file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unit<'a> {
    pub(super) path: &'a str,
    pub(super) size: u64,
    pub(super) mtime_ns: i64,
}

impl Mirror {
    /// Puts the unit, which is in place, under its other names; what lay there goes aside. Errors: no space, as open(2),
    /// rename(2).
    pub(super) async fn put_copies(&self, dir: &Arc<Beneath>, unit: Unit<'_>, copies: &[CopyItem]) -> Result<(), Stop> {
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

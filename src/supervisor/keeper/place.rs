//! One commit put in place: what was fetched moved to where it belongs, what stood there aside, the pointers last.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use super::fetch::Stop;
use super::in_place::{equal_files, is_in_place, own, set_times};
use super::look::Look;
use super::mirror::{Mirror, MirrorError, RESTORING, TEMPORARY, away};
use super::restore::Brought;
use super::retention::lacks;
use crate::edge::beneath::Beneath;
use crate::edge::store::Store;
use crate::rules::checkpoint::Kind;
use crate::rules::checkpoint::manifest::Manifest;
use crate::rules::checkpoint::names::{Attempt, CommitName};
use crate::rules::checkpoint::plan;

pub(super) const ASIDE: &str = ".trainit/aside";
const RESTORED: &str = ".trainit/restored.json";

impl Mirror {
    /// Brings one commit into place.
    pub(super) async fn bring(
        &self,
        store: &Store,
        name: &CommitName,
        manifest: &Manifest,
        look: &Look,
    ) -> Result<Brought, Stop> {
        // Errors: the store does not hold it whole.
        let whole = async || match look.newest {
            Some(_) => Ok(()),
            None => match lacks(store, manifest).await.map_err(|error| Stop::Fatal(away(&error)))? {
                Some(why) => Err(Stop::Reject(why)),
                None => Ok(()),
            },
        };
        let faults = &self.config.faults;
        let dir =
            Beneath::create(&self.config.dir).map(Arc::new).map_err(|error| Stop::Fatal(self.unusable(&error)))?;
        let local = |error: io::Error| Stop::Fatal(self.unusable(&error));
        faults.point(20);
        let mut equal = equal_files(&dir, manifest, &look.listing).await.map_err(local)?;
        let mut brought = Brought { fetched: 0, was_there: true };
        if is_in_place(&dir, manifest, &equal, &look.listing).map_err(local)? {
            whole().await?;
        } else {
            own(&mut equal, &look.listing);
            dir.remove_tree(TEMPORARY).map_err(local)?;
            let needed = manifest.regular().filter(|f| !equal.contains(&f.path)).map(|f| f.size).sum();
            brought = Brought { fetched: needed, was_there: false };
            if let Err(stop) = self.check_space(&dir, needed) {
                // What is not whole needs no space.
                return Err(whole().await.err().unwrap_or(stop));
            }
            self.transfer.begin(needed);
            let temporary =
                format!("{TEMPORARY}/{}", self.attempt.as_ref().map_or("pull".to_owned(), Attempt::to_string));
            let fetch = self.fetch(store, &dir, manifest, &equal, &temporary);
            if let Err(stop) = futures_util::try_join!(whole(), fetch) {
                dir.remove_tree(TEMPORARY).map_err(local)?;
                // A file may be missed by either first; the listing says it better.
                if matches!(stop, Stop::Reject(_)) {
                    whole().await?;
                }
                return Err(stop);
            }
            faults.point(22);
            if let Err(error) = self.install(&dir, manifest, &equal, &temporary) {
                // It may be what fills the disk.
                let _ = dir.remove_tree(TEMPORARY);
                return Err(local(error));
            }
        }
        set_times(&dir, manifest, &equal);
        self.finish(&dir, name, manifest).map_err(local)?;
        Ok(brought)
    }

    /// The unit is in place: the pointers, and what we write down.
    fn finish(&self, dir: &Beneath, name: &CommitName, manifest: &Manifest) -> io::Result<()> {
        let faults = &self.config.faults;
        faults.point(26);
        for pointer in &manifest.pointers {
            if dir.look(&pointer.path)?.is_some_and(|there| there.kind == Kind::Directory) {
                self.clear(dir, &pointer.path)?;
            }
            point(dir, &pointer.path, &pointer.content, pointer.symlink)?;
        }
        faults.point(27);
        let restored = serde_json::json!({"commit": name.to_string(), "unit": manifest.unit, "step": manifest.step});
        dir.replace(RESTORED, restored.to_string().as_bytes(), 0o644)?;
        faults.point(28);
        dir.remove_file(RESTORING)?;
        dir.remove_tree(TEMPORARY)?;
        faults.point(29);
        Ok(())
    }

    pub(super) fn check_space(&self, dir: &Beneath, needed: u64) -> Result<(), Stop> {
        let free = dir.free_bytes().map_err(|error| Stop::Fatal(self.unusable(&error)))?;
        let wanted = if needed == 0 { 0 } else { plan::space_needed(needed) };
        if free >= wanted {
            return Ok(());
        }
        Err(Stop::Fatal(MirrorError::store(format!(
            "no space to restore: {} has {free} bytes free and the checkpoint needs {wanted}; nothing was written and nothing started; free space there",
            dir.path().display()
        ))))
    }

    /// Moves what was fetched into place, and what stood there aside.
    fn install(&self, dir: &Beneath, manifest: &Manifest, equal: &HashSet<String>, temporary: &str) -> io::Result<()> {
        let faults = &self.config.faults;
        let moved = manifest.places(equal);
        dir.replace(RESTORING, serde_json::json!([manifest.unit]).to_string().as_bytes(), 0o644)?;
        faults.point(23);
        let there: Vec<&str> = moved.iter().copied().filter(|p| matches!(dir.look(p), Ok(Some(_)))).collect();
        for path in &there {
            self.clear(dir, path)?;
            faults.point(24);
        }
        for path in &moved {
            dir.rename(&format!("{temporary}/{path}"), path)?;
            faults.point(25);
        }
        Ok(())
    }

    /// Moves what lies at the path aside. Each run has its own place for that, and none is ever emptied: it is what the
    /// trainer wrote.
    fn clear(&self, dir: &Beneath, path: &str) -> io::Result<()> {
        let attempt = self.attempt.as_ref().map_or("pull".to_owned(), Attempt::to_string);
        let aside = set_aside(dir, &attempt, path)?;
        self.note(format!(
            "what lay at {path} in {} was in the way of the restore and is kept as {aside}; delete it when nobody needs it",
            self.config.dir.display()
        ));
        Ok(())
    }
}

/// Moves what lies at the path to a free place of this attempt's, and says where that is.
pub(super) fn set_aside(dir: &Beneath, attempt: &str, path: &str) -> io::Result<String> {
    let places = (1u32..).map(|n| format!("{ASIDE}/{attempt}-{n}/{path}"));
    let is_free = |place: &String| matches!(dir.look(place), Ok(None));
    let aside = places.take(10_000).find(is_free).ok_or(io::ErrorKind::AlreadyExists)?;
    dir.rename(path, &aside)?;
    Ok(aside)
}

/// Puts a pointer, unless it says so already.
pub(super) fn point(dir: &Beneath, path: &str, content: &str, symlink: bool) -> io::Result<()> {
    match dir.look(path)?.map(|e| e.kind) {
        Some(Kind::Symlink(target)) if symlink && target == content => Ok(()),
        Some(Kind::File) if !symlink && dir.read(path, content.len() as u64).is_ok_and(|b| b == content.as_bytes()) => {
            Ok(())
        }
        _ if symlink => dir.replace_link(path, content),
        _ => dir.replace(path, content.as_bytes(), 0o644),
    }
}

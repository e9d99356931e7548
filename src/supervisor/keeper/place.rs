//! One commit put in place: what was fetched moved to where it belongs, what stood there aside, the pointers last.

use std::io;
use std::sync::Arc;

use super::fetch::Stop;
use super::in_place::{equal_files, half, is_in_place, mark, own, settle};
use super::look::{Look, walked};
use super::mirror::{Mirror, MirrorError, TEMPORARY, blocking};
use super::names::Names;
use super::nook::{Nook, turn};
use super::restore::Brought;
use super::retention::lacks;
use crate::edge::beneath::Beneath;
use crate::edge::store::Store;
use crate::rules::checkpoint::manifest::Manifest;
use crate::rules::checkpoint::names::{Attempt, CommitName};
use crate::rules::checkpoint::plan;
use crate::rules::checkpoint::{Kind, Listing};

pub(super) const ASIDE: &str = ".trainit/aside";
const RESTORED: &str = ".trainit/restored.json";

/// So often a restore that another one disturbs looks again at what lies there.
const TRIES: u32 = 3;

impl Mirror {
    /// Brings one commit into place.
    pub(super) async fn bring(
        &self,
        store: &Store,
        name: &CommitName,
        manifest: &Manifest,
        look: &Look,
    ) -> Result<Brought, Stop> {
        let mut again;
        let mut listing = &look.listing;
        for _ in 0..TRIES {
            if let Some(brought) = self.try_to_bring(store, name, manifest, listing, look.newest.is_some()).await? {
                return Ok(brought);
            }
            let (dir, options) = (self.config.dir.clone(), self.config.options.clone());
            let walked = blocking(move || walked(&dir, &options)).await;
            again = walked.map_err(|error| Stop::Fatal(self.unusable(&error)))?;
            listing = &again;
        }
        Err(Stop::Fatal(MirrorError::store(format!(
            "{} in {} was taken away or put in place by another process each time this one restored it, so it may not be whole; nothing was started; see who else uses the directory",
            manifest.unit,
            self.config.dir.display()
        ))))
    }

    /// `None`: another process put something in place or took something away meanwhile.
    async fn try_to_bring(
        &self,
        store: &Store,
        name: &CommitName,
        manifest: &Manifest,
        listing: &Listing,
        is_known_whole: bool,
    ) -> Result<Option<Brought>, Stop> {
        // Errors: the store does not hold it whole.
        let whole = async || match is_known_whole {
            true => Ok(()),
            false => match lacks(store, manifest).await.map_err(|error| Stop::Fatal(self.away(&error)))? {
                Some(why) => Err(Stop::Reject(why)),
                None => Ok(()),
            },
        };
        let faults = &self.config.faults;
        let dir =
            Beneath::create(&self.config.dir).map(Arc::new).map_err(|error| Stop::Fatal(self.unusable(&error)))?;
        let local = |error: io::Error| Stop::Fatal(self.unusable(&error));
        faults.point(20);
        self.sweep(&dir).await;
        let was_half = half(&dir).contains(&manifest.unit);
        let mut equal = equal_files(&dir, manifest, listing).await.map_err(local)?;
        let (mut brought, turn) = (Brought { fetched: 0, was_there: true }, turn(&dir));
        let _turn = if is_in_place(&dir, manifest, &equal, listing).map_err(local)? {
            whole().await?;
            turn.await
        } else {
            own(&mut equal, listing);
            let needed = manifest.regular().filter(|f| !equal.contains(&f.path)).map(|f| f.size).sum();
            brought = Brought { fetched: needed, was_there: false };
            if let Err(stop) = self.check_space(&dir, needed) {
                // What is not whole needs no space.
                return Err(whole().await.err().unwrap_or(stop));
            }
            self.transfer.begin(needed);
            let nook = Nook::take(&dir, TEMPORARY).map_err(local)?;
            let temporary = nook.files();
            let fetch = self.fetch(store, &dir, manifest, &equal, &temporary);
            if let Err(stop) = futures_util::try_join!(whole(), fetch) {
                leave(nook, &dir).await.map_err(local)?;
                // A file may be missed by either first; the listing says it better.
                if matches!(stop, Stop::Reject(_)) {
                    whole().await?;
                }
                return Err(stop);
            }
            faults.point(22);
            let turn = turn.await;
            let moved = manifest.places(&equal);
            let installed = match half(&dir).contains(&manifest.unit) == was_half && is_as_seen(&dir, &moved, listing) {
                true => self.install(&dir, manifest, &moved, listing, &temporary),
                false => Ok(false),
            };
            // It may be what fills the disk.
            let removed = leave(nook, &dir).await;
            if !installed? {
                return Ok(None);
            }
            removed.map_err(local)?;
            turn
        };
        // Nobody is told of what another process has just taken away.
        if !settle(&dir, manifest, &equal, listing).await.map_err(local)? {
            return Ok(None);
        }
        faults.point(26);
        self.put_names(&dir, &manifest.unit, &Names::committed(manifest)).await?;
        self.finish(&dir, name, manifest).map_err(local)?;
        Ok(Some(brought))
    }

    /// The unit is in place, and named: what we write down.
    fn finish(&self, dir: &Beneath, name: &CommitName, manifest: &Manifest) -> io::Result<()> {
        let faults = &self.config.faults;
        faults.point(27);
        let restored = serde_json::json!({"commit": name.to_string(), "unit": manifest.unit, "step": manifest.step});
        dir.replace(RESTORED, restored.to_string().as_bytes(), 0o644)?;
        faults.point(28);
        let mut half = half(dir);
        half.retain(|unit| *unit != manifest.unit);
        mark(dir, &half)?;
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

    /// Moves what was fetched into place, and what stood there aside. False: another restore was there first.
    fn install(
        &self,
        dir: &Beneath,
        manifest: &Manifest,
        moved: &[&str],
        listing: &Listing,
        temporary: &str,
    ) -> Result<bool, Stop> {
        let faults = &self.config.faults;
        let local = |error: io::Error| Stop::Fatal(self.unusable(&error));
        // What has come since is another restore's, and in use.
        let is_old = |path: &&str| listing.get(path).is_some() && matches!(dir.look(path), Ok(Some(_)));
        let there: Vec<&str> = moved.iter().copied().filter(is_old).collect();
        let before = half(dir);
        let mut now = before.clone();
        now.extend((!before.contains(&manifest.unit)).then(|| manifest.unit.clone()));
        mark(dir, &now).map_err(local)?;
        faults.point(23);
        let (mut at, mut is_begun) = ("", false);
        let mut put = || {
            for path in &there {
                at = path;
                self.clear(dir, path)?;
                is_begun = true;
                faults.point(24);
            }
            for path in moved {
                at = path;
                dir.rename(&format!("{temporary}/{path}"), path)?;
                is_begun = true;
                faults.point(25);
            }
            Ok(())
        };
        let Err(error): io::Result<()> = put() else { return Ok(true) };
        if !is_begun {
            // What lies there is as whole as it was.
            mark(dir, &before).map_err(local)?;
        }
        match error.kind() {
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound => Ok(false),
            _ => Err(Stop::Fatal(self.unmovable(at, &error))),
        }
    }

    /// Moves what lies at the path aside. Each run has its own place for that, and none is ever emptied: it is what the
    /// trainer wrote.
    pub(super) fn clear(&self, dir: &Beneath, path: &str) -> io::Result<()> {
        let attempt = self.attempt.as_ref().map_or("pull".to_owned(), Attempt::to_string);
        let aside = set_aside(dir, &attempt, path)?;
        self.note(format!(
            "what lay at {path} in {} was in the way of the restore and is kept as {aside}; delete it when nobody needs it",
            self.config.dir.display()
        ));
        Ok(())
    }
}

/// Removes the place with what is left in it.
async fn leave(nook: Nook, dir: &Arc<Beneath>) -> io::Result<()> {
    let dir = Arc::clone(dir);
    blocking(move || nook.remove(&dir)).await
}

/// Whether nothing else lies where something is to be put than when it was looked at.
fn is_as_seen(dir: &Beneath, moved: &[&str], listing: &Listing) -> bool {
    moved.iter().all(|path| match (dir.look(path), listing.get(path)) {
        (Ok(Some(now)), Some(then)) => then.through.is_some() || (now.inode, now.device) == (then.inode, then.device),
        (Ok(Some(_)), None) => false,
        _ => true,
    })
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

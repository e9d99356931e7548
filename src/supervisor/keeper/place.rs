//! One commit put in place: what was fetched moved to where it belongs, what stood there aside, the pointers last.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::fetch::{BLOCK, Stop};
use super::in_place::{equal_files, half, is_half, is_in_place, mark, own, settle};
use super::look::{Look, walked};
use super::mirror::{Mirror, MirrorError, SMALL, TEMPORARY, blocking};
use super::nook::{Nook, turn};
use super::restore::Brought;
use super::retention::lacks;
use crate::edge::beneath::Beneath;
use crate::edge::fault::Faults;
use crate::edge::store::{PAGE, Store};
use crate::rules::checkpoint::manifest::Manifest;
use crate::rules::checkpoint::names::{Attempt, CommitName};
use crate::rules::checkpoint::plan;
use crate::rules::checkpoint::{Entry, Kind, Listing, pointing};

pub(super) const ASIDE: &str = ".trainit/aside";
const RESTORED: &str = ".trainit/restored.json";

/// So often a restore that another one disturbs looks again at what lies there.
const TRIES: u32 = 3;

impl Mirror {
    /// Brings one commit into place.
    pub(super) async fn bring(
        &self,
        store: &Arc<Store>,
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
            "{} in {} was taken away or put in place by another process each time this one restored it, so it may not be whole; {}; see who else uses the directory",
            manifest.unit,
            self.config.dir.display(),
            self.nothing_done()
        ))))
    }

    /// `None`: another process put something in place or took something away meanwhile.
    async fn try_to_bring(
        &self,
        store: &Arc<Store>,
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
        let local = |error: io::Error| Stop::Fatal(self.unusable(&error));
        let at = self.config.dir.clone();
        let dir = blocking(move || Beneath::create(&at).map(Arc::new)).await.map_err(local)?;
        faults.point(20);
        self.sweep(&dir).await;
        let was_half = is_half(&dir, &manifest.unit).await;
        let mut equal = equal_files(&dir, manifest, listing).await.map_err(local)?;
        let (mut brought, turn) = (Brought { fetched: 0, was_there: true }, turn(&dir));
        let _turn = if is_in_place(&dir, manifest, &equal, listing).await {
            whole().await?;
            turn.await
        } else {
            own(&mut equal, listing);
            let needed = manifest.regular().filter(|f| !equal.contains(&f.path)).map(|f| f.size).sum();
            brought = Brought { fetched: needed, was_there: false };
            if let Err(stop) = self.check_space(&dir, needed).await {
                // What is not whole needs no space.
                return Err(whole().await.err().unwrap_or(stop));
            }
            self.transfer.begin(needed);
            let place = Arc::clone(&dir);
            let nook = blocking(move || Nook::take(&place, TEMPORARY)).await.map_err(local)?;
            let temporary = nook.files();
            let fetch = self.fetch(store, &dir, manifest, &equal, &temporary);
            let objects = manifest.regular().map(|f| &f.key).collect::<HashSet<_>>().len() as u64;
            // What comes is proven as it comes. A listing only tells sooner what will not, and of many small objects takes as
            // long as they do.
            let fetched = if equal.is_empty() && objects > PAGE as u64 && needed / objects <= BLOCK {
                fetch.await
            } else {
                futures_util::try_join!(whole(), fetch).map(|_| ())
            };
            if let Err(stop) = fetched {
                let place = Arc::clone(&dir);
                // It is swept one day, and an older commit may be restored all the same.
                let _ = blocking(move || nook.remove(&place)).await;
                // A file may be missed by either first; the listing says it better.
                if matches!(stop, Stop::Reject(_)) {
                    whole().await?;
                }
                return Err(stop);
            }
            faults.point(22);
            let turn = turn.await;
            let moved = manifest.places(&equal).into_iter();
            let mut install = Install {
                dir: Arc::clone(&dir),
                unit: manifest.unit.clone(),
                was_half,
                moved: moved.map(|path| (path.to_owned(), listing.get(path).cloned())).collect(),
                aside: self.aside(),
                faults: faults.clone(),
            };
            // It goes on to its end whoever stops waiting for it, and the turn and the place last as long.
            let done = blocking(move || {
                let installed = install.carry_out(&temporary);
                // It may be what fills the disk.
                let removed = nook.remove(&install.dir);
                Ok((turn, installed, removed, install.aside))
            });
            let (turn, installed, removed, aside) = done.await.map_err(local)?;
            self.note_all(aside);
            match installed {
                Ok(true) => removed.map_err(local)?,
                Ok(false) => return Ok(None),
                Err((Some(path), error)) => return Err(Stop::Fatal(self.unmovable(&path, &error))),
                Err((None, error)) => return Err(local(error)),
            }
            turn
        };
        // Nobody is told of what another process has just taken away.
        if !settle(&dir, manifest, &equal, listing).await.map_err(local)? {
            return Ok(None);
        }
        faults.point(26);
        let names = self.names_of_commit(manifest).await;
        self.put_names(&dir, &manifest.unit, &names).await?;
        for (now, _) in names.pointers.iter().zip(&manifest.pointers).filter(|(now, then)| now.content != then.content)
        {
            self.note(format!(
                "{} named {} by its path in {}, where it was saved, and names it in {} now",
                now.path,
                manifest.unit,
                manifest.home.as_deref().unwrap_or_default(),
                self.config.dir.display()
            ));
        }
        self.finish(&dir, name, manifest).await.map_err(local)?;
        Ok(Some(brought))
    }

    /// The unit is in place, and named: what we write down.
    async fn finish(&self, dir: &Arc<Beneath>, name: &CommitName, manifest: &Manifest) -> io::Result<()> {
        let restored = serde_json::json!({"commit": name.to_string(), "unit": manifest.unit, "step": manifest.step});
        let (dir, unit, faults) = (Arc::clone(dir), manifest.unit.clone(), self.config.faults.clone());
        blocking(move || {
            faults.point(27);
            dir.replace(RESTORED, restored.to_string().as_bytes(), 0o644)?;
            faults.point(28);
            let mut half = half(&dir);
            half.retain(|other| *other != unit);
            mark(&dir, &half)?;
            faults.point(29);
            Ok(())
        })
        .await
    }

    pub(super) async fn check_space(&self, dir: &Arc<Beneath>, needed: u64) -> Result<(), Stop> {
        let place = Arc::clone(dir);
        let free = blocking(move || place.free_bytes()).await.map_err(|error| Stop::Fatal(self.unusable(&error)))?;
        let wanted = if needed == 0 { 0 } else { plan::space_needed(needed) };
        if free >= wanted {
            return Ok(());
        }
        Err(Stop::Fatal(MirrorError::store(format!(
            "no space to restore: {} has {free} bytes free and the checkpoint needs {wanted}; nothing was written, and {}; free space there",
            dir.path().display(),
            self.nothing_done()
        ))))
    }

    /// Where things are moved that are in the way. Each run has its own place for that, and none is ever emptied: it is what
    /// the trainer wrote.
    pub(super) fn aside(&self) -> Aside {
        let attempt = self.attempt.as_ref().map_or("pull".to_owned(), Attempt::to_string);
        Aside { attempt, shown: self.config.dir.clone(), kept: Vec::new() }
    }

    /// Tells what was moved there.
    pub(super) fn note_all(&self, aside: Aside) {
        aside.kept.into_iter().for_each(|line| self.note(line));
    }
}

/// What is moved out of the way, and where to.
pub(super) struct Aside {
    attempt: String,
    /// The checkpoint directory, as it is told.
    shown: PathBuf,
    /// What is to be told.
    kept: Vec<String>,
}

impl Aside {
    /// Moves what lies at the path there.
    pub(super) fn clear(&mut self, dir: &Beneath, path: &str) -> io::Result<()> {
        let aside = set_aside(dir, &self.attempt, path)?;
        self.kept.push(format!(
            "what lay at {path} in {} was in the way of the restore and is kept as {aside}; delete it when nobody needs it",
            self.shown.display()
        ));
        Ok(())
    }
}

/// What was fetched, on its way into place.
struct Install {
    dir: Arc<Beneath>,
    unit: String,
    was_half: bool,
    /// What is put in place, and what lay there when it was looked at.
    moved: Vec<(String, Option<Entry>)>,
    aside: Aside,
    faults: Faults,
}

impl Install {
    /// Moves what was fetched into place, and what stood there aside. False: another restore was there first. Errors: with
    /// the path that could not be moved, if it was that.
    fn carry_out(&mut self, temporary: &str) -> Result<bool, (Option<String>, io::Error)> {
        let (dir, faults) = (&*self.dir, &self.faults);
        let before = half(dir);
        if before.contains(&self.unit) != self.was_half || !is_as_seen(dir, &self.moved) {
            return Ok(false);
        }
        // What has come since is another restore's, and in use.
        let is_old = |(path, then): &&(String, Option<Entry>)| then.is_some() && matches!(dir.look(path), Ok(Some(_)));
        let there: Vec<&str> = self.moved.iter().filter(is_old).map(|(path, _)| path.as_str()).collect();
        let mut now = before.clone();
        now.extend((!self.was_half).then(|| self.unit.clone()));
        mark(dir, &now).map_err(|error| (None, error))?;
        faults.point(23);
        let (mut at, mut is_begun) = ("", false);
        let mut put = || {
            for path in &there {
                at = path;
                self.aside.clear(dir, path)?;
                is_begun = true;
                faults.point(24);
            }
            for (path, _) in &self.moved {
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
            mark(dir, &before).map_err(|error| (None, error))?;
        }
        match error.kind() {
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound => Ok(false),
            _ => Err((Some(at.to_owned()), error)),
        }
    }
}

/// Whether nothing else lies where something is to be put than when it was looked at.
fn is_as_seen(dir: &Beneath, moved: &[(String, Option<Entry>)]) -> bool {
    moved.iter().all(|(path, then)| match (dir.look(path), then) {
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
    let says = || dir.read(path, SMALL).is_ok_and(|said| pointing::says(&String::from_utf8_lossy(&said), content));
    match dir.look(path)?.map(|e| e.kind) {
        Some(Kind::Symlink(target)) if symlink && target == content => Ok(()),
        Some(Kind::File) if !symlink && says() => Ok(()),
        _ if symlink => dir.replace_link(path, content),
        _ => dir.replace(path, content.as_bytes(), 0o644),
    }
}

//! Before an attempt: moves files that the last attempt may have left incomplete to `.trainit/torn`, and puts the last commit's
//! version back.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::edge::fs::rooted_dir::RootedDir;
use crate::edge::transfer::blocking::blocking;
use crate::rules::checkpoint::listing::OWN;
use crate::rules::checkpoint::{Entry, Rollback, Writer};
use crate::rules::store::manifest::Item;
use crate::rules::store::names::Attempt;
use crate::rules::text::safe_text::and_more;
use crate::supervisor::checkpoints::directory::disk::{TEMPORARY, TORN, free_place, move_away, remove_superseded};
use crate::supervisor::checkpoints::directory::look::How;
use crate::supervisor::checkpoints::directory::scratch_dir::{ScratchDir, now, turn};
use crate::supervisor::checkpoints::failure::{Failure, Refusal};
use crate::supervisor::checkpoints::mirror::Mirror;
use crate::supervisor::checkpoints::restore::fetch::Fetching;

/// The time limit for optional work on the directory's file system.
const AT_MOST: Duration = Duration::from_secs(5);

impl Mirror {
    /// Called while no process writes. Returns the reason if the last commit's version cannot be put back; then nothing was
    /// moved. Errors: as [`Mirror::restore`].
    pub(crate) async fn roll_back(&mut self, how: How) -> Result<Option<String>, Failure> {
        let rollback = self.watcher.after_death(how).await.map_err(|error| self.config.unusable(&error))?;
        self.watcher.dealt_with(rollback.unproven.clone());
        if rollback.to_torn.is_empty() && rollback.put_back.is_empty() && rollback.pointers.is_empty() {
            let last = self.watcher.last();
            self.watcher.begin(last).await.map_err(|error| self.config.unusable(&error))?;
            return Ok(None);
        }
        let items: Vec<Item> =
            rollback.put_back.iter().filter_map(|path| Some(self.sender.known.of_path(path)?.item.clone())).collect();
        let local = |error: io::Error| self.config.unusable(&error);
        let dir = self.in_dir(Ok).await.map_err(local)?;
        let scratch = ScratchDir::begin(&dir, TEMPORARY).await.map_err(local)?;
        if let Some(remote) = self.remote.as_ref().filter(|_| !items.is_empty()) {
            let wanted: Vec<&Item> = items.iter().filter(|item| !item.key.is_empty()).collect();
            self.listeners.begin(wanted.iter().map(|item| item.size).sum());
            let fetching =
                Fetching { store: &remote.store, dir: &dir, config: &self.config, listeners: &self.listeners };
            if let Err(refusal) = fetching.fetch(wanted, &scratch.files()).await {
                scratch.give_up(&dir).await;
                return match refusal {
                    Refusal::Fatal(failure) => Err(failure),
                    Refusal::Reject(why) => Ok(Some(why)),
                };
            }
        }
        let _turn = turn(&dir).await;
        let attempt = self.attempt().map_or("local".to_owned(), Attempt::to_string);
        let back = RollingBack { dir: Arc::clone(&dir), rollback, items, attempt };
        let (scratch_files, place) = (scratch.files(), Arc::clone(&dir));
        let done = blocking(move || {
            let moved = back.carry_out(&scratch_files);
            let removed = scratch.remove(&place);
            Ok((moved?, removed, back))
        });
        let (moved, removed, back) = done.await.map_err(|error| self.config.unusable(&error))?;
        if let Err(error) = removed {
            self.note(format!("cannot remove {TEMPORARY}: {error}; it takes up room"));
        }
        self.report_rolled_back(&back, &moved);
        let mut last = self.watcher.last();
        for entry in moved.entries {
            if let Some(last) = &mut last {
                last.entries.insert(entry.path.clone(), entry.clone());
            }
            self.sender.known.put_back(entry);
        }
        self.watcher.begin(last).await.map_err(|error| self.config.unusable(&error))?;
        self.write_record().await;
        Ok(None)
    }

    fn report_rolled_back(&self, back: &RollingBack, moved: &Moved) {
        let Some((first, why)) = back.rollback.to_torn.first() else { return };
        let first = and_more(first, back.rollback.to_torn.len());
        let then = match back.items.len() {
            0 => String::new(),
            _ => "; the last commit's version is put back".to_owned(),
        };
        self.note(format!(
            "{first} in {} may be half a save ({why}): kept in {}{then}; delete it when it is not needed",
            self.config.dir.display(),
            moved.place
        ));
    }

    /// Marks that an attempt is about to run, or that it has finished writing. Without the mark, a later start does not move
    /// incomplete files.
    pub(crate) async fn mark_unfinished(&self, is_unfinished: bool) {
        let (dir, path) = (self.config.dir.clone(), self.unfinished());
        let marked = blocking(move || {
            let dir = RootedDir::create(&dir)?;
            if is_unfinished { dir.replace(&path, b"", 0o644) } else { dir.remove_file(&path) }
        });
        let _ = tokio::time::timeout(AT_MOST, marked).await;
    }

    fn unfinished(&self) -> String {
        format!("{OWN}/unfinished-{:05}", self.config.node)
    }

    /// The time `ago` before now on the clock of the directory's file system, nanoseconds since 1970; `None`: it does not
    /// answer.
    pub(crate) async fn file_time(&self, ago: Duration) -> Option<i64> {
        let now = tokio::time::timeout(AT_MOST, self.in_dir(|dir| now(&dir))).await.ok()?.ok()?;
        now.checked_sub(i64::try_from(ago.as_nanos()).ok()?)
    }

    /// The state of the writer at a start: killed, if an attempt in this directory has not marked its end.
    pub(crate) async fn writer_before(&self) -> Writer {
        let path = self.unfinished();
        let mark = self.in_dir(move |dir| dir.look(&path)).await;
        if mark.is_ok_and(|mark| mark.is_some()) { Writer::Killed } else { Writer::Running }
    }
}

struct RollingBack {
    dir: Arc<RootedDir>,
    rollback: Rollback,
    items: Vec<Item>,
    attempt: String,
}

struct Moved {
    /// The directory of moved files.
    place: String,
    /// The entries of the files that were put back.
    entries: Vec<Entry>,
}

impl RollingBack {
    /// Errors: as rename(2).
    fn carry_out(&self, scratch: &str) -> io::Result<Moved> {
        let dir = &*self.dir;
        let place = free_place(dir, TORN, &self.attempt)?;
        move_away(dir, self.rollback.to_torn.iter().map(|(path, _)| path), &place)?;
        let mut entries = Vec::new();
        for item in &self.items {
            match &item.target {
                Some(target) => dir.replace_link(&item.path, target)?,
                None if item.key.is_empty() => dir.create_directory(&item.path)?,
                None => dir.rename(&format!("{scratch}/{}", item.path), &item.path)?,
            }
            entries.extend(dir.look(&item.path)?);
        }
        let is_back = |path: &String| self.items.iter().any(|item| item.path == *path);
        for (path, text) in self.rollback.pointers.iter().filter(|(path, _)| !is_back(path)) {
            dir.replace(path, text.as_bytes(), 0o644)?;
        }
        remove_superseded(dir, TORN)?;
        Ok(Moved { place, entries })
    }
}

//! Finds what to resume from: the directory, if it has the store's newest commit, or else that commit. No times are compared:
//! `.trainit/committed.json` names the last commit of the directory.
//!
//! A kill loses no local file, and the next restore starts again: files are fetched to `.trainit/tmp`, and local files that
//! differ are moved to `.trainit/aside`. Meanwhile there is no record, so the next restore uses the store.

use std::io;
use std::sync::Arc;

use crate::edge::fs::rooted_dir::RootedDir;
use crate::edge::transfer::blocking::blocking;
use crate::rules::checkpoint::{Committed, Entry, State};
use crate::supervisor::checkpoints::config::{Restore, Restoring, Role};
use crate::supervisor::checkpoints::directory::look::{How, walked};
use crate::supervisor::checkpoints::directory::record::{self, Record};
use crate::supervisor::checkpoints::failure::Failure;
use crate::supervisor::checkpoints::mirror::{LastCommit, Mirror, Resume};
use crate::supervisor::checkpoints::restore::choose::Which;

impl Mirror {
    /// Finds what to resume from and restores it, by `--restore` and `--restore-step`. Called before the first start of the
    /// trainer, when no process writes. `None`: there is nothing to resume. Errors: 204 for a required restore that fails;
    /// nothing local is deleted then.
    pub async fn restore(&mut self) -> Result<Option<Resume>, Failure> {
        let Restoring { what, step } = self.config.restoring;
        let record = self.read_record().await.map_err(|error| self.config.unusable(&error))?;
        let never = what == Restore::Never;
        match self.remote.clone().filter(|_| !never) {
            Some(remote) => {
                self.check_claim(&remote).await?;
                self.choose(&remote, Which::First(step), record.as_ref()).await?;
            }
            None => self.begin_with_directory(record).await?,
        }
        if !never {
            self.settle_after_death().await?;
        }
        if never {
            self.ignored = self.followed().await.ok();
        }
        // After a fetch the commit is complete, even if another restore has started.
        let resume = match never || self.fetched.is_none() && self.is_half_restored().await {
            true => None,
            false => self.local_resume().await?,
        };
        if resume.is_none()
            && let Ok(look) = self.watcher.look(How::AT_REST).await
        {
            self.seen.parts = look.parts;
        }
        let is_it = |resume: &Resume| step.is_none_or(|step| resume.step == Some(step));
        if !resume.as_ref().is_some_and(is_it) && (what == Restore::Required || step.is_some()) {
            return Err(self.no_checkpoint(step).await);
        }
        if self.config.role != Role::Watches && (self.config.claims() || resume.is_some()) {
            self.config.faults.point(28);
            self.write_record().await;
            self.config.faults.point(29);
        }
        Ok(resume)
    }

    /// Begins without the store. In a run without a store, files that exist at the start are not new.
    pub(crate) async fn begin_with_directory(&self, record: Option<Record>) -> Result<(), Failure> {
        let last = record.filter(|_| self.remote.is_none()).map(|record| record.committed);
        let is_new = last.is_none() && self.remote.is_none() && self.config.role == Role::Keeps;
        self.begin(last).await?;
        if is_new && let Some(plan) = self.watcher.look(How::AT_REST).await.ok().and_then(|look| look.plan) {
            self.watcher.committed(&plan);
        }
        Ok(())
    }

    /// Whether a restore was interrupted, so that the directory may mix two checkpoints.
    pub(crate) async fn is_half_restored(&self) -> bool {
        let is_half = self.in_dir(|dir| Ok(record::is_half_restored(&dir))).await.unwrap_or(false);
        if is_half {
            self.note(format!(
                "a restore into {} was interrupted, and the directory may mix two checkpoints: the run does not resume from it; restore it again from its store",
                self.config.dir.display()
            ));
        }
        is_half
    }

    /// Moves away files that a kill before this start may have left incomplete.
    pub(crate) async fn settle_after_death(&mut self) -> Result<(), Failure> {
        if self.config.role == Role::Watches || self.config.is_by_hand() {
            return Ok(());
        }
        let how = How { writer: self.writer_before().await, settle: self.config.settle, died_ns: None };
        match self.roll_back(how).await? {
            None => Ok(()),
            Some(why) => Err(Failure::store(format!(
                "what was being saved when the command was killed cannot be put back from the last commit: {why}; {}; repair the store, or start with --restore none",
                self.config.nothing_done()
            ))),
        }
    }

    /// Finds where the next attempt of the same run resumes. Errors: as [`Mirror::restore`].
    pub(crate) async fn restore_again(&mut self, how: How) -> Result<Option<Resume>, Failure> {
        let is_spoilt = self.roll_back(how).await?.is_some();
        let resume = match is_spoilt || self.remote.is_some() && self.lacks_the_newest().await? {
            true => None,
            false => self.local_resume().await?,
        };
        if self.has_only_ignored_files().await {
            return Ok(None);
        }
        match (resume, self.remote.clone()) {
            (None, Some(remote)) => {
                self.check_claim(&remote).await?;
                self.choose(&remote, Which::Later, None).await?;
                self.write_record().await;
                self.local_resume().await
            }
            (resume, _) => Ok(resume),
        }
    }

    /// Restores the next older commit while no process writes. `None`: there is none, and nothing was changed. The bad commit
    /// is not deleted: a note about it is written to the store. Errors: as [`Mirror::restore`].
    pub async fn fall_back(&mut self) -> Result<Option<Resume>, Failure> {
        let (Some(remote), Some(bad)) = (self.remote.clone(), self.last.clone()) else { return Ok(None) };
        self.history.bad.push(bad.stamp.clone());
        self.choose(&remote, Which::Older, None).await?;
        let is_older = |last: &LastCommit| last.stamp < bad.stamp;
        if !self.last.as_ref().is_some_and(is_older) {
            self.history.bad.retain(|stamp| *stamp != bad.stamp);
            return Ok(None);
        }
        let note = serde_json::json!({"step": bad.step, "why": "the trainer failed twice soon after resuming from it"});
        if let Err(error) = remote.store.create(&bad.stamp.bad_key(), note.to_string().into_bytes()).await {
            self.note(format!("{error}; the note about commit {} is not written", bad.stamp));
        }
        self.write_record().await;
        self.local_resume().await
    }

    /// Whether a run from scratch has written no files of its own yet.
    pub(crate) async fn has_only_ignored_files(&self) -> bool {
        let (Some(before), Ok(now)) = (&self.ignored, self.followed().await) else { return false };
        let is_old = |file: &Entry| before.get(&file.path).is_some_and(|then| then.same_bytes(file));
        now.files().next().is_some() && now.files().all(is_old)
    }

    pub(crate) async fn lacks_the_newest(&self) -> Result<bool, Failure> {
        self.watcher.lacks_the_newest().await.map_err(|error| self.config.unusable(&error))
    }

    pub(crate) async fn read_record(&self) -> io::Result<Option<Record>> {
        let (dir, options) = (self.config.dir.clone(), Arc::clone(&self.config.options));
        let (store, node) = (self.recorded_store(), self.config.node);
        let record = blocking(move || {
            let listing = walked(&dir, &options)?;
            Ok(RootedDir::open(&dir).ok().and_then(|dir| record::read(&dir, store.as_ref(), node, &listing)))
        });
        let record = record.await?;
        record.iter().for_each(|record| self.watcher.recorded(record));
        Ok(record)
    }

    pub(crate) async fn begin(&self, last: Option<Committed>) -> Result<(), Failure> {
        self.watcher.begin(last).await.map_err(|error| self.config.unusable(&error))
    }

    pub(crate) async fn local_resume(&self) -> Result<Option<Resume>, Failure> {
        let found = self.watcher.resume().await.map_err(|error| self.config.unusable(&error))?;
        let Some(found) = found else { return Ok(None) };
        let home = self.config.home();
        // A save after the commit is not the commit and has another step.
        let last = match &self.last {
            Some(last) if self.is_as_committed().await => Some(last),
            _ => None,
        };
        let step = found.step.or_else(|| last.and_then(|last| last.step));
        let from = found.unit.filter(|unit| !unit.is_empty()).map_or_else(|| home.clone(), |unit| home.join(unit));
        Ok(Some(Resume { from, step, commit: last.map(|last| last.stamp.clone()) }))
    }

    /// Whether the directory has no change since the last commit.
    pub(crate) async fn is_as_committed(&self) -> bool {
        let look = self.watcher.look(How::AT_REST).await;
        look.is_ok_and(|look| look.parts.iter().all(|part| matches!(part.state, State::Committed | State::Empty)))
    }
}

//! Finds what to resume from: the directory, if it took part in the store's newest commit, or else that
//! commit. No times are compared: `.trainit/committed.json` says which commit the directory has seen.
//!
//! Killed anywhere, nothing local is lost, and the next restore begins again: files come into `.trainit/tmp`, what differs is
//! moved to `.trainit/aside`, and while that is under way there is no record, so that the store wins again.

use std::io;
use std::sync::Arc;

use crate::edge::fs::rooted_dir::Beneath;
use crate::edge::transfer::blocking::blocking;
use crate::rules::checkpoint::{Committed, Entry, State};
use crate::supervisor::checkpoints::config::{Restore, Restoring, Role};
use crate::supervisor::checkpoints::directory::look::{How, walked};
use crate::supervisor::checkpoints::directory::record::{self, Record};
use crate::supervisor::checkpoints::failure::Failure;
use crate::supervisor::checkpoints::mirror::{LastCommit, Mirror, Resume};
use crate::supervisor::checkpoints::restore::choose::Which;

impl Mirror {
    /// Finds what to resume from and restores it, as `--restore` and `--restore-step` say. To be asked before the first start
    /// of the trainer, when no process writes. `None`: there is nothing to resume. Errors: 204 for a needed restore that cannot be
    /// done; nothing local is deleted then.
    pub async fn restore(&mut self) -> Result<Option<Resume>, Failure> {
        let Restoring { what, step } = self.config.restoring;
        let record = self.read_record().await.map_err(|error| self.config.unusable(&error))?;
        let never = what == Restore::Never;
        match self.remote.clone().filter(|_| !never) {
            Some(remote) => {
                self.still_ours(&remote).await?;
                self.choose(&remote, Which::First(step), record.as_ref()).await?;
            }
            None => self.begin_with_what_lies_here(record).await?,
        }
        if !never {
            self.settle_after_death().await?;
        }
        if never {
            self.ignored = self.followed().await.ok();
        }
        // The commit that this restore put in place is complete, whatever another restore does there by now.
        let resume = match never || self.fetched.is_none() && self.is_half_restored().await {
            true => None,
            false => self.resume_here().await?,
        };
        let is_it = |resume: &Resume| step.is_none_or(|step| resume.step == Some(step));
        if !resume.as_ref().is_some_and(is_it) && (what == Restore::Required || step.is_some()) {
            return Err(self.nothing_there(step).await);
        }
        if self.config.role != Role::Watches && (self.config.claims() || resume.is_some()) {
            self.config.faults.point(28);
            self.write_record().await;
            self.config.faults.point(29);
        }
        Ok(resume)
    }

    /// The store is not asked. Without a store, the files that are there at the start are not new.
    pub(crate) async fn begin_with_what_lies_here(&self, record: Option<Record>) -> Result<(), Failure> {
        let last = record.filter(|_| self.remote.is_none()).map(|record| record.committed);
        let is_new = last.is_none() && self.remote.is_none() && self.config.role == Role::Keeps;
        self.begin(last).await?;
        if is_new && let Some(plan) = self.watcher.look(How::AT_REST).await.ok().and_then(|look| look.plan) {
            self.watcher.committed(&plan);
        }
        Ok(())
    }

    /// Whether a restore from another store was cut short there, so that the directory is half of one checkpoint and half
    /// of another.
    pub(crate) async fn is_half_restored(&self) -> bool {
        let is_half = self.in_dir(|dir| Ok(record::is_half_restored(&dir))).await.unwrap_or(false);
        if is_half {
            self.note(format!(
                "a restore into {} was cut short, and what lies there may be half of one checkpoint and half of another: it is not gone on from; restore it again from its store",
                self.config.dir.display()
            ));
        }
        is_half
    }

    /// Moves away what a death before this start may have left half written.
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

    /// Where the next attempt of the same run goes on, after a death and a commit of what it left. Errors: as
    /// [`Mirror::restore`].
    pub(crate) async fn restore_again(&mut self, how: How) -> Result<Option<Resume>, Failure> {
        let is_spoilt = self.roll_back(how).await?.is_some();
        let resume = match is_spoilt || self.remote.is_some() && self.lacks_the_newest().await? {
            true => None,
            false => self.resume_here().await?,
        };
        if self.has_only_what_was_there().await {
            return Ok(None);
        }
        match (resume, self.remote.clone()) {
            (None, Some(remote)) => {
                self.still_ours(&remote).await?;
                self.choose(&remote, Which::Later, None).await?;
                self.write_record().await;
                self.resume_here().await
            }
            (resume, _) => Ok(resume),
        }
    }

    /// Puts the next older commit in place, to be asked when no process writes. `None`: there is none, and nothing was
    /// changed. The one that does no good is never deleted: a note is written beside it in the store. Errors: as [`Mirror::restore`].
    pub async fn fall_back(&mut self) -> Result<Option<Resume>, Failure> {
        let (Some(remote), Some(bad)) = (self.remote.clone(), self.last.clone()) else { return Ok(None) };
        self.history.bad.push(bad.stamp.clone());
        self.choose(&remote, Which::Older, None).await?;
        let is_older = |last: &LastCommit| last.stamp < bad.stamp;
        if !self.last.as_ref().is_some_and(is_older) {
            self.history.bad.retain(|stamp| *stamp != bad.stamp);
            return Ok(None);
        }
        let note = serde_json::json!({"step": bad.step, "why": "the trainer failed twice soon after going on from it"});
        if let Err(error) = remote.store.create(&bad.stamp.bad_key(), note.to_string().into_bytes()).await {
            self.note(format!("{error}; the note about commit {} is not written", bad.stamp));
        }
        self.write_record().await;
        self.resume_here().await
    }

    /// Whether a run from scratch finds nothing but what lay there before it.
    pub(crate) async fn has_only_what_was_there(&self) -> bool {
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
        blocking(move || {
            let listing = walked(&dir, &options)?;
            Ok(Beneath::open(&dir).ok().and_then(|dir| record::read(&dir, store.as_ref(), node, &listing)))
        })
        .await
    }

    pub(crate) async fn begin(&self, last: Option<Committed>) -> Result<(), Failure> {
        self.watcher.begin(last).await.map_err(|error| self.config.unusable(&error))
    }

    /// What to resume from in the directory as it is.
    pub(crate) async fn resume_here(&self) -> Result<Option<Resume>, Failure> {
        let found = self.watcher.resume().await.map_err(|error| self.config.unusable(&error))?;
        let Some(found) = found else { return Ok(None) };
        let home = self.config.home();
        // What was saved since the commit is not of it, and the heartbeat's step is the commit's alone.
        let last = match &self.last {
            Some(last) if self.is_as_committed().await => Some(last),
            _ => None,
        };
        let step = found.step.or_else(|| last.and_then(|last| last.step));
        let from = found.unit.filter(|unit| !unit.is_empty()).map_or_else(|| home.clone(), |unit| home.join(unit));
        Ok(Some(Resume { from, step, commit: last.map(|last| last.stamp.clone()) }))
    }

    /// Whether the directory is as the last commit has it.
    pub(crate) async fn is_as_committed(&self) -> bool {
        let look = self.watcher.look(How::AT_REST).await;
        look.is_ok_and(|look| look.parts.iter().all(|part| matches!(part.state, State::Committed | State::Empty)))
    }
}

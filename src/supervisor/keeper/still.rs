//! What is to be committed lies still; and what goes along with it (`last.ckpt` beside `step=30.ckpt`), which is written over
//! again and again, holds nothing up: it is taken as it is when the checkpoint has lain still, or left for the next commit.

use std::collections::HashSet;
use std::time::Duration;

use super::commit::Outcome;
use super::look::{Local, same_bytes};
use super::mirror::{Mirror, blocking};
use super::send::Stop;
use crate::edge::writers;
use crate::rules::checkpoint::plan::Age;
use crate::rules::checkpoint::{Entry, Kind};

impl Local {
    /// Its regular files, and those that go along with it.
    pub(super) fn files(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().chain(&self.along).filter(|entry| entry.kind == Kind::File)
    }

    /// How new it is with what goes along with it.
    pub(super) fn age_in_all(&self) -> Age {
        let newest_ns = self.along.iter().map(|entry| entry.mtime_ns).fold(self.age.newest_ns, i64::max);
        Age { newest_ns, ..self.age }
    }
}

impl Mirror {
    /// Whether the store holds this one with what goes along with it, or a newer.
    pub(super) fn holds(&self, local: &Local) -> bool {
        self.committed.as_ref().is_some_and(|committed| {
            let is_there =
                |entry: &Entry| committed.along.iter().any(|there| there.path == entry.path && there.same_bytes(entry));
            // What went along may be under the trainer's hands now.
            self.holds_alone(local) && local.along.iter().all(is_there)
                || !committed.is_before(&local.candidate.unit, local.age)
        })
    }

    /// Whether the store holds this one, whatever goes along with it.
    pub(super) fn holds_alone(&self, local: &Local) -> bool {
        self.committed.as_ref().is_some_and(|committed| same_bytes(&committed.entries, &local.entries))
    }

    /// Where time is short, the checkpoint first, and then, if there is time left, what goes along with it.
    pub(super) async fn commit_within(
        &mut self,
        limit: Duration,
        settle: Option<Duration>,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Outcome, Stop> {
        let begun = self.clock.now();
        let first = match tokio::time::timeout(limit, self.try_commit(settle, limit.into(), progress)).await {
            Ok(done) => done?,
            Err(_) => return self.cut_short(limit).await,
        };
        let is_more = std::mem::take(&mut self.is_more_to_come) && matches!(first, Outcome::Committed { .. });
        let left = limit.saturating_sub(self.clock.now().saturating_sub(begun));
        if !is_more {
            return Ok(first);
        }
        match tokio::time::timeout(left, self.try_commit(settle, left.into(), progress)).await {
            Ok(Ok(second @ Outcome::Committed { .. })) => Ok(second),
            Ok(Err(Stop::Fenced(by))) => Err(Stop::Fenced(by)),
            Ok(Ok(_)) => Ok(first),
            _ => {
                self.let_go(true).await;
                Ok(first)
            }
        }
    }

    /// Waits until it has lain unchanged for `settle`, counting from the first look that saw it so, and nobody has it
    /// open for writing; `None`: nobody can write any more.
    pub(super) async fn settled(&mut self, mut local: Local, settle: Option<Duration>) -> Result<Local, Stop> {
        let Some(settle) = settle else { return Ok(local) };
        let now = self.clock.now();
        let since = match self.seen.take() {
            Some((entries, since)) if entries == local.entries => since,
            _ => now,
        };
        self.seen = Some((local.entries.clone(), since));
        if settle > now.saturating_sub(since) {
            self.haste.wait(settle, || self.clock.now().saturating_sub(since)).await;
            if self.haste.is_over() {
                return Err(Stop::Changed("the command came to its end before it had lain still".to_owned()));
            }
            // A newer one may have come meanwhile: this one is safe first, or none ever would be where saves come fast.
            let unit = &local.candidate.unit;
            match self.entries_of(unit).await.map_err(|error| self.unreadable(&error))? {
                Some((entries, along)) if entries == local.entries => local.along = along,
                Some(_) => return Err(Stop::Changed(format!("{unit} is still being written"))),
                None => return Err(Stop::Changed(format!("{unit} was deleted before it had lain still"))),
            }
        }
        if let Some(who) = writer_of(&local.entries).await {
            return Err(Stop::Changed(format!("{} is being written by {who}", local.candidate.unit)));
        }
        if writer_of(&local.along).await.is_some() {
            local.along.clear();
        }
        Ok(local)
    }
}

/// Who has one of the files open for writing.
async fn writer_of(entries: &[Entry]) -> Option<String> {
    let files = entries.iter().filter(|e| e.kind == Kind::File).map(|e| (e.device, e.inode));
    let files: HashSet<_> = files.collect();
    if files.is_empty() {
        return None;
    }
    blocking(move || Ok(writers::writer_of(&files))).await.ok().flatten()
}

/// What goes along and changed under our hands is left out.
pub(super) fn unless_changed<T>(done: Result<T, Stop>) -> Result<Option<T>, Stop> {
    match done {
        Err(Stop::Changed(_)) => Ok(None),
        done => done.map(Some),
    }
}

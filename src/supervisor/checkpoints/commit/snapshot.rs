//! Commits a snapshot of the checkpoint directory: data first, the manifest last, each key written once. After a kill at any
//! time the store holds either the old commits, or also the complete new one.

use std::time::Duration;

use crate::edge::store::Trouble;
use crate::rules::checkpoint::{Entry, Look, Plan, Writer};
use crate::rules::job::{Event, Mirrored};
use crate::rules::store::names::{Attempt, Stamp};
use crate::rules::text::safe_text::and_more;
use crate::supervisor::checkpoints::commit::hard_links::unlink;
use crate::supervisor::checkpoints::commit::outcome::{Ask, Outcome, held_back, log_first, waiting};
use crate::supervisor::checkpoints::commit::publish::{content_of, sample};
use crate::supervisor::checkpoints::config::Role;
use crate::supervisor::checkpoints::directory::disk::HARD_LINKS;
use crate::supervisor::checkpoints::failure::{Stop, way_out};
use crate::supervisor::checkpoints::mirror::Mirror;
use crate::supervisor::checkpoints::store::claim::Remote;
use crate::supervisor::checkpoints::store::commits::delete_all;
use crate::supervisor::checkpoints::store::fence::AT_ONCE;

/// After the time limit: how long to wait for the store to say whether the commit exists.
const FINAL_CHECK: Duration = Duration::from_millis(200);
/// A shorter time limit is not mentioned.
const MOMENT: Duration = Duration::from_millis(100);
/// So many copies in a row that were spoilt by a change cause a warning.
const MANY_CHANGES: u32 = 3;
/// Smaller commits do not measure the store's throughput.
const MEASURED_BYTES: u64 = 1 << 20;

impl Mirror {
    /// Commits what is new and ready. Calls `progress` with the bytes done and the bytes in all.
    pub async fn commit(&mut self, ask: &Ask, progress: &dyn Fn(u64, u64)) -> Outcome {
        let done = match ask.limit {
            None => match self.try_commit(ask, progress).await {
                // The store is full: delete what retention does not keep, then retry.
                Err(Stop::Store(error)) if error.trouble == Trouble::Full && self.make_room().await => {
                    self.try_commit(ask, progress).await
                }
                done => done,
            },
            Some(limit) => match tokio::time::timeout(limit, self.try_commit(ask, progress)).await {
                Ok(done) => done,
                Err(_) => self.cut_short(limit).await,
            },
        };
        if done.is_err() {
            self.sender.known.distrust();
            // Hard links keep the space of files that the framework deletes.
            let _ = tokio::time::timeout(ask.limit.map_or(Duration::MAX, |_| FINAL_CHECK), self.unlink_all()).await;
        }
        let again = done.as_ref().is_err_and(Stop::may_pass);
        match done {
            Ok(outcome) => outcome,
            // Another run in the same directory removes these hard links, which looks like a change.
            Err(Stop::Changed(why)) => match self.overtaken().await {
                Some(by) => Outcome::Fenced { by },
                None => {
                    self.sender.changes += 1;
                    if self.sender.changes == MANY_CHANGES {
                        tracing::warn!(
                            code = "checkpoint_keeps_changing",
                            "{why}, and so did the last {MANY_CHANGES} saves that were sent: it is saved over faster than it can be copied; {}; save less often, or under a new name",
                            self.last_commit_clause()
                        );
                    }
                    Outcome::Changed { why }
                }
            },
            Err(Stop::Fenced(by)) => Outcome::Fenced { by },
            Err(Stop::OutOfTime(why)) => Outcome::OutOfTime { why },
            Err(Stop::Store(error)) => {
                let message = format!("{error}; it is not committed; earlier commits remain; {}", way_out(&error));
                self.failed(message, error.trouble, again).await
            }
            Err(Stop::Lost(message) | Stop::Failed(message)) => self.failed(message, Trouble::Other, again).await,
        }
    }

    /// Checks for a newer run: its retention deletes shared files, which looks like a store that lost them.
    async fn failed(&self, message: String, trouble: Trouble, again: bool) -> Outcome {
        let is_away = trouble.may_pass();
        let failed = Outcome::Failed { message, is_away, again, cause: trouble.word() };
        let overtaken = tokio::time::timeout(AT_ONCE, self.overtaken());
        let by = if is_away { None } else { overtaken.await.ok().flatten() };
        by.map_or(failed, |by| Outcome::Fenced { by })
    }

    async fn overtaken(&self) -> Option<Attempt> {
        self.remote.as_ref()?.overtaken().await
    }

    async fn make_room(&self) -> bool {
        match &self.remote {
            Some(remote) => self.retiring.make_room(remote, self.history.parent.as_ref()).await,
            None => false,
        }
    }

    async fn try_commit(&mut self, ask: &Ask, progress: &dyn Fn(u64, u64)) -> Result<Outcome, Stop> {
        let (clock, begun) = (self.clock, self.clock.now());
        let left = || ask.limit.map(|limit| limit.saturating_sub(clock.now().saturating_sub(begun)));
        let mut look = self.watcher.look(ask.how).await.map_err(|error| self.config.unreadable(&error))?;
        self.note_look(&look);
        if self.config.role == Role::Pushes {
            let passed = self.watcher.passed_over().await.map_err(|error| self.config.unreadable(&error))?;
            self.seen.parts.extend(passed);
        }
        let Some(remote) = self.remote.clone().filter(|remote| remote.claim.is_some()) else {
            return Ok(self.commit_locally(look).await);
        };
        let concluded = self.complete_earlier(&remote).await?;
        if concluded.is_some() {
            look = self.watcher.look(ask.how).await.map_err(|error| self.config.unreadable(&error))?;
            self.note_look(&look);
        }
        let Some(plan) = look.plan else {
            if let Some(concluded) = concluded {
                return Ok(concluded);
            }
            remote.check_not_fenced(left()).await?;
            let step = self.last.as_ref().and_then(|last| last.step);
            return Ok(match waiting(&look) {
                Some(why) => Outcome::Waiting { why, again: look.again },
                None => {
                    self.waits(None);
                    if self.last.is_some() { Outcome::UpToDate { step } } else { Outcome::Empty }
                }
            });
        };
        let since = self.seen.waiting.map_or(begun, |(_, since)| since);
        self.waits(Some((plan.step, since)));
        let bytes = self.bytes_to_send(&plan);
        if let Some(left) = left() {
            self.check_time_left(bytes, left)?;
        }
        self.report_unfit().await;
        self.report_older(&plan);
        if self.last.is_none() && self.sender.seq == 0 {
            log_first(&plan);
        }
        let sending = self.clock.now();
        // The rate limit applies while a trainer runs and there is no time limit.
        let is_training = ask.how.writer == Writer::Running && ask.limit.is_none();
        self.sender.seq += 1;
        self.sender.uncommitted.take();
        let (sent, links) = match self.upload(&remote, &plan, bytes, is_training, progress).await {
            Err(stop) if ask.limit.is_none() => {
                let _ = delete_all(&remote.store, &self.sender.uncommitted.take(), || {}).await;
                return Err(stop);
            }
            uploaded => uploaded?,
        };
        // From here on a manifest may name these keys.
        self.sender.uncommitted.take();
        let within = self.links_place();
        if let Err(error) = self.in_dir(move |dir| links.remove(&dir, &within)).await {
            self.note(format!("cannot remove {HARD_LINKS}: {error}"));
        }
        let done = self.publish(&remote, plan, sent, (since, sending)).await?;
        let seconds = self.clock.now().saturating_sub(sending).as_secs_f64();
        let is_capped = is_training && self.config.pace.lock().is_ok_and(|pace| pace.is_capped());
        if bytes >= MEASURED_BYTES && !is_capped {
            self.sender.throughput = Some(bytes as f64 / seconds.max(0.001));
        }
        Ok(done)
    }

    /// Reports the complete checkpoints that the commit leaves out, when there are others than at the commit before.
    fn report_older(&mut self, plan: &Plan) {
        let newest = plan.older.first().filter(|newest| Some(*newest) != self.seen.older.as_ref());
        if let Some(newest) = newest {
            let older = and_more(newest, plan.older.len());
            tracing::info!("older checkpoints are left out of the commit: {older}; --keep-saves N keeps more");
        }
        self.seen.older = plan.older.first().cloned();
    }

    /// Reports each path once that cannot be committed and that no pattern excludes: a socket, a name that is not UTF-8, a link
    /// that leads out of the directory.
    async fn report_unfit(&mut self) {
        let exclusions = &self.config.options.exclusions;
        for (path, why) in self.watcher.excluded().await.unwrap_or_default() {
            if exclusions.decide(&path).is_none() && self.seen.unfit.insert(path.clone()) {
                self.note(format!("{path} is NOT committed: {why}; a restore brings the checkpoint back without it"));
            }
        }
    }

    /// Without a store: parts that are ready count as committed.
    async fn commit_locally(&mut self, look: Look) -> Outcome {
        let Some(plan) = look.plan else {
            return waiting(&look).map_or(Outcome::Empty, |why| Outcome::Waiting { why, again: look.again });
        };
        let last = self.watcher.last().unwrap_or_default().entries;
        let is_new = |entry: &&Entry| last.get(&entry.path).is_none_or(|old| !old.same_bytes(entry));
        let new: Vec<Entry> = content_of(&plan).filter(is_new).cloned().collect();
        let read = self.in_dir(move |dir| Ok(new.iter().flat_map(|entry| sample(&dir, entry)).collect::<Vec<_>>()));
        let read = read.await.unwrap_or_default();
        let is_progress = self.history.novelty.is_progress(plan.step, read.into_iter());
        self.history.is_further |= is_progress && plan.is_new_content;
        self.watcher.committed(&plan);
        self.write_record().await;
        Outcome::UpToDate { step: plan.step }
    }

    /// Records the result of a look, for the log and for `checkpoint explain`.
    fn note_look(&mut self, look: &Look) {
        self.seen.parts.clone_from(&look.parts);
        self.seen.uncommitted.clone_from(&look.uncommitted);
        if look.plan.is_none() && waiting(look).is_some() {
            let since = self.seen.waiting.map_or_else(|| self.clock.now(), |(_, since)| since);
            self.waits(Some((look.newest_step, since)));
        }
        if let Some(warning) = &look.warning {
            tracing::warn!(code = "checkpoint_passed_over", "{warning}; {}", self.last_commit_clause());
        }
    }

    /// Errors: at the last throughput the commit needs more time than is left.
    fn check_time_left(&self, bytes: u64, left: Duration) -> Result<(), Stop> {
        let needed = self.sender.throughput.map_or(0.0, |throughput| bytes as f64 / throughput.max(1.0));
        if needed <= left.as_secs_f64() {
            return Ok(());
        }
        Err(Stop::OutOfTime(format!(
            "the newest checkpoint needs about {needed:.1} s to commit and {:.1} s are left: not started; {}",
            left.as_secs_f64(),
            self.last_commit_clause()
        )))
    }

    /// The time limit passed, but the store may have received the manifest.
    async fn cut_short(&mut self, limit: Duration) -> Result<Outcome, Stop> {
        if let (Some(remote), Some(unconfirmed)) = (self.remote.clone(), self.sender.unconfirmed.clone()) {
            let concluded = async {
                if let Ok(Some(true)) = remote.store.holds(&unconfirmed.name.key(), &unconfirmed.text).await {
                    // A newer checkpoint may be in the directory.
                    let _ = self.conclude(&remote, &unconfirmed).await;
                }
            };
            let _ = tokio::time::timeout(FINAL_CHECK, concluded).await;
        }
        Err(Stop::OutOfTime(format!(
            "no time left{} to commit the newest checkpoint; {}",
            if limit < MOMENT { String::new() } else { format!(" after {:.1} s", limit.as_secs_f64()) },
            self.last_commit_clause()
        )))
    }

    pub(crate) fn stamp(&self, remote: &Remote) -> Result<Stamp, Stop> {
        let attempt = remote.attempt().ok_or_else(|| Stop::Failed("no --checkpoint-store is set".to_owned()))?;
        Ok(Stamp { attempt: attempt.clone(), seq: self.sender.seq })
    }

    /// Removes the hard links of a failed commit.
    async fn unlink_all(&self) {
        let within = self.links_place();
        let _ = self.in_dir(move |dir| unlink(&dir, &within)).await;
    }

    /// Deletes the data of an interrupted commit. Returns whether its manifest may exist.
    pub async fn take_back(&self) -> bool {
        self.unlink_all().await;
        if let Some(remote) = &self.remote {
            remote.store.wait_for_aborts().await;
            // No manifest names these keys. A prune finds what is left.
            let _ = delete_all(&remote.store, &self.sender.uncommitted.take(), || {}).await;
        }
        self.sender.unconfirmed.is_some()
    }

    /// Records new content that is not in the store: its step, and since when. `None`: there is none.
    pub(crate) fn waits(&mut self, waiting: Option<(Option<u64>, Duration)>) {
        self.seen.waiting = waiting;
        let steps = self.behind().map_or(Some(0), |(steps, _)| steps);
        self.listeners.emit(Event::Mirrored(Mirrored::Behind(steps)));
    }

    /// How far the store was behind the directory at the last look: steps, if known, and for how long. `None`: not at all.
    pub(crate) fn behind(&self) -> Option<(Option<u64>, Duration)> {
        let (step, since) = self.seen.waiting?;
        let committed = self.last.as_ref().and_then(|last| last.step);
        let steps = step.map(|step| step.saturating_sub(committed.unwrap_or(0)));
        Some((steps, self.clock.now().saturating_sub(since)))
    }

    /// New content that was not in the store at the last look: one clause for each part.
    pub fn left_out(&self) -> Vec<String> {
        let held = self.seen.parts.iter().filter_map(|part| held_back(&part.state)).map(str::to_owned);
        let mut left_out: Vec<String> = held.collect();
        if left_out.is_empty() {
            left_out.extend(self.seen.uncommitted.iter().map(|path| format!("{path} differs from the commit")));
        }
        left_out
    }
}

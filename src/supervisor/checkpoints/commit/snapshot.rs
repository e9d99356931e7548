//! Commits a snapshot of the checkpoint directory: data first, the manifest last, each key written once. After a kill at any
//! time the store holds either the old commits, or also the complete new one.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crate::edge::clock;
use crate::edge::store::{Created, Trouble};
use crate::rules::checkpoint::{Look, PartRecord, Plan, Writer};
use crate::rules::job::{Event, Mirrored};
use crate::rules::store::manifest::{Item, Manifest, SCHEMA, WHOLE};
use crate::rules::store::names::{Attempt, CommitName, Stamp, stamp_of_data};
use crate::rules::text::safe_text::and_more;
use crate::supervisor::checkpoints::commit::dedup::{Known, Sent};
use crate::supervisor::checkpoints::commit::hard_links::unlink;
use crate::supervisor::checkpoints::commit::outcome::{Ask, Outcome, held_back, log_first, waiting};
use crate::supervisor::checkpoints::config::Role;
use crate::supervisor::checkpoints::directory::disk::HARD_LINKS;
use crate::supervisor::checkpoints::failure::{Stop, way_out};
use crate::supervisor::checkpoints::mirror::{LastCommit, Mirror};
use crate::supervisor::checkpoints::store::claim::Remote;
use crate::supervisor::checkpoints::store::commits::{delete_all, verify};
use crate::supervisor::checkpoints::store::fence::{AT_ONCE, shared};
use crate::supervisor::checkpoints::store::retention::data_of;

/// After the time limit: how long to wait for the store to say whether the commit exists.
const FINAL_CHECK: Duration = Duration::from_millis(200);
/// A shorter time limit is not mentioned.
const MOMENT: Duration = Duration::from_millis(100);
/// Smaller commits do not measure the store's throughput.
const MEASURED_BYTES: u64 = 1 << 20;
/// The framework of a snapshot that is resumed from as a whole.
const TREE: &str = "tree";

/// A commit whose manifest was sent.
#[derive(Debug)]
pub(crate) struct Unconfirmed {
    name: CommitName,
    manifest: Manifest,
    /// The manifest's bytes.
    text: Vec<u8>,
    plan: Plan,
    sent: Vec<Sent>,
    /// When it was ready.
    since: Duration,
    begun: Duration,
}

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
                None => Outcome::Changed { why },
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
        self.watcher.committed(&plan);
        self.history.is_further |= plan.is_new_content;
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

    /// Puts the manifest, which makes the commit. `since` and `begun`: when it was ready, and when the upload began.
    async fn publish(
        &mut self,
        remote: &Remote,
        plan: Plan,
        sent: Vec<Sent>,
        (since, begun): (Duration, Duration),
    ) -> Result<Outcome, Stop> {
        let stamp = self.stamp(remote)?;
        let cannot = |why: String| Stop::Failed(format!("cannot commit the checkpoint: {why}"));
        let text = self.manifest(&plan, &stamp, &sent).bytes().map_err(cannot)?;
        let name = CommitName::of(stamp, plan.step, &text);
        // A manifest that a restore would refuse is not committed.
        let manifest = Manifest::read(&name, &text).map_err(cannot)?;
        let unconfirmed = Arc::new(Unconfirmed { name, manifest, text, plan, sent, since, begun });
        self.sender.unconfirmed = Some(Arc::clone(&unconfirmed));
        self.config.faults.point(8);
        let done = self.put_manifest(remote, &unconfirmed).await?;
        let key = unconfirmed.name.key();
        done.ok_or_else(|| Stop::Failed(format!("{key} of another process is in the store already")))
    }

    /// Completes a commit whose manifest may be in the store, so that it does not appear twice.
    async fn complete_earlier(&mut self, remote: &Remote) -> Result<Option<Outcome>, Stop> {
        let Some(unconfirmed) = self.sender.unconfirmed.clone() else { return Ok(None) };
        remote.fence(self.last.as_ref().map(|last| &last.stamp), &self.sender.uncommitted).await?;
        match verify(&remote.store, unconfirmed.manifest.regular()).await {
            Ok(()) => self.put_manifest(remote, &unconfirmed).await,
            Err(Stop::Lost(_)) => {
                self.sender.unconfirmed = None;
                Ok(None)
            }
            Err(stop) => Err(stop),
        }
    }

    /// `None`: another process's object has this key.
    async fn put_manifest(&mut self, remote: &Remote, unconfirmed: &Unconfirmed) -> Result<Option<Outcome>, Stop> {
        if remote.store.create(&unconfirmed.name.key(), unconfirmed.text.clone()).await? == Created::Taken {
            self.sender.unconfirmed = None;
            return Ok(None);
        }
        self.config.faults.point(9);
        remote.confirm_manifest(&unconfirmed.name, &unconfirmed.text).await?;
        self.conclude(remote, unconfirmed).await.map(Some)
    }

    /// Makes a commit that the store holds the last one, or deletes it if its shared files may be lost.
    async fn conclude(&mut self, remote: &Remote, unconfirmed: &Unconfirmed) -> Result<Outcome, Stop> {
        let Unconfirmed { name, manifest, plan, sent, since, begun, .. } = unconfirmed;
        if let Some(by) = remote.find_newer_run(name, manifest).await {
            self.take_down(remote, name, manifest).await?;
            return Err(Stop::Fenced(by));
        }
        let is_foreign =
            |item: &&Item| stamp_of_data(&item.key).is_some_and(|stamp| stamp.attempt != name.stamp.attempt);
        // An earlier run may have deleted shared files until it found this claim.
        if let Err(stop) = verify(&remote.store, manifest.regular().filter(is_foreign)).await {
            self.take_down(remote, name, manifest).await?;
            return Err(stop);
        }
        self.sender.known = Known::new(sent.clone());
        self.last = Some(LastCommit::of(name, plan.step));
        self.history.known.push(name.stamp.clone());
        self.watcher.committed(plan);
        self.retiring.is_due = true;
        self.waits(None);
        self.write_record().await;
        // Last, so that a commit that was cut off above is concluded again.
        self.sender.unconfirmed = None;
        Ok(Outcome::Committed {
            step: plan.step,
            unit: plan.resume.unit.clone().unwrap_or_else(|| WHOLE.to_owned()),
            bytes: manifest.total_bytes,
            seconds: self.clock.now().saturating_sub(*begun).as_secs_f64(),
            lag: self.clock.now().saturating_sub(*since).as_secs_f64(),
            is_progress: plan.is_new_content,
        })
    }

    async fn take_down(&mut self, remote: &Remote, name: &CommitName, manifest: &Manifest) -> Result<(), Stop> {
        let kept: Vec<&str> = shared(name, manifest).collect();
        let keys = data_of(name, Some(manifest), |key| kept.contains(&key));
        self.sender.unconfirmed = None;
        Ok(self.retiring.delete(&remote.store, name, keys).await?)
    }

    pub(crate) fn stamp(&self, remote: &Remote) -> Result<Stamp, Stop> {
        let attempt = remote.attempt().ok_or_else(|| Stop::Failed("no --checkpoint-store is set".to_owned()))?;
        Ok(Stamp { attempt: attempt.clone(), seq: self.sender.seq })
    }

    fn manifest(&self, plan: &Plan, stamp: &Stamp, sent: &[Sent]) -> Manifest {
        let files: Vec<_> = sent.iter().map(|sent| sent.item.clone()).collect();
        let is_there = |path: &String| files.binary_search_by(|item| item.path.cmp(path)).is_ok();
        // A text file may have been deleted before it was read.
        let part = |record: &PartRecord| PartRecord {
            files: record.files.iter().filter(|path| is_there(path)).cloned().collect(),
            ..record.clone()
        };
        let parts: Vec<PartRecord> = plan.parts.iter().map(|of| part(&of.record)).collect();
        let resumed = parts.iter().find(|part| part.unit.is_some() && part.unit == plan.resume.unit);
        let framework = resumed.and_then(|part| part.layout.clone()).unwrap_or_else(|| TREE.to_owned());
        Manifest {
            schema: SCHEMA.to_owned(),
            job: self.config.job.clone(),
            attempt: stamp.attempt.number,
            attempt_tag: stamp.attempt.tag,
            seq: stamp.seq,
            step: plan.step,
            unit: plan.resume.unit.clone().filter(|unit| !unit.is_empty()).unwrap_or_else(|| WHOLE.to_owned()),
            framework,
            world_size: self.config.options.world_size,
            node: self.config.node,
            created_unix: clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            parent: self.history.parent.as_ref().map(Stamp::to_string),
            gang_kept: self.retiring.hold.recorded(),
            timing: plan.timing.clone(),
            home: self.config.home().into_os_string().into_string().ok(),
            total_bytes: files.iter().map(|item| item.size).sum(),
            files,
            parts,
            pointers: Vec::new(),
            copies: Vec::new(),
        }
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

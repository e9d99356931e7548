//! Commits the newest complete local checkpoint: data first, the manifest last, each key written once. Killed anywhere,
//! the store holds what it held before, or the new commit whole.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::archive::Outgoing;
use super::budget::Budget;
use super::guard::AT_ONCE;
use super::known::{Known, Sent};
use super::look::Local;
use super::mirror::{Committed, Mirror, PINS, beneath, blocking, way_out};
use super::pieces::Pieces;
use super::pins::{Pins, pin, unchanged};
use super::retention::commits;
use super::send::{Sending, Stop, lanes_for, verify, without_data};
use super::transfer::make_durable;
use crate::edge::store::{Created, Store, Trouble};
use crate::edge::{clock, limits};
use crate::rules::checkpoint::manifest::{Item, Manifest, SCHEMA, WITH_ARCHIVES};
use crate::rules::checkpoint::names::{Attempt, CommitName, Stamp};
use crate::rules::checkpoint::plan::Age;
use crate::rules::exit;

/// How long the store has to say, when the time is up, whether the commit is through.
const LAST_WORD: Duration = Duration::from_millis(200);
/// Less is not worth being told.
const MOMENT: Duration = Duration::from_millis(100);
/// What is smaller says nothing about the store's throughput.
const TELLING_BYTES: u64 = 1 << 20;

/// What came of looking for something to commit.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A new commit exists.
    Committed {
        /// The training step, where known.
        step: Option<u64>,
        /// The unit's name.
        unit: String,
        /// Bytes of its files.
        bytes: u64,
        /// Seconds that it took.
        seconds: f64,
        /// Seconds from when it was seen complete until it was safe.
        lag: f64,
    },
    /// The newest complete checkpoint is in the store already.
    UpToDate {
        /// Its step, where known.
        step: Option<u64>,
    },
    /// There is no complete checkpoint.
    NothingComplete {
        /// Why not, for the newest that might be one.
        why: String,
    },
    /// It is being written, or changed while it was copied: nothing was committed; try later.
    Changed {
        /// What changed.
        why: String,
    },
    /// A newer run has taken over the store: stop committing, stop training.
    Fenced {
        /// The newer run's attempt.
        by: Attempt,
    },
    /// There was not enough time to commit it.
    OutOfTime {
        /// One line.
        why: String,
    },
    /// It could not be committed.
    Failed {
        /// One line.
        message: String,
        /// [`exit::STORE`].
        code: u8,
        /// The store could not be reached, or did not believe who asked just then: another try may do.
        is_away: bool,
        /// Whether another try may do it.
        again: bool,
        /// Why, in one word, for who counts.
        cause: &'static str,
    },
}

impl Mirror {
    /// Commits the newest complete checkpoint if the store does not hold it. `settle`: it must have lain unchanged for
    /// this long, and nobody may have it open for writing; `None` where nobody can write any more. `limit`: give up after
    /// this long, and do not begin what the last throughput says cannot be done in it. `progress` hears bytes done and
    /// bytes in all. What retention lets go of is for [`Mirror::retire`].
    pub async fn commit_newest(
        &mut self,
        settle: Option<Duration>,
        limit: Option<Duration>,
        progress: &dyn Fn(u64, u64),
    ) -> Outcome {
        let done = match limit {
            None => {
                let done = self.try_commit(settle, limit, progress).await;
                // Where there is no room for one more, what may go goes first.
                match done {
                    Err(Stop::Store(error)) if error.trouble == Trouble::Full && self.make_room().await => {
                        self.try_commit(settle, limit, progress).await
                    }
                    done => done,
                }
            }
            Some(limit) => match tokio::time::timeout(limit, self.try_commit(settle, limit.into(), progress)).await {
                Ok(done) => done,
                Err(_) => self.cut_short(limit).await,
            },
        };
        if done.is_err() {
            // Where something is missing, everything is sent next time.
            self.known = Known::default();
            // They would keep the space of what the framework deletes. Where there is no time it goes on beside.
            let _ = tokio::time::timeout(limit.map_or(Duration::MAX, |_| LAST_WORD), self.let_go()).await;
        }
        let again = done.as_ref().is_err_and(Stop::may_pass);
        match done {
            Ok(outcome) => outcome,
            // Another run on the same directory takes our pins away, which looks like a change.
            Err(Stop::Changed(why)) => match self.overtaken().await {
                Some(by) => Outcome::Fenced { by },
                None => Outcome::Changed { why },
            },
            Err(Stop::Fenced(by)) => Outcome::Fenced { by },
            Err(Stop::OutOfTime(why)) => Outcome::OutOfTime { why },
            Err(Stop::Store(error)) => {
                let message = format!("{error}; it is not committed; what was before still is; {}", way_out(&error));
                self.failed(message, error.trouble, again).await
            }
            Err(Stop::Lost(message) | Stop::Failed(message)) => self.failed(message, Trouble::Other, again).await,
        }
    }

    /// A newer run's retention takes files away that we rely on, which looks like a store that lost them.
    async fn failed(&self, message: String, trouble: Trouble, again: bool) -> Outcome {
        let is_away = trouble.may_pass();
        let failed = Outcome::Failed { message, code: exit::STORE, is_away, again, cause: trouble.word() };
        let overtaken = tokio::time::timeout(AT_ONCE, self.overtaken());
        let by = if is_away { None } else { overtaken.await.ok().flatten() };
        by.map_or(failed, |by| Outcome::Fenced { by })
    }

    async fn try_commit(
        &mut self,
        settle: Option<Duration>,
        limit: Option<Duration>,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Outcome, Stop> {
        let (clock, begun) = (self.clock, self.clock.now());
        let left = || limit.map(|limit| limit.saturating_sub(clock.now().saturating_sub(begun)));
        if self.store.is_none() || self.attempt.is_none() {
            return Ok(Outcome::NothingComplete { why: "no --checkpoint-store is set".to_owned() });
        }
        if settle.is_none() {
            self.is_at_rest();
        }
        let look = self.look_to_commit().await.map_err(|error| self.unreadable(&error))?;
        self.tell_unrecognised(&look, settle);
        self.tell_mixed(&look, settle.is_none());
        self.caution(&look);
        (self.passed, self.lacking, self.layout) = (look.passed, look.lacking, look.layout);
        let beside = look.ages;
        let Some(local) = look.newest else {
            self.waits(self.waiting);
            self.give_way(left()).await?;
            return Ok(Outcome::NothingComplete { why: self.nothing_complete(&self.passed, &beside) });
        };
        if let Some(committed) = self.committed.as_ref().filter(|_| self.holds(&local)) {
            let step = committed.age.step;
            self.waits(None);
            self.tell_outranked(&beside).await;
            self.give_way(left()).await?;
            return Ok(Outcome::UpToDate { step });
        }
        let since = self.waiting.map_or(begun, |(_, since)| since);
        self.waits(Some((local.age.step, since)));
        let local = self.settled(local, settle, limit).await?;
        let bytes = local.entries.iter().map(|e| e.size).sum::<u64>();
        if let Some(left) = left() {
            self.is_worth_a_start(&local, bytes, left)?;
        }
        // Waiting for the checkpoint to settle is no part of what its commit takes.
        let sending = self.clock.now();
        // The trainer's network is spared while there is a trainer and time.
        let is_training = settle.is_some() && limit.is_none();
        self.seq += 1;
        self.made.take();
        let (sent, pins) = match self.upload(&local, bytes, is_training, progress).await {
            Err(stop) if limit.is_none() => {
                if matches!(stop, Stop::Changed(_)) {
                    self.restless.looks += 1;
                    let now = self.entries_of(&local.candidate.unit).await.ok().flatten();
                    self.note_restless(&local, &now.unwrap_or_default());
                }
                self.discard().await;
                return Err(stop);
            }
            uploaded => uploaded?,
        };
        // From here on a manifest may name them.
        self.made.take();
        self.name(&local, &beside, bytes, sent, pins).await?;
        let seconds = self.clock.now().saturating_sub(sending).as_secs_f64();
        let is_capped = is_training && self.config.pace.lock().is_ok_and(|pace| pace.is_capped());
        if bytes >= TELLING_BYTES && !is_capped {
            self.throughput = Some(bytes as f64 / seconds.max(0.001));
        }
        let lag = self.clock.now().saturating_sub(since).as_secs_f64();
        self.write_pushed(&beside, local.age).await;
        self.committed = self.naming.take();
        self.retiring.is_due = true;
        self.restless.is_over(&local);
        self.tell_other(&local);
        self.tell_outranked(&beside).await;
        self.waits(None);
        Ok(Outcome::Committed { step: local.age.step, unit: local.candidate.unit, bytes, seconds, lag })
    }

    /// Errors: what the last throughput says cannot be committed in the time that is left.
    fn is_worth_a_start(&self, local: &Local, bytes: u64, left: Duration) -> Result<(), Stop> {
        let needed = self.throughput.map_or(0.0, |throughput| bytes as f64 / throughput.max(1.0));
        if needed <= left.as_secs_f64() {
            return Ok(());
        }
        Err(Stop::OutOfTime(format!(
            "{} needs about {needed:.1} s to commit and {:.1} s are left: not started; {}",
            local.candidate.unit,
            left.as_secs_f64(),
            self.what_stands()
        )))
    }

    /// The time was up; but the manifest may just have been on its way, now or as the commit before was cut off, and what
    /// is committed is to be known.
    async fn cut_short(&mut self, limit: Duration) -> Result<Outcome, Stop> {
        let names = async { commits(self.store.as_ref()?).await.ok() };
        let names = tokio::time::timeout(LAST_WORD, names).await.ok().flatten().unwrap_or_default();
        if let Some(named) = self.naming.take_if(|ours| names.iter().any(|name| name.stamp == ours.stamp)) {
            self.committed = Some(named);
        }
        let look = tokio::time::timeout(AT_ONCE, self.look(self.config.push_step)).await;
        let is_all = look.is_ok_and(|look| look.is_ok_and(|look| look.newest.is_none_or(|local| self.holds(&local))));
        match self.committed.as_ref().filter(|_| is_all) {
            Some(committed) => Ok(Outcome::UpToDate { step: committed.age.step }),
            None => Err(Stop::OutOfTime(format!(
                "no time left{} to commit the newest checkpoint; {}",
                if limit < MOMENT { String::new() } else { format!(" after {:.1} s", limit.as_secs_f64()) },
                self.what_stands()
            ))),
        }
    }

    /// Whether the store holds this one, or a newer.
    fn holds(&self, local: &Local) -> bool {
        self.committed
            .as_ref()
            .is_some_and(|committed| committed.holds(local) || !committed.is_before(&local.candidate.unit, local.age))
    }

    /// What the next run will find.
    pub(super) fn what_stands(&self) -> String {
        match self.committed.as_ref().map(|committed| committed.age.step) {
            Some(Some(step)) => format!("the last committed one (step {step}) stands"),
            Some(None) => "the last committed one stands".to_owned(),
            None => "this run has committed nothing yet".to_owned(),
        }
    }

    pub(super) fn unreadable(&self, error: &io::Error) -> Stop {
        let way_out = limits::way_out(error, "see that trainit's user can read it, and that its disk is sound");
        Stop::Failed(format!("cannot read the checkpoint directory {}: {error}; {way_out}", self.config.dir.display()))
    }

    /// Copies the unit's files, each under a key that no manifest names yet.
    async fn upload(
        &self,
        local: &Local,
        bytes: u64,
        is_training: bool,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(Vec<Sent>, Pins), Stop> {
        let (store, stamp) = self.ours()?;
        let faults = &self.config.faults;
        let at = self.config.dir.clone();
        let dir = blocking(move || beneath(&at)).await.map_err(|error| self.unreadable(&error))?;
        let pins = pin(&dir, &self.pins(), &local.entries).await.map_err(|error| self.unreadable(&error))?;
        let touched = unchanged(&dir, &local.entries, &pins, None).await?;
        faults.point(2);
        self.fence(store, &stamp.attempt).await?;
        faults.point(3);

        let done = Cell::new(0);
        let told = |more: u64| {
            done.set(done.get() + more);
            progress(done.get(), bytes);
        };
        let pace = is_training.then_some(&*self.config.pace).filter(|p| p.lock().is_ok_and(|p| p.is_capped()));
        let budget = Budget::now();
        let habits = budget.fit(store.habits());
        let habits = if pace.is_some() { habits.gently() } else { habits };
        let loads = local.loads(&stamp, habits.gathers && !self.config.apart);
        let sending = Sending {
            strong: self.config.strong,
            goes_on: !self.config.only_sends,
            store,
            dir: &dir,
            known: &self.known,
            pace,
            habits,
            pieces: Pieces::new(budget, habits.streams),
            lanes: lanes_for(store, habits, loads.iter().map(Outgoing::put_size)).await,
            clock: self.clock,
            told: &told,
            made: &self.made,
        };
        let sent = loads.into_iter().map(|load| {
            let (sending, pins) = (&sending, &pins);
            async move {
                let sent = sending.send_load(load, pins).await;
                faults.point(4);
                sent
            }
        });
        let all = stream::iter(sent).buffer_unordered(sending.habits.at_once);
        let sent: Vec<Sent> = all.try_concat().await?;
        sending.lanes.close().await;
        faults.point(5);
        let keys: Vec<String> = sent.iter().map(|sent| sent.item.key.clone()).collect();
        make_durable(store, &keys, bytes, &told).await?;
        verify(store, &sent).await?;
        faults.point(6);
        unchanged(&dir, &local.entries, &pins, Some(touched)).await?;
        self.is_all(local).await?;
        faults.point(7);
        self.fence(store, &stamp.attempt).await?;
        Ok((sent, pins))
    }

    /// Puts the manifest: from here on there is a commit.
    async fn name(
        &mut self,
        local: &Local,
        beside: &BTreeMap<String, Age>,
        bytes: u64,
        sent: Vec<Sent>,
        pins: Pins,
    ) -> Result<(), Stop> {
        self.naming = Some(Committed {
            unit: local.candidate.unit.clone(),
            beside: beside.clone(),
            entries: local.entries.clone(),
            names: local.names.clone(),
            age: local.age,
            fixed: local.candidate.fixed.clone(),
            stamp: self.ours()?.1,
        });
        let (store, stamp) = self.ours()?;
        let faults = &self.config.faults;
        let mut items: Vec<Item> = sent.iter().map(|sent| sent.item.clone()).collect();
        items.extend(without_data(&local.entries));
        items.sort_by(|a, b| a.path.cmp(&b.path));
        let home = self.home(&local.names, &local.candidate.unit).await;
        let cannot = |why: String| Stop::Failed(format!("cannot commit {}: {why}", local.candidate.unit));
        let text = Manifest { home, ..self.manifest(local, &stamp, items, bytes) }.bytes().map_err(cannot)?;
        let name = CommitName::of(stamp.clone(), local.age.step, &text);
        // What we would not restore we do not commit.
        let manifest = Manifest::read(&name, &text).map_err(cannot)?;
        faults.point(8);
        if store.create(&name.key(), text).await? == Created::Taken {
            self.naming = None;
            return Err(Stop::Failed(format!("{} is in the store already and is not ours", name.key())));
        }
        faults.point(9);
        self.is_there(store, &name).await?;
        self.make_way(store, &name, &manifest).await?;
        let (dir, within) = (self.config.dir.clone(), self.pins());
        if let Err(error) = blocking(move || pins.remove(&*beneath(&dir)?, &within)).await {
            self.note(format!("cannot remove {PINS}: {error}"));
        }
        self.known = Known::new(sent, &self.known);
        Ok(())
    }

    /// The store, and the stamp of the commit under way.
    fn ours(&self) -> Result<(&Arc<Store>, Stamp), Stop> {
        let (Some(store), Some(attempt)) = (&self.store, &self.attempt) else {
            return Err(Stop::Failed("no --checkpoint-store is set".to_owned()));
        };
        Ok((store, Stamp { attempt: attempt.clone(), seq: self.seq }))
    }

    fn manifest(&self, local: &Local, stamp: &Stamp, files: Vec<Item>, total_bytes: u64) -> Manifest {
        let has_archives = files.iter().any(|file| file.offset.is_some());
        Manifest {
            schema: if has_archives { WITH_ARCHIVES } else { SCHEMA }.to_owned(),
            job: self.config.job.clone(),
            attempt: stamp.attempt.number,
            attempt_tag: stamp.attempt.tag,
            seq: stamp.seq,
            step: local.age.step,
            unit: local.candidate.unit.clone(),
            framework: local.layout.name.to_owned(),
            world_size: self.config.options.world_size,
            node: self.config.node,
            created_unix: clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            parent: self.parent.as_ref().map(Stamp::to_string),
            best_step: local.best,
            unit_mode: local.mode,
            home: None,
            total_bytes,
            files,
            pointers: local.names.pointers.clone(),
            copies: local.names.copies.clone(),
        }
    }
}

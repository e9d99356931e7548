//! Executes the supervisor's orders, and scans for new files to commit between them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::edge::clock::Clock;
use crate::rules::checkpoint::Writer;
use crate::rules::job::{Event, Flushed};
use crate::rules::status::sibling::From;
use crate::rules::store::names::Attempt;
use crate::supervisor::background::keep::order_queue::{OrderQueue, TO_A_FLUSH, TO_A_SURVEY, TO_ANY, TO_NONE};
use crate::supervisor::background::keep::places::Places;
use crate::supervisor::background::keep::report::Report;
use crate::supervisor::background::keep::sibling::{Others, SEARCH};
use crate::supervisor::background::keep::wanted::{Checkpoints, Keep};
use crate::supervisor::background::keep::watchdog::Watchdog;
use crate::supervisor::background::model::{LeftModel, publish};
use crate::supervisor::background::orders::{EventSender, Order};
use crate::supervisor::checkpoints::commit::outcome::{Ask, Outcome};
use crate::supervisor::checkpoints::config::{Config, Role};
use crate::supervisor::checkpoints::directory::look::How;
use crate::supervisor::checkpoints::failure::{Failure, Stop};
use crate::supervisor::checkpoints::mirror::{Mirror, Resume};

/// After a notice: the settling time of a part, and the interval of scans.
const NOTICE_SETTLE: Duration = Duration::from_millis(500);
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);
/// The time limits of retention between two scans, and at the end of a finished job.
const TURN: Duration = Duration::from_secs(10);
pub(super) const LAST_TURN: Duration = Duration::from_secs(60);
/// The interval of scans after a warning that leaves more time.
const WARNED_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest interval of scans.
const LEAST_PAUSE: Duration = Duration::from_millis(50);

/// The checkpoints and the model of the run, and the state of the work.
pub(super) struct CheckpointThread {
    pub(super) checkpoints: Option<Checkpoints>,
    pub(super) model: Option<LeftModel>,
    pub(super) settle: Duration,
    interval: Duration,
    pub(super) mirror: Option<Mirror>,
    /// How the trainer ended, or that it runs.
    pub(super) writer: Writer,
    /// The time on the directory's file system when the trainer was killed.
    pub(super) died_ns: Option<i64>,
    pub(super) others: Option<Others>,
    /// Whether the last commit waits for the other processes of the node.
    pub(super) waits_for_others: bool,
    /// Whether an order has announced a near end.
    pub(super) is_pressed: Rc<Cell<bool>>,
    /// The side that did not answer shortly before the end. The last commit does not wait for it again.
    pub(super) given_up: Option<String>,
    pub(super) report: Report,
    pub(super) clock: Clock,
    /// Until the store is opened and the first checkpoint is restored.
    pub(super) places: RefCell<Option<Places>>,
}

/// The failure if the wait for the store or the directory has ended.
pub(super) fn given_up(why: String) -> Failure {
    Failure::store(format!("{why}; nothing was started"))
}

impl Keep {
    /// Executes orders until the supervisor has ended; between them it scans for new files.
    pub(in crate::supervisor::background) async fn work(
        self,
        orders: UnboundedReceiver<Order>,
        events: EventSender,
        clock: Clock,
        places: Places,
    ) {
        let thread = CheckpointThread::new(self, events, clock);
        thread.places.replace(Some(places));
        thread.work(orders).await;
    }
}

impl CheckpointThread {
    fn new(Keep { checkpoints, model, .. }: Keep, events: EventSender, clock: Clock) -> CheckpointThread {
        let (settle, interval) = checkpoints.as_ref().map_or(Default::default(), |c| (c.config.settle, c.interval));
        CheckpointThread {
            others: checkpoints.as_ref().and_then(|c| c.others.clone()),
            waits_for_others: true,
            is_pressed: Rc::default(),
            given_up: None,
            checkpoints,
            model,
            settle,
            interval,
            mirror: None,
            writer: Writer::Finished,
            died_ns: None,
            report: Report::new(events),
            clock,
            places: RefCell::default(),
        }
    }

    async fn work(mut self, mut orders: UnboundedReceiver<Order>) {
        let (mut pause, mut is_training) = (self.interval, false);
        let pace = self.checkpoints.as_ref().map(|c| Arc::clone(&c.config.pace));
        let mut queue = OrderQueue::new(self.clock, pace, Rc::clone(&self.is_pressed));
        loop {
            let order = if let Some(order) = queue.next() {
                Some(order)
            } else if is_training {
                tokio::select! {
                    biased;
                    order = orders.recv() => order,
                    () = tokio::time::sleep(pause) => {
                        let looked = queue.during(&mut orders, TO_NONE, self.look()).await;
                        pause = looked.unwrap_or(self.interval);
                        if queue.is_idle() {
                            queue.during(&mut orders, TO_ANY, self.retire(TURN, false)).await;
                        }
                        continue;
                    }
                }
            } else {
                orders.recv().await
            };
            let Some(order) = order else { return };
            match order {
                Order::CommitSoon { notice } => {
                    self.commit_soon(notice);
                    pause = Duration::ZERO;
                }
                Order::MarkUnsure(ago) => queue.during(&mut orders, TO_NONE, self.mark_unsure(ago)).await.unwrap_or(()),
                Order::SkipOthers => self.waits_for_others = false,
                // The work with this deadline has ended.
                Order::SetCommitDeadline(_) => {}
                Order::Restore => {
                    is_training = self.restore().await;
                    pause = self.interval;
                }
                Order::Refresh => self.refresh(&mut queue, &mut orders).await,
                Order::Survey(leader) => {
                    is_training = false;
                    queue.rest(true);
                    queue.during(&mut orders, TO_A_FLUSH, self.survey(leader)).await;
                    queue.rest(false);
                }
                Order::RestoreAgreed(choice) => {
                    let restored = queue.during(&mut orders, TO_A_SURVEY, self.restore_agreed(choice)).await;
                    is_training = restored.unwrap_or(false);
                    pause = self.interval;
                }
                Order::Keep(step) => {
                    if let Some(mirror) = &mut self.mirror {
                        mirror.in_gang.kept = Some(step);
                        mirror.retiring.hold.raise(step);
                    }
                }
                Order::FallBack => {
                    queue.during(&mut orders, TO_A_FLUSH, self.fall_back()).await;
                }
                Order::Publish => {
                    let published = queue.during(&mut orders, TO_NONE, self.publish()).await;
                    let late = || Ok(Flushed::OutOfTime(self.model.as_ref().map_or(String::new(), LeftModel::cut_off)));
                    self.report.flushed(published.unwrap_or_else(late));
                }
                Order::Flush(by) => {
                    is_training = false;
                    self.flush_and_tidy(by, &mut queue, &mut orders).await;
                }
            }
        }
    }

    /// Commits the settled files of a dead attempt, and finds the checkpoint for the next one. If it is interrupted there is no
    /// answer, because a flush follows.
    async fn refresh(&mut self, queue: &mut OrderQueue, orders: &mut UnboundedReceiver<Order>) {
        queue.rest(true);
        let may_continue = queue.during(orders, TO_NONE, self.save_what_is_left()).await;
        if may_continue == Some(true) && !queue.is_to_flush() {
            queue.during(orders, TO_A_FLUSH, self.find_next()).await;
        }
        (self.writer, self.died_ns) = (Writer::Finished, None);
        queue.rest(false);
    }

    fn commit_soon(&mut self, notice: bool) {
        if notice {
            if let Some(mirror) = &self.mirror {
                mirror.config.pace.lock().unwrap_or_else(PoisonError::into_inner).remove_limit();
            }
            self.settle = self.settle.min(NOTICE_SETTLE);
            self.interval = self.interval.min(NOTICE_INTERVAL);
        } else {
            self.interval = self.interval.min(WARNED_INTERVAL);
        }
    }

    /// The trainer was killed this long ago.
    async fn mark_unsure(&mut self, ago: Duration) {
        self.writer = Writer::Killed;
        if let Some(mirror) = &self.mirror {
            self.died_ns = mirror.file_time(ago).await;
        }
    }

    /// Opens the directory and the store, and restores. Returns whether there is a store to commit to from now on.
    async fn restore(&mut self) -> bool {
        let Some(checkpoints) = self.checkpoints.take() else {
            self.report.restored(None, None);
            return false;
        };
        let begun = self.clock.now();
        match self.open_and_restore(checkpoints).await {
            Ok((mut mirror, resume)) => {
                self.await_caches(self.clock.now().saturating_sub(begun)).await;
                if let Some(number) = mirror.incarnation() {
                    self.report.incarnation(number);
                }
                let is_kept = mirror.config.role != Role::Watches;
                if is_kept {
                    mirror.mark_unfinished(true).await;
                }
                self.report.restored(Some(&mut mirror), resume);
                let has_store = mirror.config.store.is_some();
                self.mirror = Some(mirror);
                has_store
            }
            Err(failure) => {
                self.report.not_restored(failure);
                false
            }
        }
    }

    async fn open_and_restore(&self, checkpoints: Checkpoints) -> Result<(Mirror, Option<Resume>), Failure> {
        let mut config = checkpoints.config;
        let first = match &checkpoints.sibling {
            Some(sibling) => sibling.restored(SEARCH).await?,
            None => None,
        };
        if let Some((node, _)) = first {
            config = Config { node, store: None, role: Role::Watches, ..config };
            self.report.send(Event::KeptBeside);
        }
        let watchdog = Watchdog::new(&config, self.clock, &self.is_pressed);
        let (mut mirror, unmade) = watchdog.watch("start", None, self.open(config)).await.map_err(given_up)??;
        let from = first.map_or(From::Newest, |(_, from)| from);
        let resume = watchdog.watch("restore", None, mirror.restore_like(&from)).await.map_err(given_up)??;
        unmade.into_iter().for_each(|line| mirror.note(line));
        Ok((mirror, resume))
    }

    /// Opens the directory and the store, and reports their events. Without a store it also returns why the checkpoint
    /// directory cannot be created, which is only a warning.
    pub(super) async fn open(&self, config: Config) -> Result<(Mirror, Option<String>), Failure> {
        let mut mirror = Mirror::open(config).await?;
        mirror.listeners.on_restore(self.report.restores());
        mirror.listeners.on_event = Some(self.report.listener());
        let unmade = if mirror.config.store.is_none() { mirror.make_directory().await } else { None };
        if mirror.config.role == Role::Keeps && unmade.is_none() {
            self.tell_place(&mirror);
        }
        Ok((mirror, unmade))
    }

    /// The tree is empty after a death: commits the ready parts. False: the run cannot continue.
    pub(super) async fn save_what_is_left(&mut self) -> bool {
        if let Some((mirror, remote)) = self.mirror.as_ref().and_then(|mirror| Some((mirror, mirror.remote.as_ref()?)))
            && !remote.answers().await
        {
            let is = if mirror.is_as_committed().await { "is committed" } else { "is not committed yet" };
            let line = format!("{} cannot be reached: what the attempt left {is}; check that it works", remote.address);
            self.report.complain(Some(mirror), line);
            return true;
        }
        match self.commit(self.at_the_end().await, None).await {
            Some(Outcome::Fenced { by }) => {
                self.report.fenced(&by);
                false
            }
            Some(Outcome::Failed { message, .. } | Outcome::OutOfTime { why: message }) => {
                self.report.complain(self.mirror.as_ref(), message);
                true
            }
            _ => true,
        }
    }

    async fn find_next(&mut self) {
        let how = self.how();
        let found = match &mut self.mirror {
            Some(mirror) if mirror.config.role != Role::Watches => mirror.restore_again(how).await,
            Some(mirror) => mirror.local_resume().await,
            None => Ok(None),
        };
        self.report_found(found);
    }

    /// The state of the trainer, for the rules.
    pub(super) fn how(&self) -> How {
        How { writer: self.writer, settle: self.settle, died_ns: self.died_ns }
    }

    /// The trainer failed repeatedly from the newest commit: restores the next older one.
    async fn fall_back(&mut self) {
        let found = match &mut self.mirror {
            Some(mirror) => mirror.fall_back().await,
            None => Ok(None),
        };
        self.report_found(found);
    }

    fn report_found(&mut self, found: Result<Option<Resume>, Failure>) {
        match found {
            Ok(resume) => self.report.restored(self.mirror.as_mut(), resume),
            Err(failure) => self.report.not_restored(failure),
        }
    }

    /// One scan during training. Returns the pause before the next one.
    async fn look(&mut self) -> Duration {
        let outcome = match self.watchdog() {
            Some(watchdog) => {
                let how = How::running(self.settle);
                match watchdog.watch("commit", None, self.commit(how, None)).await {
                    Ok(outcome) => {
                        self.given_up = None;
                        outcome
                    }
                    Err(why) => {
                        self.given_up = Some(why);
                        return self.interval;
                    }
                }
            }
            None => None,
        };
        match outcome {
            Some(Outcome::Fenced { by }) => {
                self.report.fenced(&by);
                // Every scan would give the same result.
                Duration::MAX
            }
            Some(Outcome::Failed { message, .. } | Outcome::OutOfTime { why: message }) => {
                self.report.complain(self.mirror.as_ref(), message);
                self.interval
            }
            // Not settled yet: scan again before a full interval has passed.
            Some(Outcome::Changed { why }) => {
                tracing::debug!("a checkpoint is being written: {why}");
                self.settle.min(self.interval).max(LEAST_PAUSE)
            }
            Some(Outcome::Waiting { again: Some(again), .. }) => again.min(self.interval).max(LEAST_PAUSE),
            _ => self.interval,
        }
    }

    /// Deletes old commits for at most `turn`. The next commit does not wait for it.
    pub(super) async fn retire(&mut self, turn: Duration, is_last: bool) {
        if let Some(mirror) = &mut self.mirror {
            mirror.retire(turn, is_last).await;
        }
    }

    /// Copies the model of the finished job. Errors: the newer run that has taken over.
    async fn publish(&self) -> Result<Flushed, Attempt> {
        let Some(model) = &self.model else { return Ok(Flushed::Done { step: None }) };
        let remote = self.mirror.as_ref().and_then(|mirror| mirror.remote.as_ref());
        match publish(model, remote, &self.report.progress("copying the model")).await {
            Ok(()) => Ok(Flushed::Done { step: None }),
            Err(Stop::Fenced(by)) => Err(by),
            Err(stop) => Ok(Flushed::Failed(stop.words())),
        }
    }

    /// The watchdog for the directory and the store; `None`: there is no checkpoint directory.
    pub(super) fn watchdog(&self) -> Option<Watchdog> {
        Some(Watchdog::new(&self.mirror.as_ref()?.config, self.clock, &self.is_pressed))
    }

    /// Commits the ready parts; `None`: there is no checkpoint directory.
    pub(super) async fn commit(&mut self, how: How, limit: Option<Duration>) -> Option<Outcome> {
        let progress = self.report.progress("committing the checkpoint");
        let mirror = self.mirror.as_mut().filter(|mirror| mirror.may_commit())?;
        let outcome = mirror.commit(&Ask { how, limit }, &progress).await;
        self.report.outcome(&outcome);
        // An earlier unconfirmed commit may have turned out to be complete.
        if let (Outcome::OutOfTime { .. }, Some((committed, _))) = (&outcome, self.mirror.as_ref()?.committed()) {
            self.report.send(Event::Found { committed });
        }
        Some(outcome)
    }
}

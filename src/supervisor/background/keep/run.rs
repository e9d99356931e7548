//! Executes the supervisor's orders, and looks for new files to commit between them.

use std::cell::Cell;
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
use crate::supervisor::background::keep::report::Report;
use crate::supervisor::background::keep::sibling::{Others, SEARCH};
use crate::supervisor::background::keep::wanted::{Checkpoints, Keep};
use crate::supervisor::background::keep::watchdog::Watchdog;
use crate::supervisor::background::model::{LeftModel, publish};
use crate::supervisor::background::orders::{Order, Teller};
use crate::supervisor::checkpoints::commit::outcome::{Ask, Outcome};
use crate::supervisor::checkpoints::config::{Config, Role};
use crate::supervisor::checkpoints::directory::look::How;
use crate::supervisor::checkpoints::failure::{Failure, Stop};
use crate::supervisor::checkpoints::mirror::{Mirror, Resume};

/// Under a notice: how long a part must have lain unchanged, and between two looks.
const NOTICE_SETTLE: Duration = Duration::from_millis(500);
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);
/// How long retention may keep the next look waiting, and the end of a job that is done.
const TURN: Duration = Duration::from_secs(10);
pub(super) const LAST_TURN: Duration = Duration::from_secs(60);
/// Between two looks after a warning that leaves more time.
const WARNED_INTERVAL: Duration = Duration::from_secs(5);
/// Between two looks at least.
const LEAST_PAUSE: Duration = Duration::from_millis(50);

/// What the run keeps, and where it stands.
pub(super) struct CheckpointThread {
    pub(super) checkpoints: Option<Checkpoints>,
    pub(super) model: Option<LeftModel>,
    pub(super) settle: Duration,
    interval: Duration,
    pub(super) mirror: Option<Mirror>,
    /// What became of the trainer, once it has ended.
    pub(super) writer: Writer,
    /// The clock of the directory's file system then, where the trainer was killed.
    pub(super) died_ns: Option<i64>,
    pub(super) others: Option<Others>,
    /// Whether the last commit waits for the other processes of the node.
    pub(super) waits_for_others: bool,
    /// Whether an order has said that the end is near.
    pub(super) is_pressed: Rc<Cell<bool>>,
    /// What did not answer while the end was near: the last commit does not wait for it once more.
    pub(super) given_up: Option<String>,
    pub(super) report: Report,
    pub(super) clock: Clock,
}

/// Neither side may be waited for any longer.
pub(super) fn given_up(why: String) -> Failure {
    Failure::store(format!("{why}; nothing was started"))
}

impl Keep {
    /// Carries out orders until the supervisor is gone; between them, looks for something new.
    pub(in crate::supervisor) async fn work(self, orders: UnboundedReceiver<Order>, teller: Teller, clock: Clock) {
        CheckpointThread::new(self, teller, clock).work(orders).await;
    }
}

impl CheckpointThread {
    fn new(Keep { checkpoints, model }: Keep, teller: Teller, clock: Clock) -> CheckpointThread {
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
            report: Report::new(teller),
            clock,
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
                // The work that it was meant for has ended.
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

    /// Commits what a death left and finds where the next attempt goes on. Cut off, it has no answer; a flush is next then.
    async fn refresh(&mut self, queue: &mut OrderQueue, orders: &mut UnboundedReceiver<Order>) {
        queue.rest(true);
        let is_going_on = queue.during(orders, TO_NONE, self.save_what_is_left()).await;
        if is_going_on == Some(true) && !queue.is_to_flush() {
            queue.during(orders, TO_A_FLUSH, self.find_next()).await;
        }
        (self.writer, self.died_ns) = (Writer::Finished, None);
        queue.rest(false);
    }

    fn commit_soon(&mut self, notice: bool) {
        if notice {
            if let Some(mirror) = &self.mirror {
                mirror.config.pace.lock().unwrap_or_else(PoisonError::into_inner).lift();
            }
            self.settle = self.settle.min(NOTICE_SETTLE);
            self.interval = self.interval.min(NOTICE_INTERVAL);
        } else {
            self.interval = self.interval.min(WARNED_INTERVAL);
        }
    }

    /// The trainer was killed so long ago.
    async fn mark_unsure(&mut self, ago: Duration) {
        self.writer = Writer::Killed;
        if let Some(mirror) = &self.mirror {
            self.died_ns = mirror.file_time(ago).await;
        }
    }

    /// Opens both sides and restores. Whether there is a store to commit to from now on.
    async fn restore(&mut self) -> bool {
        let Some(checkpoints) = self.checkpoints.take() else {
            self.report.restored(None, None);
            return false;
        };
        match self.open_and_restore(checkpoints).await {
            Ok((mut mirror, resume)) => {
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
            self.report.tell(Event::KeptBeside);
        }
        let watchdog = Watchdog::new(&config, self.clock, &self.is_pressed);
        let (mut mirror, unmade) = watchdog.watch("start", None, self.open(config)).await.map_err(given_up)??;
        let from = first.map_or(From::Newest, |(_, from)| from);
        let resume = watchdog.watch("restore", None, mirror.restore_like(&from)).await.map_err(given_up)??;
        unmade.into_iter().for_each(|line| mirror.note(line));
        Ok((mirror, resume))
    }

    /// Opens both sides, and listens to what it does. Without a store it also returns why the checkpoint directory cannot be
    /// made, if so: a warning where nothing worse follows.
    pub(super) async fn open(&self, config: Config) -> Result<(Mirror, Option<String>), Failure> {
        let mut mirror = Mirror::open(config).await?;
        mirror.listeners.hear_restore(self.report.restores());
        mirror.listeners.tell = Some(self.report.listener());
        let unmade = if mirror.config.store.is_none() { mirror.make_directory().await } else { None };
        Ok((mirror, unmade))
    }

    /// The tree is empty after a death: what is ready is committed. False: there is no going on.
    pub(super) async fn save_what_is_left(&mut self) -> bool {
        if let Some((mirror, remote)) = self.mirror.as_ref().and_then(|mirror| Some((mirror, mirror.remote.as_ref()?)))
            && !remote.answers().await
        {
            let is = if mirror.is_as_committed().await { "is committed" } else { "is not committed yet" };
            let line = format!("{} cannot be reached: what the attempt left {is}; see that it is well", remote.address);
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
            Some(mirror) => mirror.resume_here().await,
            None => Ok(None),
        };
        self.tell_found(found);
    }

    /// What became of the trainer.
    pub(super) fn how(&self) -> How {
        How { writer: self.writer, settle: self.settle, died_ns: self.died_ns }
    }

    /// The newest commit does the trainer no good: the next older one is put in place.
    async fn fall_back(&mut self) {
        let found = match &mut self.mirror {
            Some(mirror) => mirror.fall_back().await,
            None => Ok(None),
        };
        self.tell_found(found);
    }

    fn tell_found(&mut self, found: Result<Option<Resume>, Failure>) {
        match found {
            Ok(resume) => self.report.restored(self.mirror.as_mut(), resume),
            Err(failure) => self.report.not_restored(failure),
        }
    }

    /// One look while training goes on. How long to wait for the next.
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
                // Every look would find the same.
                Duration::MAX
            }
            Some(Outcome::Failed { message, .. } | Outcome::OutOfTime { why: message }) => {
                self.report.complain(self.mirror.as_ref(), message);
                self.interval
            }
            // Not settled yet: look again before a full interval has passed.
            Some(Outcome::Changed { why }) => {
                tracing::debug!("a checkpoint is being written: {why}");
                self.settle.min(self.interval).max(LEAST_PAUSE)
            }
            Some(Outcome::Waiting { again: Some(again), .. }) => again.min(self.interval).max(LEAST_PAUSE),
            _ => self.interval,
        }
    }

    /// What retention lets go of since the last commit, for so long. The next commit does not wait for it.
    pub(super) async fn retire(&mut self, turn: Duration, is_last: bool) {
        if let Some(mirror) = &mut self.mirror {
            mirror.retire(turn, is_last).await;
        }
    }

    /// Copies what the finished job leaves. Errors: the newer run that has taken over.
    async fn publish(&self) -> Result<Flushed, Attempt> {
        let Some(model) = &self.model else { return Ok(Flushed::Done { step: None }) };
        let remote = self.mirror.as_ref().and_then(|mirror| mirror.remote.as_ref());
        match publish(model, remote, &self.report.progress("copying the model")).await {
            Ok(()) => Ok(Flushed::Done { step: None }),
            Err(Stop::Fenced(by)) => Err(by),
            Err(stop) => Ok(Flushed::Failed(stop.words())),
        }
    }

    /// How long to wait for both sides; `None`: there is nothing to commit from.
    pub(super) fn watchdog(&self) -> Option<Watchdog> {
        Some(Watchdog::new(&self.mirror.as_ref()?.config, self.clock, &self.is_pressed))
    }

    /// Commits what is ready; `None`: there is nothing to commit from.
    pub(super) async fn commit(&mut self, how: How, limit: Option<Duration>) -> Option<Outcome> {
        let progress = self.report.progress("committing the checkpoint");
        let mirror = self.mirror.as_mut().filter(|mirror| mirror.may_commit())?;
        let outcome = mirror.commit(&Ask { how, limit }, &progress).await;
        self.report.outcome(&outcome);
        // One before it may have been found to stand.
        if let (Outcome::OutOfTime { .. }, Some((committed, _))) = (&outcome, self.mirror.as_ref()?.committed()) {
            self.report.tell(Event::Found { committed });
        }
        Some(outcome)
    }
}

//! The last commit of a run, and the wait for other processes of the node before it.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::rules::checkpoint::Writer;
use crate::rules::job::{Event, Flushed};
use crate::rules::status::sibling::may_save;
use crate::rules::store::names::Attempt;
use crate::supervisor::background::keep::order_queue::{OrderQueue, TO_ANY, TO_NONE};
use crate::supervisor::background::keep::run::{CheckpointThread, LAST_TURN};
use crate::supervisor::background::keep::watchdog::{LONG, SHORT};
use crate::supervisor::background::orders::{NO_END, Order};
use crate::supervisor::checkpoints::commit::outcome::Outcome;
use crate::supervisor::checkpoints::directory::look::How;
use crate::supervisor::checkpoints::mirror::Mirror;

/// The pause before the last commit is tried again, after a change of its files or a failure.
const PAUSE: Duration = Duration::from_millis(500);
/// The limit of tries after a change; with an empty process tree only a process outside can be writing.
const LOOKS: u32 = 4;
/// The limit of tries after a failure that another try may avoid.
const TRIES: u32 = 4;
/// How long the last commit waits for the other processes of the node, and the time that is reserved for their files.
const OTHERS_PATIENCE: Duration = Duration::from_secs(30);
const AFTER_OTHERS: Duration = Duration::from_secs(2);
/// The same after a stop without a deadline: the other processes got the signal, too, and a platform usually grants 30
/// s.
const LEAVING_PATIENCE: Duration = Duration::from_secs(4);
/// The settling time after a failure, which must be reported to the launcher soon.
const FAILED_SETTLE: Duration = Duration::from_secs(3);
/// A process that has waited for this run's restore starts its command within this time.
const TO_BEGIN: Duration = Duration::from_secs(3);

impl CheckpointThread {
    /// The last commit, and then, if there is time, the deletion of old commits.
    pub(super) async fn flush_and_tidy(
        &mut self,
        by: Option<Duration>,
        queue: &mut OrderQueue,
        orders: &mut UnboundedReceiver<Order>,
    ) {
        let flushed = match queue.during(orders, TO_NONE, self.flush(by)).await {
            Some(flushed) => flushed,
            // A deadline arrived during the work, so only the present state is reported.
            None => self.flush(Some(self.clock.now())).await,
        };
        if let Some(mirror) = self.mirror.as_ref().filter(|_| self.writer == Writer::Finished) {
            mirror.mark_unfinished(false).await;
        }
        if by.is_none() && matches!(flushed, Ok(Flushed::Done { .. } | Flushed::Stepless)) && queue.is_idle() {
            self.report.send(Event::Tidying);
            queue.during(orders, TO_ANY, self.retire(LAST_TURN, true)).await;
        }
        self.report.flushed(flushed);
    }

    /// How to judge files after the end of the command: other processes of the node may still write.
    pub(super) async fn at_the_end(&self) -> How {
        let settle = if self.waits_for_others { self.settle } else { self.settle.min(FAILED_SETTLE) };
        let writer = if self.has_others(may_save).await { Writer::Running } else { self.writer };
        How { writer, settle, died_ns: self.died_ns }
    }

    async fn has_others(&self, which: fn(&Value) -> bool) -> bool {
        match &self.others {
            Some(others) => others.any(which).await,
            None => false,
        }
    }

    /// Repeatedly commits settled files until the other processes of the node have ended. Errors: the newer run that
    /// has taken over.
    async fn await_others(&mut self, by: Option<Duration>) -> Result<(), Attempt> {
        let awaited = self.until_others_end(by).await;
        self.report.send(Event::AwaitsOthers(None));
        awaited
    }

    async fn until_others_end(&mut self, by: Option<Duration>) -> Result<(), Attempt> {
        let time_limit = match by {
            Some(by) if by >= NO_END => LEAVING_PATIENCE,
            _ => OTHERS_PATIENCE,
        };
        let over = by.map_or(Duration::MAX, |by| by.saturating_sub(AFTER_OTHERS));
        if !self.waits_for_others {
            return Ok(());
        }
        let (begun, mut is_logged, mut was_pressed) = (self.clock.now(), false, self.is_pressed.get());
        let mut until = begun + time_limit;
        while self.clock.now() < until.min(over) {
            if self.is_pressed.get() && !std::mem::replace(&mut was_pressed, true) {
                until = until.min(self.clock.now() + LEAVING_PATIENCE);
            }
            let is_soon = self.clock.now().saturating_sub(begun) < TO_BEGIN;
            if !self.has_others(if is_soon { |_| true } else { may_save }).await {
                return Ok(());
            }
            let left = by.map(|by| by.saturating_sub(self.clock.now()));
            // Usually they have ended by the second check.
            if !std::mem::replace(&mut is_logged, true) {
                self.report.send(Event::AwaitsOthers(Some(time_limit)));
            } else {
                if let Some(Outcome::Fenced { by }) = self.commit(How::running(self.settle), left).await {
                    return Err(by);
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        if is_logged {
            tracing::warn!(
                code = "others_run",
                "other processes of this node still run: their saves from now on are not committed"
            );
        }
        Ok(())
    }

    /// The last commit of the run. No process of this run writes any more; other processes of the node may. Errors: the
    /// newer run that has taken over.
    async fn flush(&mut self, by: Option<Duration>) -> Result<Flushed, Attempt> {
        self.await_others(by).await?;
        let how = self.at_the_end().await;
        let (mut looks, mut tries, begun) = (0, 0, self.clock.now());
        let limit = if by.is_some() { SHORT } else { LONG };
        let give_up_at = begun + limit;
        let flushed = loop {
            let left = by.map(|by| by.saturating_sub(self.clock.now()));
            let Some(both) = self.watchdog() else { break Flushed::Done { step: None } };
            let done = match self.given_up.take() {
                Some(why) => Err(why),
                None => both.watch("last commit", Some(limit), self.commit(how, left)).await,
            };
            let outcome = match done {
                Ok(outcome) => outcome,
                Err(why) => {
                    let committed = self.mirror.as_ref().map_or(String::new(), Mirror::last_commit_clause);
                    break Flushed::Failed(format!(
                        "{why}, so the last commit is given up; {committed}; check that it works and can be reached from here, then start again"
                    ));
                }
            };
            match outcome {
                None => break Flushed::Done { step: None },
                Some(Outcome::Committed { step, .. } | Outcome::UpToDate { step }) => break self.safe(step),
                Some(Outcome::Waiting { again: Some(again), .. })
                    if looks + 1 < LOOKS && how.writer == Writer::Running =>
                {
                    looks += 1;
                    tokio::time::sleep(again.min(self.settle)).await;
                }
                Some(Outcome::Waiting { .. }) => break self.safe(None),
                Some(Outcome::Empty) => {
                    self.mirror.as_ref().inspect(|mirror| self.report.warn_nothing_committed(mirror));
                    break Flushed::Done { step: None };
                }
                Some(Outcome::Fenced { by }) => return Err(by),
                Some(Outcome::Failed { message, is_away, again, .. })
                    if is_tried_again(is_away, again, tries, self.clock.now() < give_up_at) =>
                {
                    self.report.complain(self.mirror.as_ref(), message);
                    tokio::time::sleep(PAUSE * if is_away { 1 } else { 2_u32.pow(tries) }).await;
                    tries += u32::from(!is_away);
                }
                Some(Outcome::Failed { message, .. }) => break Flushed::Failed(message),
                Some(Outcome::OutOfTime { why }) => break Flushed::OutOfTime(why),
                Some(Outcome::Changed { why }) if looks + 1 == LOOKS => {
                    break Flushed::Failed(format!(
                        "the newest checkpoint keeps changing although {} ({why}), so it is not committed; {}; find out what \
                         else writes to the checkpoint directory",
                        if how.writer == Writer::Running {
                            "this run's command has ended"
                        } else {
                            "no process of the job is left"
                        },
                        self.mirror.as_ref().map_or(String::new(), Mirror::last_commit_clause)
                    ));
                }
                Some(Outcome::Changed { .. }) => {
                    looks += 1;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        Ok(flushed)
    }

    /// The result when the directory is in the store. It is safe only if no file is missing; missing files are
    /// reported.
    fn safe(&self, step: Option<u64>) -> Flushed {
        let left_out = self.mirror.as_ref().map(Mirror::left_out).unwrap_or_default();
        if let Some(mirror) = self.mirror.as_ref().filter(|_| !left_out.is_empty()) {
            self.report.left_out(mirror, &left_out);
            return Flushed::Done { step: None };
        }
        step.map_or(Flushed::Stepless, |step| Flushed::Done { step: Some(step) })
    }
}

/// Whether a failed last commit is tried again after this number of tries. An unreachable store is tried while
/// `is_patient`, a failure that another try may avoid a few times.
fn is_tried_again(is_away: bool, again: bool, tries: u32, is_patient: bool) -> bool {
    if is_away { is_patient } else { again && tries + 1 < TRIES }
}

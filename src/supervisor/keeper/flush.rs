//! The last commit of a run: when it is tried again, and how long a store is waited for that does not answer.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;

use super::super::background::{NO_END, Order};
use super::commit::Outcome;
use super::inbox::{Inbox, TO_ANY, TO_NONE};
use super::mirror::Mirror;
use super::places::COMMIT;
use super::vigil::{PROBE_PAUSE, patience};
use super::{Keeper, LAST_TURN};
use crate::rules::checkpoint::names::Attempt;
use crate::rules::job::{Event, Flushed};
use crate::rules::status::sibling::may_save;

/// How long to wait before looking again at a checkpoint that changed under the last commit of a run, and before what
/// failed is tried again.
pub(super) const LAST_LOOK_PAUSE: Duration = Duration::from_millis(500);
/// So often; with an empty process tree only somebody outside can be writing.
const LAST_LOOKS: u32 = 4;
/// How long the other processes of the node may take to end, and how much of what is left stays for what they leave.
const OTHERS_PATIENCE: Duration = Duration::from_secs(30);
const AFTER_OTHERS: Duration = Duration::from_secs(2);
/// Where trainit was told to stop without an end that was set: they were told as well, and 30 s are a platform's usual.
const LEAVING_PATIENCE: Duration = Duration::from_secs(4);
/// After a failure the launcher is to hear of it soon.
const FAILED_SETTLE: Duration = Duration::from_secs(3);
/// One that has waited for our restore begins within this time.
const TO_BEGIN: Duration = Duration::from_secs(3);
/// So often what another try may do is tried; what takes longer than the patience, twice.
pub(super) const LAST_TRIES: u32 = 4;

impl Keeper {
    /// The last commit, and after it, where there is time, what retention lets go of.
    pub(super) async fn flush_and_tidy(
        &mut self,
        by: Option<Duration>,
        inbox: &mut Inbox,
        orders: &mut UnboundedReceiver<Order>,
    ) {
        self.places.awaits(COMMIT, patience(by));
        let flushed = if inbox.is_cut_off() {
            None
        } else {
            let vigil = self.vigil();
            inbox.during(orders, TO_NONE, vigil, self.flush(by)).await
        };
        let flushed = match (flushed, inbox.silent()) {
            (Some(flushed), _) => flushed,
            (None, Some(silence)) => Ok(self.give_up(&silence.why).await),
            (None, None) => self.flush(Some(self.clock.now())).await,
        };
        if by.is_none() && matches!(flushed, Ok(Flushed::Done { .. } | Flushed::Stepless)) && inbox.is_idle() {
            self.teller.tell(Event::Tidying);
            inbox.during(orders, TO_ANY, None, self.retire(LAST_TURN, true)).await;
        }
        self.tell_flushed(flushed);
    }

    /// The last commit of the run was cut off, as somebody has kept it waiting for too long.
    async fn give_up(&mut self, why: &str) -> Flushed {
        // What it holds on to is let go of.
        let flushed = match self.commit(None, Some(Duration::ZERO)).await {
            Some(Outcome::UpToDate { step }) => safe(step),
            _ => self.kept_waiting(why),
        };
        self.tell_notes();
        flushed
    }

    fn kept_waiting(&self, why: &str) -> Flushed {
        let stands = self.mirror.as_ref().map_or(String::new(), Mirror::what_stands);
        Flushed::Failed(format!(
            "{why}; the newest checkpoint is not committed; {stands}; see that it is well and can be reached from here, then start again"
        ))
    }

    /// How long a checkpoint must have lain still after the end of our command. `None`: nobody can write any more.
    pub(super) async fn settle_for_others(&self) -> Option<Duration> {
        let settle = if self.waits_for_others { self.settle } else { self.settle.min(FAILED_SETTLE) };
        self.has_others(may_save).await.then_some(settle)
    }

    async fn has_others(&self, which: fn(&Value) -> bool) -> bool {
        match &self.others {
            Some(others) => others.any(which).await,
            None => false,
        }
    }

    /// What lies still is safe first, as often as there is more, until the others of the node have ended.
    /// Errors: the newer run that has taken over.
    async fn await_others(&mut self, by: Option<Duration>) -> Result<(), Attempt> {
        let awaited = self.until_others_end(by).await;
        self.teller.tell(Event::AwaitsOthers(None));
        awaited
    }

    async fn until_others_end(&mut self, by: Option<Duration>) -> Result<(), Attempt> {
        let patience = match by {
            Some(by) if by >= NO_END => LEAVING_PATIENCE,
            _ => OTHERS_PATIENCE,
        };
        let over = by.map_or(Duration::MAX, |by| by.saturating_sub(AFTER_OTHERS));
        if !self.waits_for_others {
            return Ok(());
        }
        let (begun, mut is_told, mut is_asked) = (self.places.now(), false, false);
        let mut until = begun + patience;
        while self.places.now() < until && self.clock.now() < over {
            if self.haste.is_asked() && !std::mem::replace(&mut is_asked, true) {
                until = until.min(self.places.now() + LEAVING_PATIENCE);
            }
            let is_soon = self.places.now().saturating_sub(begun) < TO_BEGIN;
            if !self.has_others(if is_soon { |_| true } else { may_save }).await {
                return Ok(());
            }
            let left = by.map(|by| by.saturating_sub(self.clock.now()));
            // Mostly they have ended by the second look.
            if !std::mem::replace(&mut is_told, true) {
                self.teller.tell(Event::AwaitsOthers(Some(patience)));
            } else if let Some(Outcome::Fenced { by }) = self.commit(Some(self.settle), left).await {
                return Err(by);
            }
            tokio::time::sleep(LAST_LOOK_PAUSE).await;
        }
        if is_told {
            tracing::warn!(
                code = "others_run",
                "other processes of this node still run: what they save from now on is not committed"
            );
        }
        Ok(())
    }

    /// The last commit of the run. Nobody of ours writes any more, but for the others of the node.
    /// Errors: the newer run that has taken over.
    async fn flush(&mut self, by: Option<Duration>) -> Result<Flushed, Attempt> {
        let flushed = self.commit_the_last(by).await;
        self.tell_notes();
        match (flushed, &self.mirror) {
            // It is no older one that was owed.
            (Ok(done @ (Flushed::Done { .. } | Flushed::Stepless)), Some(mirror)) => {
                let failed = |(what, way_out)| Flushed::Failed(format!("{what}; {}; {way_out}", mirror.what_stands()));
                Ok(mirror.denied().await.map_or(done, failed))
            }
            (flushed, _) => flushed,
        }
    }

    async fn commit_the_last(&mut self, by: Option<Duration>) -> Result<Flushed, Attempt> {
        self.await_others(by).await?;
        let settle = self.settle_for_others().await;
        let (mut looks, mut tries, begun) = (0, 0, self.places.now());
        loop {
            // A store that answers nobody is the vigil's, which begins a little later.
            let patience = begun + self.places.patience() + 2 * PROBE_PAUSE;
            let left = by.map(|by| by.saturating_sub(self.clock.now()));
            let outcome = self.commit(settle, left).await;
            let is_patient = self.places.now() < patience;
            return Ok(match outcome {
                None => Flushed::Done { step: None },
                Some(Outcome::Committed { step, bytes, seconds, .. }) => {
                    tracing::debug!(bytes, seconds, "the last commit is through");
                    safe(step)
                }
                Some(Outcome::UpToDate { step }) => safe(step),
                Some(Outcome::NothingComplete { why }) => {
                    self.tell_nothing_complete(&why);
                    Flushed::Done { step: None }
                }
                Some(Outcome::Fenced { by }) => return Err(by),
                Some(Outcome::Failed { message, is_away, again, .. })
                    if is_tried_again(is_away, again, tries, is_patient) =>
                {
                    self.complain(message);
                    tokio::time::sleep(LAST_LOOK_PAUSE * if is_away { 1 } else { 2_u32.pow(tries) }).await;
                    tries += u32::from(!(is_away && is_patient));
                    continue;
                }
                Some(Outcome::Failed { message, .. }) => Flushed::Failed(message),
                Some(Outcome::OutOfTime { why }) => Flushed::OutOfTime(why),
                Some(Outcome::Changed { why }) if looks + 1 == LAST_LOOKS => Flushed::Failed(format!(
                    "the newest checkpoint keeps changing although {} ({why}), so it is not committed; {}; find out who else \
                     writes to the checkpoint directory",
                    if settle.is_some() { "our command has ended" } else { "no process of the job is left" },
                    self.mirror.as_ref().map_or(String::new(), Mirror::what_stands)
                )),
                Some(Outcome::Changed { .. }) => {
                    looks += 1;
                    tokio::time::sleep(LAST_LOOK_PAUSE).await;
                    continue;
                }
            });
        }
    }

    /// Says that the end finds no checkpoint: a warning where the store has none of this run's either and nothing was said of
    /// one, since whoever trained and saved elsewhere has lost it, and a 0 would hide that.
    fn tell_nothing_complete(&self, why: &str) {
        let is_news = |mirror: &&Mirror| {
            mirror.begun && mirror.committed.is_none() && mirror.layout.is_none() && !mirror.remarks.told_of_its_saves()
        };
        match self.mirror.as_ref().filter(is_news) {
            Some(mirror) => tracing::warn!(
                code = "nothing_committed",
                "no complete checkpoint to commit: {why}; {}, so whoever goes on elsewhere begins without what was trained here; \
                 let the trainer save in TRAINIT_CHECKPOINT_DIR, and see what trainit checkpoint list shows of it",
                mirror.what_stands()
            ),
            None => tracing::info!("no complete checkpoint to commit: {why}"),
        }
    }
}

/// Whether a last commit that failed is tried again, after so many tries that were. A store that is away is, while we are
/// patient; one that has been away for longer than that is the vigil's, so that where we are not any more it took what it
/// was sent most of the time, and broke off.
fn is_tried_again(is_away: bool, again: bool, tries: u32, is_patient: bool) -> bool {
    match (is_away, is_patient) {
        (true, true) => true,
        (true, false) => tries == 0,
        (false, true) => again && tries + 1 < LAST_TRIES,
        (false, false) => again && tries == 0,
    }
}

/// The newest checkpoint is in the store, whether it has a step or not.
fn safe(step: Option<u64>) -> Flushed {
    step.map_or(Flushed::Stepless, |step| Flushed::Done { step: Some(step) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_longer_than_we_are_patient_and_broke_off_is_tried_once_more() {
        for tries in 0..=LAST_TRIES {
            let is_early = tries + 1 < LAST_TRIES;
            assert!(is_tried_again(true, false, tries, true), "a store that is away may come back");
            assert_eq!(is_tried_again(true, false, tries, false), tries == 0, "a connection that broke after minutes");
            assert_eq!(is_tried_again(false, true, tries, true), is_early);
            assert_eq!(is_tried_again(false, true, tries, false), tries == 0);
            assert!(!is_tried_again(false, false, tries, true) && !is_tried_again(false, false, tries, false));
        }
    }
}

//! How a job leaves a machine that goes away: at once, or after the next commit if there is time. `budget` divides the
//! time.

use std::time::Duration;

use super::parts::{Cause, Stop};
use super::{Machine, State};
use crate::job::budget;
use crate::job::event::{Action, Timer, Uptime};

/// When the machine goes away, and when this process must have exited.
type Ends = (Uptime, Uptime);

/// An end that was announced long before.
#[derive(Debug)]
pub(super) struct AnnouncedEnd {
    id: String,
    source: String,
    ends: Ends,
}

fn ends(now: Uptime, lead: Duration) -> Ends {
    let lead = budget::usable_lead(lead);
    (now + lead, now + budget::leave_after(lead))
}

fn sooner(one: Ends, other: Ends) -> Ends {
    (one.0.min(other.0), one.1.min(other.1))
}

impl Machine {
    pub(super) fn on_preempted(&mut self, now: Uptime, id: String, source: String, lead: Duration) -> Vec<Action> {
        let announced = ends(now, lead);
        let by = self.notices.leave_by.map_or(announced, |set| sooner(set, announced));
        let is_sooner = self.notices.leave_by != Some(by);
        self.notices.leave_by = Some(by);
        let is_far = by.0.saturating_sub(now) >= budget::LATE;
        if is_far && self.stopping.stop.is_none() && self.notices.acted_on.is_none() && self.state != State::Done {
            match self.notices.distant.iter_mut().find(|far| far.id == id) {
                Some(far) => far.ends = sooner(far.ends, announced),
                None => self.notices.distant.push(AnnouncedEnd { id, source, ends: announced }),
            }
            return is_sooner.then(|| Action::Arm(Timer::Leave, by.0 - budget::LATEST)).into_iter().collect();
        }
        self.leave(now, source)
    }

    /// An announced end was cancelled. Actions that have begun for it are not undone.
    pub(super) fn on_withdrawn(&mut self, id: &str) -> Vec<Action> {
        if self.stopping.stop.is_some()
            || self.notices.acted_on.is_some()
            || self.notices.distant.iter().all(|far| far.id != id)
        {
            return Vec::new();
        }
        self.notices.distant.retain(|far| far.id != id);
        self.notices.leave_by = self.notices.distant.iter().map(|far| far.ends).reduce(sooner);
        vec![match self.notices.leave_by {
            Some((end, _)) => Action::Arm(Timer::Leave, end - budget::LATEST),
            None => Action::Disarm(Timer::Leave),
        }]
    }

    /// The source of the earliest distant end.
    pub(super) fn next_end(&self) -> Option<&str> {
        self.notices.distant.iter().min_by_key(|far| far.ends).map(|far| far.source.as_str())
    }

    /// A distant end is near.
    pub(super) fn on_end_near(&mut self, now: Uptime) -> Vec<Action> {
        let Some(source) = self.next_end().map(str::to_owned) else { return Vec::new() };
        let left = self.notices.leave_by.map_or(Duration::ZERO, |(end, _)| end.saturating_sub(now));
        if budget::usable_lead(left) > left {
            // This process was frozen until after the announced time, so the trainer was not signalled yet.
            self.notices.leave_by = Some(ends(now, left));
        }
        self.leave(now, source)
    }

    /// A checkpoint was just committed, which is the best time to leave if the end is not far away.
    pub(super) fn on_commit_before_end(&mut self, now: Uptime) -> Vec<Action> {
        let is_near = self.notices.leave_by.is_some_and(|(end, _)| end.saturating_sub(now) <= budget::NATURAL);
        if is_near { self.on_end_near(now) } else { Vec::new() }
    }

    fn leave(&mut self, now: Uptime, source: String) -> Vec<Action> {
        let Some((end, gone)) = self.notices.leave_by else { return Vec::new() };
        if let Some(actions) = self.leave_after_success() {
            return actions;
        }
        let mut actions = Vec::new();
        self.notices.acted_on.get_or_insert_with(|| source.clone());
        if !std::mem::take(&mut self.notices.distant).is_empty() {
            actions.push(Action::Disarm(Timer::Leave));
        }
        let first = self.stopping.stop.is_none();
        let kill_at = now + budget::kill_after(end.saturating_sub(now), self.commits.last_took);
        let notice = Stop { cause: Cause::Notice { source }, is_signalled: true };
        match self.state {
            State::Running | State::Launching => {
                self.stopping.stop.get_or_insert(notice);
                actions.extend(self.begin_stop(now, kill_at));
                if first && let Some(signal) = self.policy.preempt_signal {
                    actions.extend(self.deliver(now, signal));
                }
                if first {
                    actions.extend(self.commit_soon(true));
                }
            }
            State::Draining => {
                // A success stays a success; anything else is not retried on a machine that goes away.
                if !self.succeeded() {
                    self.stopping.stop.get_or_insert(notice);
                }
                actions.extend(self.set_deadline(now, kill_at));
            }
            State::Fetching
            | State::Restoring
            | State::Gathering
            | State::Refreshing
            | State::Waiting
            | State::Surveying
            | State::Assembling
            | State::Arming => {
                self.stopping.stop.get_or_insert(notice);
                actions.extend(self.flush(now));
            }
            State::Flushing => actions.extend([self.flush_limit(now), Action::SetCommitDeadline { deadline: gone }]),
            State::Done => {}
        }
        actions
    }

    /// Asks for a commit soon, if there is a store.
    pub(super) fn commit_soon(&self, notice: bool) -> Vec<Action> {
        let can_commit = self.policy.store && !matches!(self.state, State::Flushing | State::Done);
        if can_commit { vec![Action::CommitSoon { notice }] } else { Vec::new() }
    }
}

//! How a job leaves a machine that goes away: at once, or at the next natural end where there is time. What the time is
//! shared into is `budget`'s.

use std::time::Duration;

use super::{Cause, Machine, State, Stop};
use crate::rules::job::budget;
use crate::rules::job::event::{Action, Timer, Uptime};

/// When a machine goes away after this lead, and when we must be gone.
fn ends(now: Uptime, lead: Duration) -> (Uptime, Uptime) {
    let lead = budget::believed(lead);
    (now + lead, now + budget::leave_after(lead))
}

impl Machine {
    pub(super) fn on_preempted(&mut self, now: Uptime, source: String, lead: Duration) -> Vec<Action> {
        let told = ends(now, lead);
        let by = self.leave_by.map_or(told, |set| (set.0.min(told.0), set.1.min(told.1)));
        let is_sooner = self.leave_by != Some(by);
        self.leave_by = Some(by);
        let is_far = by.0.saturating_sub(now) >= budget::LATE;
        if is_far && self.stop.is_none() && self.state != State::Done {
            self.late.get_or_insert(source);
            return is_sooner.then(|| Action::Arm(Timer::Leave, by.0 - budget::LATEST)).into_iter().collect();
        }
        self.leave(now, source)
    }

    /// The end that was announced long ago is near.
    pub(super) fn on_end_near(&mut self, now: Uptime) -> Vec<Action> {
        let Some(source) = self.late.clone() else { return Vec::new() };
        let left = self.leave_by.map_or(Duration::ZERO, |(end, _)| end.saturating_sub(now));
        if budget::believed(left) > left {
            // Nobody was awake in time; the trainer was not told yet.
            self.leave_by = Some(ends(now, left));
        }
        self.leave(now, source)
    }

    /// A checkpoint was just committed: the best moment to leave, if the end is not far.
    pub(super) fn on_natural_end(&mut self, now: Uptime) -> Vec<Action> {
        let is_near = self.leave_by.is_some_and(|(end, _)| end.saturating_sub(now) <= budget::NATURAL);
        if is_near { self.on_end_near(now) } else { Vec::new() }
    }

    fn leave(&mut self, now: Uptime, source: String) -> Vec<Action> {
        let Some((end, gone)) = self.leave_by else { return Vec::new() };
        let mut actions = Vec::new();
        if self.late.take().is_some() {
            actions.push(Action::Disarm(Timer::Leave));
        }
        let first = self.stop.is_none();
        let kill_at = now + budget::kill_after(end.saturating_sub(now), self.commit_took);
        let notice = Stop { cause: Cause::Notice { source }, told: true };
        match self.state {
            State::Running | State::Launching => {
                self.stop.get_or_insert(notice);
                actions.extend(self.begin_stop(kill_at));
                if first && let Some(signal) = self.policy.preempt_signal {
                    actions.extend(self.deliver(signal));
                }
                if first {
                    actions.extend(self.hasten(true));
                }
            }
            State::Draining => {
                // What has ended well stays so; anything else is not tried again on a machine that goes away.
                if !self.succeeded() {
                    self.stop.get_or_insert(notice);
                }
                actions.extend(self.set_deadline(kill_at));
            }
            State::Restoring | State::Gathering | State::Refreshing | State::Waiting => {
                self.stop.get_or_insert(notice);
                actions.extend(self.flush(now));
            }
            State::Flushing => actions.extend([self.flush_limit(now), Action::Hurry { deadline: gone }]),
            State::Done => {}
        }
        actions
    }

    /// A checkpoint soon, where there is a store for it.
    pub(super) fn hasten(&mut self, notice: bool) -> Vec<Action> {
        let is_of_use = self.policy.store && !matches!(self.state, State::Flushing | State::Done);
        if is_of_use { vec![Action::Hasten { notice }] } else { Vec::new() }
    }
}

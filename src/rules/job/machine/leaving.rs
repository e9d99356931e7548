//! How a job leaves a machine that goes away: at once, or at the next natural end where there is time. What the time is
//! shared into is `budget`'s.

use std::time::Duration;

use super::{Cause, Machine, State, Stop};
use crate::rules::job::budget;
use crate::rules::job::event::{Action, Timer, Uptime};

/// When the machine goes away, and when we must be gone.
type Ends = (Uptime, Uptime);

/// An end that was announced long before.
#[derive(Debug)]
pub(super) struct Far {
    id: String,
    source: String,
    ends: Ends,
}

fn ends(now: Uptime, lead: Duration) -> Ends {
    let lead = budget::believed(lead);
    (now + lead, now + budget::leave_after(lead))
}

fn sooner(one: Ends, other: Ends) -> Ends {
    (one.0.min(other.0), one.1.min(other.1))
}

impl Machine {
    pub(super) fn on_preempted(&mut self, now: Uptime, id: String, source: String, lead: Duration) -> Vec<Action> {
        let told = ends(now, lead);
        let by = self.leave_by.map_or(told, |set| sooner(set, told));
        let is_sooner = self.leave_by != Some(by);
        self.leave_by = Some(by);
        let is_far = by.0.saturating_sub(now) >= budget::LATE;
        if is_far && self.stop.is_none() && self.leaving.is_none() && self.state != State::Done {
            match self.far.iter_mut().find(|far| far.id == id) {
                Some(far) => far.ends = sooner(far.ends, told),
                None => self.far.push(Far { id, source, ends: told }),
            }
            return is_sooner.then(|| Action::Arm(Timer::Leave, by.0 - budget::LATEST)).into_iter().collect();
        }
        self.leave(now, source)
    }

    /// What was announced will not come; what was begun for it is not taken back.
    pub(super) fn on_withdrawn(&mut self, id: &str) -> Vec<Action> {
        if self.stop.is_some() || self.leaving.is_some() || self.far.iter().all(|far| far.id != id) {
            return Vec::new();
        }
        self.far.retain(|far| far.id != id);
        self.leave_by = self.far.iter().map(|far| far.ends).reduce(sooner);
        vec![match self.leave_by {
            Some((end, _)) => Action::Arm(Timer::Leave, end - budget::LATEST),
            None => Action::Disarm(Timer::Leave),
        }]
    }

    /// Who announced the next of the ends that are far away.
    pub(super) fn next_end(&self) -> Option<&str> {
        self.far.iter().min_by_key(|far| far.ends).map(|far| far.source.as_str())
    }

    /// The end that was announced long ago is near.
    pub(super) fn on_end_near(&mut self, now: Uptime) -> Vec<Action> {
        let Some(source) = self.next_end().map(str::to_owned) else { return Vec::new() };
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
        self.leaving.get_or_insert_with(|| source.clone());
        if !std::mem::take(&mut self.far).is_empty() {
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

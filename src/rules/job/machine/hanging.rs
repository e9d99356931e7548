//! A trainer without signs of life: its stacks are dumped, and it is ended, which counts as a crash.

use std::time::Duration;

use super::{Machine, State};
use crate::gang::message::Class;
use crate::job::event::{Action, Timer, Uptime};
use crate::job::hang::{LivenessSample, Watchdog};

/// The time between SIGABRT and SIGKILL, for a traceback of faulthandler or a core dump.
const ABORT_GRACE: Duration = Duration::from_secs(10);
/// PyTorch looks once a second whether a dump is wanted, and then writes it.
const TO_DUMP: Duration = Duration::from_secs(5);

impl Machine {
    /// Starts the watchdog of an attempt, if the policy has one.
    pub(super) fn watch(&mut self, now: Uptime) -> Option<Action> {
        let mut watch = Watchdog::begin(self.policy.hang_timeout?, self.policy.may_spin, now);
        if let Some(until) = self.notices.frozen_until {
            watch.frozen(until);
        }
        let at = watch.next_look(now);
        self.watchdog = Some(watch);
        Some(Action::Arm(Timer::SampleLiveness, at))
    }

    /// Why the attempt was ended as hung.
    pub fn hung(&self) -> Option<&str> {
        self.attempt.hung.as_deref()
    }

    pub(super) fn alive(&mut self, now: Uptime, sign: &'static str) {
        if let Some(watch) = &mut self.watchdog {
            watch.alive(now, sign);
        }
    }

    pub(super) fn on_frozen(&mut self, now: Uptime, length: Duration) -> Vec<Action> {
        let until = self.notices.frozen_until.max(Some(now + length));
        self.notices.frozen_until = until;
        if let (Some(watch), Some(until)) = (&mut self.watchdog, until) {
            watch.frozen(until);
        }
        Vec::new()
    }

    pub(super) fn on_look_due(&mut self, now: Uptime) -> Vec<Action> {
        match &mut self.watchdog {
            // A job that is being stopped has its own deadline.
            Some(watch) if matches!(self.state, State::Running) && self.stopping.stop.is_none() => {
                watch.wake(now);
                vec![Action::SampleLiveness]
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn on_liveness_sample(&mut self, now: Uptime, sample: LivenessSample) -> Vec<Action> {
        self.restarts.budget.heartbeat_step(sample.step);
        // A stop began after this sample was taken, and it has its own deadline.
        if self.stopping.stop.is_some() {
            return Vec::new();
        }
        let Some(watch) = &mut self.watchdog else { return Vec::new() };
        watch.on_sample(now, &sample);
        let Some(why) = watch.verdict(now) else {
            return vec![Action::Arm(Timer::SampleLiveness, watch.next_look(now))];
        };
        let mut actions = Vec::new();
        if self.is_in_gang() {
            actions.extend([Action::ReportTree, self.failure_report(Class::Hung, None, why.clone())]);
        }
        actions.extend(self.abort(now, why));
        actions
    }

    /// Ends a trainer that hangs.
    pub(super) fn abort(&mut self, now: Uptime, why: String) -> Vec<Action> {
        (self.watchdog, self.attempt.hung) = (None, Some(why));
        let mut actions = vec![Action::DumpStacks];
        if self.policy.asks_for_dumps {
            actions.extend([Action::AskForDumps, Action::Arm(Timer::Abort, now + TO_DUMP)]);
            actions.extend(self.set_deadline(now, now + TO_DUMP + ABORT_GRACE));
        } else {
            actions.push(Action::AbortTree);
            actions.extend(self.set_deadline(now, now + ABORT_GRACE));
        }
        actions
    }

    /// The time for the flight recorder's dumps is over: sends SIGABRT.
    pub(super) fn on_abort_due(&self) -> Vec<Action> {
        let is_hung = self.state == State::Running && self.attempt.hung.is_some();
        if is_hung && self.stopping.stop.is_none() { vec![Action::AbortTree] } else { Vec::new() }
    }
}

//! A trainer that shows no sign of life: its stacks are dumped, then it is ended, which counts as a crash.

use std::time::Duration;

use super::{Machine, State};
use crate::rules::job::event::{Action, Timer, Uptime};
use crate::rules::job::hang::{Pulse, Watch};

/// What SIGABRT is given (a faulthandler writes its traceback, a core is dumped) before SIGKILL.
const ABORT_GRACE: Duration = Duration::from_secs(10);

impl Machine {
    /// An attempt runs: watch it, if that was asked for.
    pub(super) fn watch(&mut self, now: Uptime) -> Option<Action> {
        let mut watch = Watch::begin(self.policy.hang?, now);
        if let Some(until) = self.frozen_until {
            watch.frozen(until);
        }
        let at = watch.next_look(now);
        self.watch = Some(watch);
        Some(Action::Arm(Timer::Pulse, at))
    }

    /// Why the attempt was ended as hung.
    pub fn hung(&self) -> Option<&str> {
        self.hung.as_deref()
    }

    pub(super) fn alive(&mut self, now: Uptime, sign: &'static str) {
        if let Some(watch) = &mut self.watch {
            watch.alive(now, sign);
        }
    }

    pub(super) fn on_frozen(&mut self, now: Uptime, length: Duration) -> Vec<Action> {
        let until = self.frozen_until.max(Some(now + length));
        self.frozen_until = until;
        if let (Some(watch), Some(until)) = (&mut self.watch, until) {
            watch.frozen(until);
        }
        Vec::new()
    }

    pub(super) fn on_look_due(&mut self, now: Uptime) -> Vec<Action> {
        match &mut self.watch {
            // A job that is being stopped has its own deadline.
            Some(watch) if matches!(self.state, State::Running) && self.stop.is_none() => {
                watch.wake(now);
                vec![Action::Feel]
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn on_pulse(&mut self, now: Uptime, pulse: Pulse) -> Vec<Action> {
        self.memory.beaten(pulse.step);
        // Told to stop since it was looked at, it has its own deadline.
        if self.stop.is_some() {
            return Vec::new();
        }
        let Some(watch) = &mut self.watch else { return Vec::new() };
        watch.hear(now, &pulse);
        let Some(why) = watch.verdict(now) else { return vec![Action::Arm(Timer::Pulse, watch.next_look(now))] };
        self.watch = None;
        self.hung = Some(why);
        let mut actions = vec![Action::DumpStacks, Action::AbortTree];
        actions.extend(self.set_deadline(now + ABORT_GRACE));
        actions
    }
}

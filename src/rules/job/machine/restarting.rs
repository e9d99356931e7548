//! After a crash: another attempt, one from an older checkpoint, or the end.

use super::{Machine, State};
use crate::job::event::{Action, Timer, Uptime};
use crate::job::restart::{Decision, Failure};

impl Machine {
    /// The tree is empty after a crash, and the checkpoint to resume from is known.
    pub(super) fn decide(&mut self, now: Uptime) -> Vec<Action> {
        let Some((end, _)) = self.attempt.ended else { return self.flush(now) };
        let step = self.next.resume.as_ref().and_then(|r| r.step);
        let failure = Failure {
            end,
            oom: self.ran_out_of_memory(),
            hung: self.attempt.hung.is_some(),
            lasted: self.attempt.ended_at.saturating_sub(self.attempt.started_at),
            step,
            without_progress: self.attempt.resumed.is_some() && !self.attempt.has_saved,
            with_progress: self.attempt.has_saved,
        };
        match self.restarts.budget.decide(&self.policy, failure) {
            Decision::Restart(pause) => {
                self.state = State::Waiting;
                vec![Action::Arm(Timer::Backoff, now + pause)]
            }
            Decision::FallBack(pause) => {
                self.next.falling_back = Some(pause);
                self.state = State::Refreshing;
                vec![Action::FallBack]
            }
            Decision::GiveUp(why) => {
                self.restarts.no_restart_reason = why;
                self.flush(now)
            }
        }
    }

    /// The older checkpoint is in place. If there is none, the job ends and never starts from scratch.
    pub(super) fn on_fallen_back(&mut self, now: Uptime) -> Vec<Action> {
        let pause = self.next.falling_back.take().unwrap_or_default();
        let bad = self.attempt.resumed.as_ref().map(|r| r.from.clone()).unwrap_or_default();
        if self.next.resume.is_none() {
            self.restarts.no_restart_reason =
                format!("it failed twice soon after resuming from {bad}, and there is no older checkpoint");
            return self.flush(now);
        }
        self.next.passed_over = Some(bad);
        self.restarts.budget.fell_back_to(self.next.resume.as_ref().and_then(|r| r.step));
        self.state = State::Waiting;
        vec![Action::Arm(Timer::Backoff, now + pause)]
    }

    /// A newer checkpoint that the next attempt does not resume from, because it failed from there twice.
    pub fn passed_over(&self) -> Option<&str> {
        self.next.passed_over.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ended, feed, running, secs};
    use super::*;
    use crate::job::{Event, Policy};

    #[test]
    fn a_quick_crash_stays_quick_if_its_tree_is_slow_to_end() {
        let mut machine = running(Policy { max_restarts: 6, ..Policy::default() });
        for at in [0.0, 200.0, 400.0] {
            machine.step(secs(at + 0.4), ended(7));
            feed(&mut machine, at + 61.0, [Event::TreeEmpty]);
            feed(&mut machine, at + 200.0, [Event::Due(Timer::Backoff), Event::Spawned { pids: vec![8] }]);
        }
        assert_eq!((machine.state(), machine.attempt()), (&State::Done, 3));
    }
}

//! What follows a crash: another attempt, one from an older checkpoint, or the end.

use super::{Machine, State};
use crate::rules::job::event::{Action, Timer, Uptime};
use crate::rules::job::restart::{Answer, Failure};

impl Machine {
    /// The tree is empty after a crash, and where to go on from is known.
    pub(super) fn judge(&mut self, now: Uptime) -> Vec<Action> {
        let Some((end, _)) = self.ended else { return self.flush(now) };
        let step = self.resume.as_ref().and_then(|r| r.step);
        let failure = Failure {
            end,
            oom: self.ran_out_of_memory(),
            hung: self.hung.is_some(),
            lasted: self.ended_at.saturating_sub(self.started_at),
            step,
            stuck: self.resume.is_some() && self.resume == self.resumed,
            saved: self.resume.is_some() && self.resume != self.resumed,
        };
        match self.memory.judge(&self.policy, failure) {
            Answer::After(pause) => {
                self.state = State::Waiting;
                vec![Action::Arm(Timer::Backoff, now + pause)]
            }
            Answer::Older(pause) => {
                self.falling_back = Some(pause);
                self.state = State::Refreshing;
                vec![Action::FallBack]
            }
            Answer::No(why) => {
                self.gave_up = why;
                self.flush(now)
            }
        }
    }

    /// An older checkpoint is in place, or there is none: then nothing is started, and never from scratch.
    pub(super) fn on_fallen_back(&mut self, now: Uptime) -> Vec<Action> {
        let pause = self.falling_back.take().unwrap_or_default();
        let bad = self.resumed.as_ref().map(|r| r.from.clone()).unwrap_or_default();
        if self.resume.is_none() || self.resume == self.resumed {
            self.gave_up = format!("it failed twice soon after going on from {bad}, and there is no older checkpoint");
            return self.flush(now);
        }
        self.passed_over = Some(bad);
        self.memory.goes_back_to(self.resume.as_ref().and_then(|r| r.step));
        self.state = State::Waiting;
        vec![Action::Arm(Timer::Backoff, now + pause)]
    }

    /// What the next attempt does not go on from although it is newer: it failed from there twice.
    pub fn passed_over(&self) -> Option<&str> {
        self.passed_over.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ended, feed, running, secs};
    use super::*;
    use crate::rules::job::{Event, Policy};

    #[test]
    fn a_tree_that_is_slow_to_end_makes_no_long_attempt_of_a_quick_crash() {
        let mut machine = running(Policy { max_restarts: 6, ..Policy::default() });
        for at in [0.0, 200.0, 400.0] {
            machine.step(secs(at + 0.4), ended(7));
            feed(&mut machine, at + 61.0, [Event::TreeEmpty]);
            feed(&mut machine, at + 200.0, [Event::Due(Timer::Backoff), Event::Spawned { pids: vec![8] }]);
        }
        assert_eq!((machine.state(), machine.attempt()), (&State::Done, 3));
    }
}

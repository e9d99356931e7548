//! The restores and what follows: the wait for the peers and the first start; after a crash another attempt, one from an
//! older checkpoint, or the end.

use super::*;
use crate::job::restart::{Decision, Failure};

impl Machine {
    /// Restores, or starts the command if there is no checkpoint directory. In a gang the member asks for a survey.
    pub(super) fn begin(&mut self) -> Vec<Action> {
        if self.is_in_gang() {
            self.state = State::Surveying;
            return if std::mem::take(&mut self.gang.is_survey_due) { self.survey() } else { Vec::new() };
        }
        if self.policy.checkpoints { vec![Action::Restore] } else { self.start_or_gather() }
    }

    /// The restore is complete: starts the first attempt, after waiting for the peers if necessary.
    fn start_or_gather(&mut self) -> Vec<Action> {
        if self.policy.peers.is_none() {
            return self.spawn();
        }
        self.state = State::Gathering;
        vec![Action::AwaitPeers]
    }

    /// New content was committed.
    pub(super) fn on_progress(&mut self, step: Option<u64>) {
        self.attempt.has_saved = true;
        self.restarts.budget.progressed(step);
    }

    pub(super) fn on_restored(&mut self, now: Uptime, resume: Option<Resume>, committed: Option<u64>) -> Vec<Action> {
        if self.next.falling_back.is_none() {
            self.note_newest(committed);
        }
        let step = resume.as_ref().and_then(|r| r.step);
        self.next.resume = resume;
        match self.state {
            State::Restoring => {
                self.restarts.budget.starts_from(step.max(committed));
                self.start_or_gather()
            }
            State::Arming => self.on_armed(),
            State::Refreshing if self.next.falling_back.is_some() => self.on_fallen_back(now),
            State::Refreshing => self.decide(now),
            _ => Vec::new(),
        }
    }

    /// The next restore of this job starts with this commit.
    pub(super) fn on_found(&mut self, committed: Option<u64>) -> Vec<Action> {
        if matches!(self.state, State::Restoring | State::Flushing) {
            self.commits.step = committed;
        }
        Vec::new()
    }

    pub(super) fn on_not_restored(&mut self, code: u8, detail: String) -> Vec<Action> {
        match (&self.state, code) {
            (State::Arming, exit::STORE) => self.on_not_armed(detail),
            (State::Surveying | State::Arming, exit::FENCED) => self.exit(Reason::Fenced, code, detail),
            (State::Surveying, exit::STORE) => self.exit(Reason::Store, code, detail),
            (State::Surveying | State::Arming, _) => self.exit(Reason::NotStarted, code, detail),
            (State::Restoring | State::Refreshing, exit::STORE) => self.exit(Reason::Store, code, detail),
            (State::Restoring | State::Refreshing, exit::FENCED) => self.exit(Reason::Fenced, code, detail),
            (State::Restoring | State::Refreshing, _) => self.exit(Reason::NotStarted, code, detail),
            _ => Vec::new(),
        }
    }

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

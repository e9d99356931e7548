//! The messages of a member about its trainer.

use std::time::Duration;

use super::super::beat::Beat;
use super::super::message::{Class, Failure, ToLeader, millis};
use super::{Action, Link, Member, Phase};

impl Member {
    /// All shall save at this step. Only the leader's own replica asks.
    pub fn ask_to_save(&mut self, step: u64) {
        self.wanted_save = Some(step);
    }

    /// The step at which all save next, as the leader has named it to all.
    pub fn save_step(&self) -> Option<u64> {
        self.save_step
    }

    pub(super) fn beat(&self, now: Duration) -> Beat {
        let (clock, committed) = (millis(now), self.committed.clone());
        let succeeded = if let Phase::Committing(generation) = self.phase { Some(generation) } else { None };
        let ends = self.has_closed && self.aborting.is_some();
        let (step, restoring, commits) = (self.step, self.restoring, self.commits);
        let (has_own, save_step) = (self.has_own, self.wanted_save);
        Beat { clock, step, restoring, committed, succeeded, commits, ends, has_own, save_step, leaves: None }
    }

    /// Reports at once that the trainer does not run any more.
    pub(super) fn begin_commit(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.commits = true;
        self.send(ToLeader::Beat(self.beat(now)), actions);
    }

    /// Sends a message if the member has its seat; otherwise a later `Hello` or `Offer` has the information.
    pub(super) fn send(&self, message: ToLeader, actions: &mut Vec<Action>) {
        if self.link == Link::Welcomed {
            actions.push(Action::Send(message));
        }
    }

    pub(super) fn send_failure(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.link == Link::Welcomed
            && let Some((died, generation, failure)) = self.unconfirmed_failure.clone()
        {
            let age = millis(now.saturating_sub(died));
            actions.push(Action::Send(ToLeader::Failed { generation, age, failure, is_early: false }));
        }
    }

    /// The main child has died, or has to be stopped.
    pub(super) fn failed(&mut self, now: Duration, failure: Failure, actions: &mut Vec<Action>) {
        if let Phase::Training(generation) = self.phase {
            self.phase = Phase::Stopping;
            self.aborting = Some(generation).filter(|_| failure.class == Class::Hung);
            self.unconfirmed_failure = Some((now, generation, failure));
            self.send_failure(now, actions);
        } else if let Some(generation) = self.aborting.filter(|_| self.has_closed) {
            self.send(ToLeader::Failed { generation, age: 0, failure, is_early: true }, actions);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ENDING;
    use super::super::super::message::ToMember;
    use super::super::Event;
    use super::super::tests::{at, receive, training};
    use super::*;

    #[test]
    fn a_trainer_that_has_closed_its_connections_has_time_at_a_halt_and_its_end_is_an_early_failure() {
        let mut member = training();
        member.step(at(4), Event::ConnectionsClosed);
        let actions = receive(&mut member, 5, ToMember::Halt { generation: 1, hung: false });
        assert!(actions.contains(&Action::AwaitEnd(ENDING)), "{actions:?}");
        let says = |action: &Action| matches!(action, Action::Send(ToLeader::Beat(Beat { ends: true, .. })));
        assert!(actions.iter().any(says), "{actions:?}");
        let actions = member.step(at(2_000), Event::Failed(Failure::new(Class::Code, None, "exit code 7")));
        let reports = |action: &Action| matches!(action, Action::Send(ToLeader::Failed { is_early: true, .. }));
        assert!(actions.iter().any(reports), "{actions:?}");
    }

    #[test]
    fn without_the_leader_such_a_trainer_is_stopped_like_any_other() {
        let mut member = training();
        member.step(at(4), Event::ConnectionsClosed);
        receive(&mut member, 5, ToMember::Halt { generation: 1, hung: false });
        member.step(at(10), Event::Unlinked { silent: false });
        let actions = member.step(at(600), Event::Tick);
        assert!(actions.iter().any(|action| matches!(action, Action::Stop(_))), "{actions:?}");
    }
}

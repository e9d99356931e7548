//! The messages of a member about its trainer.

use std::time::Duration;

use super::super::beat::Beat;
use super::super::message::{ToLeader, millis};
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
        let (step, restoring, commits) = (self.step, self.restoring, self.commits);
        let (has_own, save_step) = (self.has_own, self.wanted_save);
        Beat { clock, step, restoring, committed, succeeded, commits, has_own, save_step, leaves: None }
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
            actions.push(Action::Send(ToLeader::Failed { generation, age, failure }));
        }
    }
}

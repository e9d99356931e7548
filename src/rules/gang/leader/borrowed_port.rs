//! When the leader may listen at the port of its own replica's trainer.

use super::{Leader, State};

impl Leader {
    /// Whether no trainer of the leader's node runs or is about to start. When an event turns this to false, the caller closes
    /// the port before it performs the event's actions: one of them starts the trainer.
    pub fn may_borrow_port(&self) -> bool {
        self.holders.get(&self.config.own).is_some_and(|own| match own.state {
            State::Joined | State::Offered(_) | State::Restoring | State::Armed | State::Finished => true,
            State::Training | State::Stopping => false,
        })
    }
}

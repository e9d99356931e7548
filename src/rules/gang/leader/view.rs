//! The members and missing seats, for the status.

use super::super::view::{LeaderView, MOST_MEMBERS, MemberView};
use super::{Leader, Phase, State};

impl Leader {
    /// The members that have joined, and the missing seats.
    pub fn view(&self) -> LeaderView {
        let members = self.holders.iter().take(MOST_MEMBERS).map(|(seat, holder)| MemberView {
            seat: *seat,
            host: holder.host.clone(),
            state: match &holder.state {
                _ if holder.link.is_none() => "away",
                State::Joined => "joined",
                State::Offered(_) => "ready",
                State::Restoring => "restoring",
                State::Armed => "armed",
                State::Training => "training",
                State::Stopping => "stopping",
                State::Finished => "finished",
            },
            step: holder.step,
        });
        let waits = matches!(self.phase, Phase::Collecting | Phase::Arming);
        LeaderView { members: members.collect(), missing: if waits { self.missing() } else { Vec::new() } }
    }
}

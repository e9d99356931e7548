//! The newest step that all members have committed: no member deletes it, or what is newer.

use super::super::agreement::Mode;
use super::super::message::{Choice, ToMember};
use super::super::seat::Seat;
use super::{Action, Leader};

impl Leader {
    /// One of these steps, which a member has committed, may be the newest that every member with checkpoints has.
    pub(super) fn keep(&mut self, new: &[u64], actions: &mut Vec<Action>) {
        let chief = self.chief();
        let has_any = |seat: &Seat| self.holders.get(seat).is_some_and(|holder| !holder.committed.is_empty());
        let is_each = match self.config.mode {
            Mode::Each => true,
            Mode::Chief | Mode::Shared => false,
            Mode::Auto => {
                let mut others = self.config.roster.iter().filter(|seat| seat.trains() && Some(**seat) != chief);
                self.record.each_has_own = self.record.each_has_own || others.any(has_any);
                self.record.each_has_own && !matches!(self.choice, Some(Choice::Shared(_)))
            }
        };
        let lacks = |leader: &Leader, seat: Seat, step: u64| {
            let keeps = if is_each { seat.trains() } else { Some(seat) == chief };
            keeps && !leader.holders.get(&seat).is_some_and(|holder| holder.committed.contains(&step))
        };
        let mut newer: Vec<u64> = new.iter().copied().filter(|step| Some(*step) > self.record.kept).collect();
        newer.sort_unstable();
        let common = newer.into_iter().rev().find(|step| !self.any_seat(|leader, seat| lacks(leader, seat, *step)));
        if let Some(step) = common {
            self.record.keep(step);
            self.tell_all(&ToMember::Kept { step }, actions);
        }
    }
}

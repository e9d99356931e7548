//! The newest step that all members have committed: no member deletes it, or what is newer.

use std::collections::BTreeSet;

use super::super::agreement::Mode;
use super::super::message::{Choice, ToMember};
use super::super::seat::Seat;
use super::{Action, Leader};

impl Leader {
    /// The newest step that every member with checkpoints has committed.
    pub(super) fn keep(&mut self, actions: &mut Vec<Action>) {
        let chief = self.chief();
        let committed = |seat: &Seat| self.holders.get(seat).map(|holder| &holder.committed);
        let has_any = |seat: &Seat| committed(seat).is_some_and(|steps| !steps.is_empty());
        let training = || self.config.roster.iter().filter(|seat| seat.trains());
        let is_each = match self.config.mode {
            Mode::Each => true,
            Mode::Chief | Mode::Shared => false,
            Mode::Auto => {
                self.record.each_has_own |= training().any(|seat| Some(*seat) != chief && has_any(seat));
                self.record.each_has_own && !matches!(self.choice, Some(Choice::Shared(_)))
            }
        };
        let keepers: Option<Vec<&BTreeSet<u64>>> =
            training().filter(|seat| is_each || Some(**seat) == chief).map(committed).collect();
        let common = keepers.and_then(|keepers| {
            let (first, others) = keepers.split_first()?;
            first.iter().rev().find(|step| others.iter().all(|steps| steps.contains(step))).copied()
        });
        if let Some(step) = common.filter(|step| Some(*step) > self.record.kept) {
            (self.record.kept, self.record.from_nothing) = (Some(step), false);
            self.tell_all(&ToMember::Kept { step }, actions);
        }
    }
}

//! The newest step that all members have committed: no member deletes this step or newer ones.

use super::super::agreement::Mode;
use super::super::message::{Choice, ToMember};
use super::{Action, Leader};
use crate::cluster::seat::Seat;

impl Leader {
    /// Updates the kept step after a member has committed these steps.
    pub(super) fn keep(&mut self, new: &[u64], actions: &mut Vec<Action>) {
        let chief = self.chief();
        let has_any = |seat: &Seat| self.holders.get(seat).is_some_and(|holder| !holder.committed.is_empty());
        let (is_each, is_known) = match self.config.mode {
            Mode::Each => (true, true),
            Mode::Chief | Mode::Shared => (false, true),
            Mode::Auto => {
                let mut others = self.config.roster.iter().filter(|seat| seat.trains() && Some(**seat) != chief);
                self.record.each_has_own = self.record.each_has_own || others.any(has_any);
                let is_shared = matches!(self.choice, Some(Choice::Shared(_)));
                (self.record.each_has_own && !is_shared, self.record.each_has_own || is_shared)
            }
        };
        // Other nodes may keep checkpoints and be slower, so a step of the chief counts only when the chief has a newer one.
        let before_newest = chief.and_then(|chief| self.holders.get(&chief)?.committed.iter().rev().nth(1));
        let new = if is_known { new } else { before_newest.map_or(&[][..], std::slice::from_ref) };
        let lacks = |leader: &Leader, seat: Seat, step: u64| {
            let keeps = if is_each { seat.trains() } else { Some(seat) == chief };
            keeps && !leader.holders.get(&seat).is_some_and(|holder| holder.committed.contains(&step))
        };
        let mut newer: Vec<u64> = new.iter().copied().filter(|step| Some(*step) > self.record.kept).collect();
        newer.sort_unstable();
        let common = newer.into_iter().rev().find(|step| !self.any_seat(|leader, seat| lacks(leader, seat, *step)));
        if let Some(step) = common {
            if self.record.from_nothing {
                actions.push(Action::MarkCommon(self.generation));
            }
            self.record.keep(step);
            self.send_to_all(&ToMember::Kept { step }, actions);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Incarnation;
    use super::super::super::beat::Beat;
    use super::super::super::message::{FormerLeader, Hello, Offer, Record, Step, ToLeader};
    use super::super::Event;
    use super::super::tests::{hello, leader, receive, sent, step, training};
    use super::*;

    #[test]
    fn offers_without_the_kept_step_are_requested_again_when_no_other_trainer_can_commit() {
        let mut leader = leader(|_| {});
        let former = Some(FormerLeader { leader: Incarnation(99), silent_for: Some(0) });
        let record = Record { generation: 1, kept: Some(150), each_has_own: true, ..Record::default() };
        receive(&mut leader, 0, 0, ToLeader::Hello(Hello { newest: 1, former, record, ..hello(0) }));
        receive(&mut leader, 0, 1, ToLeader::Hello(Hello { newest: 1, former, ..hello(1) }));
        let offer = |steps: &[u64]| {
            let steps = steps.iter().map(|step| Step { step: Some(*step), hash: *step, is_stored: true }).collect();
            ToLeader::Offer { after: u64::MAX, offer: Offer { steps, ..Offer::default() } }
        };
        receive(&mut leader, 15_000, 0, offer(&[150, 100]));
        receive(&mut leader, 15_000, 1, offer(&[100]));
        let actions = step(&mut leader, 34_000, Event::Tick);
        assert!(matches!(sent(&actions, 1)[..], [ToMember::Halt { .. }]), "{actions:?}");
        receive(&mut leader, 34_001, 0, offer(&[150, 100]));
        let actions = receive(&mut leader, 34_002, 1, offer(&[150, 100]));
        assert!(matches!(sent(&actions, 1)[..], [ToMember::Agreed { choice: Choice::Own(150), .. }]), "{actions:?}");
    }

    #[test]
    fn while_the_mode_is_unknown_a_step_of_the_chief_counts_when_it_has_a_newer_one() {
        let mut leader = training();
        (leader.config.mode, leader.record.each_has_own) = (Mode::Auto, false);
        let beat = |committed| ToLeader::Beat(Beat { committed, ..Beat::default() });
        let kept = |actions: &[Action]| -> Vec<u64> {
            let step = |message: &&ToMember| if let ToMember::Kept { step } = message { Some(*step) } else { None };
            sent(actions, 0).iter().filter_map(step).collect()
        };
        assert_eq!(kept(&receive(&mut leader, 3, 0, beat(vec![30]))), [0; 0], "the worker may be slower");
        let mut chief_alone = leader.clone();
        assert_eq!(kept(&receive(&mut chief_alone, 4, 0, beat(vec![30, 40]))), [30]);
        let mut slow_worker = leader.clone();
        let saved = ToLeader::Beat(Beat { has_own: true, ..Beat::default() });
        receive(&mut slow_worker, 4, 1, saved);
        assert_eq!(kept(&receive(&mut slow_worker, 5, 0, beat(vec![30, 40]))), [0; 0], "the worker has begun to save");
        assert_eq!(kept(&receive(&mut leader, 4, 1, beat(vec![30]))), [30]);
        assert_eq!(kept(&receive(&mut leader, 5, 0, beat(vec![30, 40, 50]))), [0; 0], "the worker has none of them");
    }

    #[test]
    fn the_first_common_step_is_marked_in_the_store_if_the_job_started_without_checkpoints() {
        let mut leader = leader(|_| {});
        for number in [0, 1] {
            receive(&mut leader, 0, number, ToLeader::Hello(hello(number)));
            receive(&mut leader, 0, number, ToLeader::Offer { after: 0, offer: Offer::default() });
        }
        for number in [0, 1] {
            receive(&mut leader, 1, number, ToLeader::Armed { generation: 1 });
        }
        let beat = |step| ToLeader::Beat(Beat { committed: vec![step], ..Beat::default() });
        let mark = Action::MarkCommon(1);
        assert!(!receive(&mut leader, 2, 0, beat(10)).contains(&mark), "the worker has not committed it");
        assert!(receive(&mut leader, 3, 1, beat(10)).contains(&mark));
        receive(&mut leader, 4, 0, beat(20));
        assert!(!receive(&mut leader, 5, 1, beat(20)).contains(&mark), "once is enough");
    }
}

//! The end of the job: the final message to the members, the end in the store, and the wait for the last member.

use std::time::Duration;

use super::super::Generation;
use super::super::claim::{Claim, JobState};
use super::super::message::ToMember;
use super::super::seat::Seat;
use super::claims::NextClaim;
use super::{Action, LATE_EVALUATORS, Leader, Link, MARGIN, Phase};

impl Leader {
    pub(super) fn end(&mut self, now: Duration, actions: &mut Vec<Action>) {
        (self.phase, self.since, self.name_at, self.inquiry) = (Phase::Ending, now, None, None);
        self.send_final(ToMember::Finish, actions);
    }

    pub(super) fn give_up(&mut self, now: Duration, why: String, no_common_step: bool, actions: &mut Vec<Action>) {
        (self.phase, self.since, self.name_at, self.inquiry) = (Phase::GivenUp, now, None, None);
        let first = self.record.first.clone();
        self.send_final(ToMember::GiveUp { why, no_common_step, first }, actions);
    }

    /// To all but the leader's own replica, which leaves last.
    pub(super) fn send_final(&mut self, word: ToMember, actions: &mut Vec<Action>) {
        let others = self.holders.iter().filter(|(seat, _)| **seat != self.config.own);
        let links: Vec<Link> = others.filter_map(|(_, holder)| holder.link).collect();
        actions.extend(links.into_iter().map(|link| Action::Send(link, word.clone())));
        self.final_message = Some(word);
    }

    pub(super) fn try_to_end(&mut self, now: Duration, grace: Duration, actions: &mut Vec<Action>) {
        let timing = self.config.timing;
        // One that is cut off for a moment comes back for the last word; others are gone.
        let until = |leader: &Leader, seat: Seat| match (leader.holders.contains_key(&seat), seat.is_required()) {
            (true, true) => grace + timing.stop_grace + MARGIN,
            (true, false) => timing.evaluator_grace.max(LATE_EVALUATORS),
            (false, true) => timing.lease.min(grace + timing.stop_grace + MARGIN),
            (false, false) => LATE_EVALUATORS,
        };
        let own = self.config.own;
        if self.any_seat(|leader, seat| {
            seat != own && !leader.left.contains(&seat) && now < leader.since + until(leader, seat)
        }) {
            return;
        }
        self.phase = Phase::Done;
        if let (Some(word), Some(link)) =
            (&self.final_message, self.holders.get(&self.config.own).and_then(|own| own.link))
        {
            actions.push(Action::Send(link, word.clone()));
        }
        actions.push(Action::Done);
    }

    /// Puts the end of the job after the newest claim, for the other agents of this leader's seat. The claim before is answered
    /// first, so that no number is left out.
    pub(super) fn claim_job_end(&mut self, actions: &mut Vec<Action>) {
        if matches!(self.claims.next, NextClaim::Unclaimed | NextClaim::Held(_)) {
            self.request_end_claim(self.newest_claim() + 1, actions);
        }
    }

    fn request_end_claim(&mut self, generation: Generation, actions: &mut Vec<Action>) {
        self.claims.next = NextClaim::EndRequested(generation);
        let job = JobState { has_finished: true, ..self.job_state(self.record.from_nothing) };
        actions.push(Action::Claim { generation, job });
    }

    /// The number of this leader's last claim is taken. The end of the job comes after the newest claim.
    pub(super) fn on_other_claim_at_end(&mut self, claim: Claim, actions: &mut Vec<Action>) {
        let is_asked = match self.claims.next {
            NextClaim::Requested(_) => self.phase == Phase::Ending,
            NextClaim::EndRequested(_) => true,
            NextClaim::Unclaimed | NextClaim::Held(_) | NextClaim::Ended(_) => false,
        };
        if !is_asked {
            return;
        }
        if claim.job.has_finished {
            self.claims.next = NextClaim::Ended(claim.generation);
        } else {
            self.request_end_claim(claim.generation + 1, actions);
        }
        self.claims.former = Some(claim);
    }

    /// The job has finished under another leader while this one waited for its members, or trained with others.
    pub(super) fn end_with_other_leader(&mut self, now: Duration, claim: Claim, actions: &mut Vec<Action>) {
        actions.push(Action::Log(format!(
            "the job has finished: the gang's leader on {} has said so in the store",
            claim.host
        )));
        self.halt(now, false, actions);
        (self.claims.next, self.claims.former) = (NextClaim::Ended(claim.generation), Some(claim));
        self.end(now, actions);
    }

    /// Whether all members are about to leave and some have not, or the store does not know yet that the job has finished.
    pub fn is_waiting_to_end(&self) -> bool {
        let leaves = |seat: Seat| self.holders.get(&seat).is_none_or(|holder| holder.notice.is_some());
        let all_leave = self.is_over() || self.required().all(|seat| seat == self.config.own || leaves(seat));
        let is_one_here = self.holders.iter().any(|(seat, holder)| {
            *seat != self.config.own && seat.is_required() && holder.link.is_some() && !self.left.contains(seat)
        });
        self.claims.has_claimed && all_leave && (is_one_here || matches!(self.claims.next, NextClaim::EndRequested(_)))
    }

    /// The newest generation that this leader has claimed, where every other required member has left: with this agent's end no
    /// trainer of the gang is left.
    pub fn ended_generation(&self) -> Option<Generation> {
        let has_left = |seat: Seat| seat == self.config.own || self.left.contains(&seat);
        let is_last = self.claims.has_claimed && self.phase != Phase::Yielded && self.required().all(has_left);
        // Another gang may train under that claim.
        let is_alone = self.claims.former.is_none();
        (is_last && is_alone).then(|| self.newest_claim())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::message::{Class, Offer, ToLeader};
    use super::super::Event;
    use super::super::tests::{NOTHING, at, claim_of, failed, hello, join, leader, says, sent, training};
    use super::*;

    fn asked(actions: &[Action]) -> Vec<(Generation, JobState)> {
        let claim = |action: &Action| {
            if let Action::Claim { generation, job } = action { Some((*generation, *job)) } else { None }
        };
        actions.iter().filter_map(claim).collect()
    }

    const END: JobState = JobState { from_nothing: false, from_scratch: false, has_finished: true };

    #[test]
    fn the_end_of_the_job_is_the_last_claim() {
        let mut leader = training();
        let actions = leader.step(at(5_000), Event::Received(0, ToLeader::Finished { generation: 1 }));
        assert_eq!(asked(&actions), [(2, END)]);
        assert!(leader.is_waiting_to_end());
        let actions = leader.step(at(5_100), Event::ClaimedByOther(claim_of(3)));
        assert_eq!(asked(&actions), [(4, END)], "another leader has taken the number");
        assert_eq!(asked(&leader.step(at(5_200), Event::Claimed(4))), []);
        says(&mut leader, 6_000, 1, ToLeader::Leaving);
        assert!(!leader.is_waiting_to_end());
        assert_eq!(leader.ended_generation(), None, "the other leader's gang may train");
    }

    #[test]
    fn a_claim_that_has_no_answer_is_answered_before_the_end_is_claimed() {
        let mut leader = training();
        says(&mut leader, 5_000, 1, failed(Class::Code, None));
        let offer = || ToLeader::Offer { after: 1, offer: Offer::default() };
        leader.step(at(5_100), Event::Received(1, offer()));
        let mut asking = leader.clone();
        assert_eq!(asked(&asking.step(at(5_100), Event::Received(0, offer()))).len(), 1);
        // The chief's trainer ended with 0 before it was told to stop.
        let actions = leader.step(at(5_200), Event::Received(0, ToLeader::Finished { generation: 1 }));
        assert_eq!((leader.state(), asked(&actions)), ("ending", vec![(2, END)]));
        asking.phase = Phase::Ending;
        assert_eq!(asked(&asking.step(at(5_200), Event::Tick)), []);
        assert_eq!(asked(&asking.step(at(5_300), Event::Claimed(2))), [(3, END)]);
        assert_eq!(asked(&asking.step(at(5_400), Event::Claimed(3))), []);
    }

    /// Both have offered; what the leader says when it finds the end of the job.
    fn finds_the_end(has_read_claims: bool) -> (Leader, Vec<Action>) {
        let mut leader = leader(|config| config.has_read_claims = has_read_claims);
        let offer = |number| Event::Received(number, ToLeader::Offer { after: 0, offer: Offer::default() });
        for number in [0, 1] {
            says(&mut leader, 0, number, ToLeader::Hello(hello(number)));
        }
        leader.step(at(0), offer(0));
        assert_eq!(asked(&leader.step(at(0), offer(1))), [(1, NOTHING)]);
        let actions = leader.step(at(100), Event::ClaimedByOther(Claim { job: END, ..claim_of(5) }));
        (leader, actions)
    }

    #[test]
    fn a_leader_that_finds_an_end_which_was_not_there_at_its_start_ends_with_its_members() {
        let (mut leader, actions) = finds_the_end(true);
        assert!(sent(&actions, 1).contains(&&ToMember::Finish) && asked(&actions).is_empty(), "{actions:?}");
        let actions = says(&mut leader, 200, 1, ToLeader::Leaving);
        assert!(sent(&actions, 0).contains(&&ToMember::Finish), "{actions:?}");
        assert_eq!(leader.ended_generation(), None, "the other leader's agent may still be there");
    }

    #[test]
    fn a_leader_that_did_not_read_the_store_at_its_start_begins_a_new_run() {
        let (leader, actions) = finds_the_end(false);
        assert_eq!(asked(&actions), [(6, NOTHING)]);
        assert_eq!(leader.state(), "collecting");
    }

    #[test]
    fn a_leader_that_has_started_before_the_end_was_in_the_store_stops_its_trainers() {
        let mut leader = training();
        let actions = leader.step(at(5_000), Event::ClaimedByOther(Claim { job: END, ..claim_of(2) }));
        assert_eq!(sent(&actions, 1), [&ToMember::Halt { generation: 1, hung: false }, &ToMember::Finish]);
        assert_eq!(sent(&actions, 0), [&ToMember::Halt { generation: 1, hung: false }]);
    }

    #[test]
    fn an_end_that_was_there_at_the_start_is_that_of_another_run() {
        let mut leader = leader(|config| config.newest_claim = Some(Claim { job: END, ..claim_of(4) }));
        join(&mut leader, 0);
        assert_eq!((leader.state(), leader.generation()), ("collecting", 4));
    }
}

//! The claims in the store: a generation is agreed on only once its number is this leader's.

use std::time::Duration;

use super::super::Generation;
use super::super::agreement::Agreement;
use super::super::claim::{Claim, JobState};
use super::super::message::{Choice, ToMember};
use super::super::seat::{Incarnation, Seat};
use super::{Action, Leader, Link, Phase};

/// Where the claim on the next generation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum NextClaim {
    /// Not asked for.
    Unclaimed,
    Requested(Generation),
    /// Ours, and not used yet.
    Held(Generation),
    /// Asked for, as the end of the job.
    EndRequested(Generation),
    /// This claim is the end of the job.
    Ended(Generation),
}

/// What this leader knows of the claims.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Claims {
    pub(super) next: NextClaim,
    /// Whether a claim of this leader has succeeded.
    pub(super) has_claimed: bool,
    /// The claim of another leader below this leader's first. Its gang may train.
    pub(super) former: Option<Claim>,
    /// By then the former leader has found this leader's claim, and its members have stopped.
    former_ends: Option<Duration>,
    /// Whether the newest claim was known to this leader. Only then is what it finds newer than itself.
    was_read: bool,
    /// When a newer claim is looked for next.
    next_check: Duration,
}

impl Claims {
    pub(super) fn new(now: Duration, was_read: bool, newest: Option<Claim>) -> Claims {
        let (next, has_claimed, former_ends) = (NextClaim::Unclaimed, false, None);
        Claims { next, has_claimed, former: newest, former_ends, was_read, next_check: now }
    }
}

impl Leader {
    /// The generation whose number is this leader's, once no other gang can train; asks for it where it is not.
    pub(super) fn claimed_generation(&mut self, now: Duration, actions: &mut Vec<Action>) -> Option<Generation> {
        match self.claims.next {
            NextClaim::Unclaimed => {
                let generation = self.generation + 1;
                self.claims.next = NextClaim::Requested(generation);
                let (_, agreement) = self.agreement();
                let from_nothing = agreement == Agreement::On(Choice::Start) && self.record.kept.is_none();
                actions.push(Action::Claim { generation, job: self.job_state(from_nothing) });
                None
            }
            NextClaim::Requested(_) | NextClaim::EndRequested(_) | NextClaim::Ended(_) => None,
            NextClaim::Held(generation) => self.former_is_gone(now).then_some(generation),
        }
    }

    pub(super) fn job_state(&self, from_nothing: bool) -> JobState {
        JobState { from_nothing, from_scratch: self.config.from_scratch, has_finished: false }
    }

    /// The newest number that this leader has claimed, or else the newest generation.
    pub(super) fn newest_claim(&self) -> Generation {
        match self.claims.next {
            NextClaim::Held(generation) | NextClaim::Ended(generation) => generation,
            NextClaim::Unclaimed | NextClaim::Requested(_) | NextClaim::EndRequested(_) => self.generation,
        }
    }

    /// Whether the former leader cannot have a complete gang, because a required seat's agent has left it for this one, or
    /// has had the time to find this leader's claim.
    fn former_is_gone(&mut self, now: Duration) -> bool {
        let Some(former) = &self.claims.former else { return true };
        let was_in_it =
            |(leader, newest): (Incarnation, Generation)| leader == former.leader && newest >= former.generation;
        let has_left_it = |seat: Seat| self.holders.get(&seat).is_some_and(|h| h.former_leader.is_some_and(was_in_it));
        let has_had_time = self.claims.former_ends.is_some_and(|end| now >= end);
        let is_gone = has_had_time || self.required().any(has_left_it);
        if is_gone {
            self.claims.former = None;
        }
        is_gone
    }

    /// The store has this leader's claim.
    pub(super) fn on_claimed(&mut self, now: Duration, generation: Generation) {
        if self.claims.next == NextClaim::EndRequested(generation) {
            self.claims.next = NextClaim::Ended(generation);
        }
        if self.claims.next != NextClaim::Requested(generation) {
            return;
        }
        (self.claims.next, self.claims.next_check) = (NextClaim::Held(generation), now);
        (self.claims.has_claimed, self.claims.was_read) = (true, true);
        if self.claims.former_ends.is_none() {
            // The other leader looks, halts, and the lease of a member that does not hear of it ends.
            let found = self.check_interval() + self.config.timing.lease / 4;
            self.claims.former_ends = Some(self.lease_end(now + found));
        }
    }

    /// The newest claim in the store is another leader's.
    pub(super) fn on_other_claim(&mut self, now: Duration, claim: Claim, actions: &mut Vec<Action>) {
        if claim.leader == self.config.incarnation || claim.generation <= self.newest_claim() {
            return;
        }
        if self.is_over() {
            return self.on_other_claim_at_end(claim, actions);
        }
        // An end that this leader may not have seen at its start can be that of an earlier run.
        if claim.job.has_finished && self.claims.was_read {
            return self.end_with_other_leader(now, claim, actions);
        }
        if self.claims.has_claimed {
            return self.yield_to(&claim, actions);
        }
        if claim.generation > self.record.generation {
            self.record.from_nothing = claim.job.from_nothing;
        }
        self.has_started_over = claim.has_started_over();
        // What was surveyed may be older than what that generation commits until it ends.
        (self.generation, self.has_former_generation) = (claim.generation, true);
        self.former_lease_end = self.former_lease_end.max(Some(self.lease_end(now)));
        self.claims = Claims::new(now, true, Some(claim));
    }

    /// A number that another leader has used is not claimed any more.
    pub(super) fn drop_outdated_claim(&mut self) {
        match self.claims.next {
            NextClaim::Requested(generation) | NextClaim::Held(generation) if generation <= self.generation => {
                self.claims.next = NextClaim::Unclaimed;
            }
            NextClaim::Requested(_)
            | NextClaim::Held(_)
            | NextClaim::Unclaimed
            | NextClaim::EndRequested(_)
            | NextClaim::Ended(_) => {}
        }
    }

    /// Looks for a newer claim, from this leader's first claim on. The answer to a claim says the same, and a look that is
    /// asked for before it would replace it.
    pub(super) fn check_for_newer_claim(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let is_claiming = matches!(self.claims.next, NextClaim::Requested(_));
        if !self.claims.has_claimed || is_claiming || self.is_over() || now < self.claims.next_check {
            return;
        }
        self.claims.next_check = now + self.check_interval();
        actions.push(Action::CheckForNewerClaim(self.newest_claim() + 1));
    }

    fn check_interval(&self) -> Duration {
        self.config.timing.beat * 2
    }

    /// Another leader has a newer claim. The members are sent to look for it; only this leader's own agent leaves.
    fn yield_to(&mut self, claim: &Claim, actions: &mut Vec<Action>) {
        let own = self.config.own;
        let others: Vec<Link> =
            self.holders.iter().filter(|(seat, _)| **seat != own).filter_map(|(_, holder)| holder.link).collect();
        for link in others {
            self.links.remove(&link);
            actions.push(Action::Send(link, ToMember::Halt { generation: self.generation, hung: false }));
            actions.push(Action::Close(link));
        }
        self.holders.retain(|seat, _| *seat == own);
        let why = format!(
            "another agent of {own}, on {}, leads this job: it has claimed generation {}",
            claim.host, claim.generation
        );
        let word = ToMember::GiveUp { why, no_common_step: false, first: self.record.first.clone() };
        actions.extend(self.holders.get(&own).and_then(|own| own.link).map(|link| Action::Send(link, word.clone())));
        (self.phase, self.name_at, self.final_message) = (Phase::Yielded, None, Some(word));
        actions.push(Action::Done);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::message::{Class, Offer, Step, ToLeader};
    use super::super::Event;
    use super::super::tests::{NOTHING, at, claim_of, failed, hello, leader, says, sent, step, training};
    use super::*;

    #[test]
    fn a_claim_that_has_no_answer_is_not_replaced_by_a_look() {
        let mut leader = training();
        let looks = |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::CheckForNewerClaim(_)));
        says(&mut leader, 3_000, 1, failed(Class::Code, None));
        let offer = || ToLeader::Offer { after: 1, offer: Offer::default() };
        leader.step(at(3_100), Event::Received(0, offer()));
        let actions = leader.step(at(4_000), Event::Received(1, offer()));
        assert!(actions.contains(&Action::Claim { generation: 2, job: NOTHING }) && !looks(&actions), "{actions:?}");
        assert!(!looks(&leader.step(at(9_000), Event::Tick)));
        assert!(looks(&leader.step(at(9_100), Event::Claimed(2))), "it was due meanwhile");
    }

    /// The chief has a checkpoint and the worker has none; what the members are told once the former gang is gone.
    fn words_without_a_common_step(leader: &mut Leader) -> Vec<ToMember> {
        let mut words = Vec::new();
        for ms in (0..60_000).step_by(1_000) {
            for number in [0, 1] {
                let steps =
                    if number == 0 { vec![Step { step: Some(50), hash: 50, is_stored: true }] } else { Vec::new() };
                if ms == 0 {
                    says(leader, ms, number, ToLeader::Hello(hello(number)));
                }
                let offer = Offer { steps, has_own_checkpoints: true, ..Offer::default() };
                let actions = says(leader, ms, number, ToLeader::Offer { after: leader.generation(), offer });
                words.extend(sent(&actions, 1).into_iter().cloned());
            }
        }
        words
    }

    fn begins_anew(words: &[ToMember]) -> bool {
        words.iter().any(|word| matches!(word, ToMember::Agreed { choice: Choice::Start, .. }))
    }

    #[test]
    fn a_leader_without_any_member_of_before_learns_from_the_claim_that_the_job_began_with_nothing() {
        let claim = Claim { job: NOTHING, ..claim_of(4) };
        assert!(begins_anew(&words_without_a_common_step(&mut leader(
            |config| config.newest_claim = Some(claim.clone())
        ))));
        // It was not read in time: the store answers the own claim with it.
        let mut late = leader(|_| {});
        step(&mut late, 0, Event::ClaimedByOther(claim));
        assert!(begins_anew(&words_without_a_common_step(&mut late)));
        let words = words_without_a_common_step(&mut leader(|config| config.newest_claim = Some(claim_of(4))));
        assert!(words.iter().any(|word| matches!(word, ToMember::GiveUp { no_common_step: true, .. })), "{words:?}");
    }
}

//! The claims in the store: a generation is agreed on only once its number is this leader's.

use std::time::Duration;

use super::super::Generation;
use super::super::agreement::Agreement;
use super::super::claim::Claim;
use super::super::message::{Choice, ToMember};
use super::super::seat::{Incarnation, Seat};
use super::{Action, Holder, Leader, Link, Phase, State};

/// Where the claim on the next generation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Next {
    /// Not asked for.
    Unclaimed,
    Asked(Generation),
    /// Ours, and not used yet.
    Held(Generation),
}

/// What this leader knows of the claims.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Claims {
    pub(super) next: Next,
    /// Whether a claim of this leader has succeeded.
    has_claimed: bool,
    /// The claim of another leader below this leader's first. Its gang may train.
    former: Option<Claim>,
    /// By then the former leader has found this leader's claim, and its members have stopped.
    former_ends: Option<Duration>,
    /// When a newer claim is looked for next.
    next_look: Duration,
}

impl Claims {
    pub(super) fn new(now: Duration, newest: Option<Claim>) -> Claims {
        Claims { next: Next::Unclaimed, has_claimed: false, former: newest, former_ends: None, next_look: now }
    }
}

impl Leader {
    /// The generation whose number is this leader's, once no other gang can train; asks for it where it is not.
    pub(super) fn claimed_generation(&mut self, now: Duration, actions: &mut Vec<Action>) -> Option<Generation> {
        match self.claims.next {
            Next::Unclaimed => {
                let generation = self.generation + 1;
                self.claims.next = Next::Asked(generation);
                let (_, agreement) = self.agreement();
                let from_nothing = agreement == Agreement::On(Choice::Start) && self.record.kept.is_none();
                actions.push(Action::Claim { generation, from_nothing });
                None
            }
            Next::Asked(_) => None,
            Next::Held(generation) => self.former_is_gone(now).then_some(generation),
        }
    }

    /// Whether the former leader cannot have a complete gang, because a required seat's agent has left it for this one, or
    /// has had the time to find this leader's claim.
    fn former_is_gone(&mut self, now: Duration) -> bool {
        let Some(former) = &self.claims.former else { return true };
        let was_in_it =
            |(leader, newest): (Incarnation, Generation)| leader == former.leader && newest >= former.generation;
        let has_left_it = |seat: Seat| self.holders.get(&seat).is_some_and(|h| h.came_from.is_some_and(was_in_it));
        let has_had_time = self.claims.former_ends.is_some_and(|end| now >= end);
        let is_gone = has_had_time || self.required().any(has_left_it);
        if is_gone {
            self.claims.former = None;
        }
        is_gone
    }

    /// The store has this leader's claim.
    pub(super) fn claimed(&mut self, now: Duration, generation: Generation) {
        if self.claims.next != Next::Asked(generation) {
            return;
        }
        (self.claims.next, self.claims.has_claimed, self.claims.next_look) = (Next::Held(generation), true, now);
        if self.claims.former_ends.is_none() {
            // The other leader looks, halts, and the lease of a member that does not hear of it ends.
            let found = self.look_interval() + self.config.timing.lease / 4;
            self.claims.former_ends = Some(self.lease_end(now + found));
        }
    }

    /// The newest claim in the store is another leader's.
    pub(super) fn found(&mut self, now: Duration, claim: Claim, actions: &mut Vec<Action>) {
        let newest = match self.claims.next {
            Next::Held(generation) => generation,
            Next::Unclaimed | Next::Asked(_) => self.generation,
        };
        if claim.leader == self.config.incarnation || claim.generation <= newest || self.is_over() {
            return;
        }
        if self.claims.has_claimed {
            return self.yield_to(&claim, actions);
        }
        if claim.generation > self.record.generation {
            self.record.from_nothing = claim.from_nothing;
        }
        // What was surveyed may be older than what that generation commits until it ends.
        (self.generation, self.old_generation) = (claim.generation, true);
        self.old_lease = self.old_lease.max(Some(self.lease_end(now)));
        self.claims = Claims::new(now, Some(claim));
    }

    /// The newest generation that this leader has claimed, where every other required member has left: with this agent's end no
    /// trainer of the gang is left.
    pub fn ended_generation(&self) -> Option<Generation> {
        let has_left = |seat: Seat| seat == self.config.own || self.left.contains(&seat);
        let is_last = self.claims.has_claimed && self.phase != Phase::Yielded && self.required().all(has_left);
        let newest = match self.claims.next {
            Next::Held(generation) => generation,
            Next::Unclaimed | Next::Asked(_) => self.generation,
        };
        is_last.then_some(newest)
    }

    /// Whether all members are about to leave and some have not.
    pub fn awaits_last_members(&self) -> bool {
        let leaves = |seat: Seat| self.holders.get(&seat).is_none_or(|holder| holder.notice.is_some());
        let all_leave = self.is_over() || self.required().all(|seat| seat == self.config.own || leaves(seat));
        let is_one_here = self.holders.iter().any(|(seat, holder)| {
            *seat != self.config.own && seat.is_required() && holder.link.is_some() && !self.left.contains(seat)
        });
        self.claims.has_claimed && all_leave && is_one_here
    }

    /// A number that another leader has used is not claimed any more.
    pub(super) fn forget_old_claim(&mut self) {
        match self.claims.next {
            Next::Asked(generation) | Next::Held(generation) if generation <= self.generation => {
                self.claims.next = Next::Unclaimed;
            }
            Next::Asked(_) | Next::Held(_) | Next::Unclaimed => {}
        }
    }

    /// Looks for a newer claim, from this leader's first claim on. The answer to a claim says the same, and a look that is
    /// asked for before it would replace it.
    pub(super) fn look(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let is_claiming = matches!(self.claims.next, Next::Asked(_));
        if !self.claims.has_claimed || is_claiming || self.is_over() || now < self.claims.next_look {
            return;
        }
        self.claims.next_look = now + self.look_interval();
        let newest = match self.claims.next {
            Next::Held(generation) => generation,
            Next::Unclaimed | Next::Asked(_) => self.generation,
        };
        actions.push(Action::LookForClaim(newest + 1));
    }

    fn look_interval(&self) -> Duration {
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
        (self.phase, self.name_at, self.last_word) = (Phase::Yielded, None, Some(word));
        actions.push(Action::Done);
    }

    /// These members survey anew: they offer what there is now.
    pub(super) fn survey_again(&mut self, is_asked: impl Fn(&Holder) -> bool, actions: &mut Vec<Action>) -> bool {
        let mut asked = false;
        for (seat, holder) in &mut self.holders {
            if !seat.is_required() || !matches!(holder.state, State::Joined | State::Offered(_)) || !is_asked(holder) {
                continue;
            }
            (holder.state, holder.agreed, asked) = (State::Joined, self.generation, true);
            let halt = ToMember::Halt { generation: self.generation, hung: false };
            actions.extend(holder.link.map(|link| Action::Send(link, halt)));
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::message::{Class, Offer, Step, ToLeader};
    use super::super::Event;
    use super::super::tests::{at, claim_of, fell, hello, leader, says, sent, step, training};
    use super::*;

    #[test]
    fn a_claim_that_has_no_answer_is_not_replaced_by_a_look() {
        let mut leader = training();
        let looks = |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::LookForClaim(_)));
        says(&mut leader, 3_000, 1, fell(Class::Code, None));
        let offer = || ToLeader::Offer { after: 1, offer: Offer::default() };
        leader.step(at(3_100), Event::Heard(0, offer()));
        let actions = leader.step(at(4_000), Event::Heard(1, offer()));
        assert!(
            actions.contains(&Action::Claim { generation: 2, from_nothing: true }) && !looks(&actions),
            "{actions:?}"
        );
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
        let claim = Claim { from_nothing: true, ..claim_of(4) };
        assert!(begins_anew(&words_without_a_common_step(&mut leader(
            |config| config.newest_claim = Some(claim.clone())
        ))));
        // It was not read in time: the store answers the own claim with it.
        let mut late = leader(|_| {});
        step(&mut late, 0, Event::Found(claim));
        assert!(begins_anew(&words_without_a_common_step(&mut late)));
        let words = words_without_a_common_step(&mut leader(|config| config.newest_claim = Some(claim_of(4))));
        assert!(words.iter().any(|word| matches!(word, ToMember::GiveUp { no_common_step: true, .. })), "{words:?}");
    }
}

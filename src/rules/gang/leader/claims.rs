//! The claims in the store: a generation is agreed on only after this leader has claimed its number.

use std::time::Duration;

use super::super::agreement::Agreement;
use super::super::claim::{Claim, JobState};
use super::super::message::{Choice, ToMember};
use super::super::{Generation, Incarnation};
use super::{Action, Leader, Link, Phase};
use crate::cluster::seat::Seat;

/// The state of the claim on the next generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum NextClaim {
    Unclaimed,
    Requested(Generation),
    /// Claimed, and not used yet.
    Held(Generation),
    /// Requested as the end of the job.
    EndRequested(Generation),
    /// Claimed as the end of the job, by this leader or another.
    Ended(Generation),
}

/// The claims that this leader has made or read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Claims {
    pub(super) next: NextClaim,
    /// Whether a claim of this leader has succeeded.
    pub(super) has_claimed: bool,
    /// The claim of another leader before this leader's first. Its gang may still train.
    pub(super) former: Option<Claim>,
    /// At this time the former leader has found this leader's claim, and its members have stopped.
    former_ends: Option<Duration>,
    /// Whether this leader has read the newest claim. Only then is a claim that it finds later newer than its start.
    was_read: bool,
    /// The time of the next check for a newer claim.
    next_check: Duration,
}

impl Claims {
    pub(super) fn new(now: Duration, was_read: bool, newest: Option<Claim>) -> Claims {
        let (next, has_claimed, former_ends) = (NextClaim::Unclaimed, false, None);
        Claims { next, has_claimed, former: newest, former_ends, was_read, next_check: now }
    }
}

impl Leader {
    /// The claimed generation, as soon as no other gang can train. Requests the claim if there is none.
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

    /// The newest number that this leader has claimed, else the newest generation.
    pub(super) fn newest_claim(&self) -> Generation {
        match self.claims.next {
            NextClaim::Held(generation) | NextClaim::Ended(generation) => generation,
            NextClaim::Unclaimed | NextClaim::Requested(_) | NextClaim::EndRequested(_) => self.generation,
        }
    }

    /// Whether the former leader cannot have a complete gang: the agent of a required seat has moved to this leader, or the
    /// former leader has had the time to find this leader's claim.
    fn former_is_gone(&mut self, now: Duration) -> bool {
        let Some(former) = &self.claims.former else { return true };
        let was_member =
            |(leader, newest): (Incarnation, Generation)| leader == former.leader && newest >= former.generation;
        let has_moved = |seat: Seat| self.holders.get(&seat).is_some_and(|h| h.former_leader.is_some_and(was_member));
        let has_had_time = self.claims.former_ends.is_some_and(|end| now >= end);
        let is_gone = has_had_time || self.required().any(has_moved);
        if is_gone {
            self.claims.former = None;
        }
        is_gone
    }

    /// Handles the store's confirmation of a claim.
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
            // The former leader checks and halts; the lease of a member that does not receive the halt ends.
            let found = self.check_interval() + self.config.timing.lease / 4;
            self.claims.former_ends = Some(self.lease_end(now + found));
        }
    }

    /// Handles a newer claim of another leader.
    pub(super) fn on_other_claim(&mut self, now: Duration, claim: Claim, actions: &mut Vec<Action>) {
        if claim.leader == self.config.incarnation || claim.generation <= self.newest_claim() {
            return;
        }
        if self.is_over() {
            return self.on_other_claim_at_end(claim, actions);
        }
        // An end that may be older than this leader's start can belong to an earlier run.
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
        // The surveys may be older than the last commits of that generation.
        (self.generation, self.has_former_generation) = (claim.generation, true);
        self.former_lease_end = self.former_lease_end.max(Some(self.lease_end(now)));
        self.claims = Claims::new(now, true, Some(claim));
    }

    /// Drops a claim on a number that another leader has used.
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

    /// Requests a check for a newer claim, from this leader's first claim on. Not while a claim is requested: the check would
    /// replace that request, and its answer has the same information.
    pub(super) fn check_for_newer_claim(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let is_claiming = matches!(self.claims.next, NextClaim::Requested(_));
        // A leader whose members do not come may have missed the end.
        let is_alone = self.phase == Phase::Collecting && now >= self.since + self.config.timing.lease;
        let checks = self.claims.has_claimed || is_alone;
        if !checks || is_claiming || self.is_over() || now < self.claims.next_check {
            return;
        }
        self.claims.next_check = now + self.check_interval();
        actions.push(Action::CheckForNewerClaim(self.newest_claim() + 1));
    }

    fn check_interval(&self) -> Duration {
        self.config.timing.beat * 2
    }

    /// Yields to the leader with a newer claim. The connections are closed, so that the members connect to it; only this
    /// leader's own agent exits.
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
        let message =
            ToMember::GiveUp { why, no_common_step: false, contradiction: false, first: self.record.first.clone() };
        actions.extend(self.holders.get(&own).and_then(|own| own.link).map(|link| Action::Send(link, message.clone())));
        (self.phase, self.name_at, self.final_message) = (Phase::Yielded, None, Some(message));
        actions.push(Action::Done);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::message::{Class, Offer, Step, ToLeader};
    use super::super::Event;
    use super::super::tests::{NOTHING, at, claim_of, failed, hello, leader, receive, sent, step, training};
    use super::*;

    #[test]
    fn a_pending_claim_is_not_replaced_by_a_check() {
        let mut leader = training();
        let checks = |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::CheckForNewerClaim(_)));
        receive(&mut leader, 3_000, 1, failed(Class::Code, None));
        let offer = || ToLeader::Offer { after: 1, offer: Offer::default() };
        leader.step(at(3_100), Event::Received(0, offer()));
        let actions = leader.step(at(4_000), Event::Received(1, offer()));
        assert!(actions.contains(&Action::Claim { generation: 2, job: NOTHING }) && !checks(&actions), "{actions:?}");
        assert!(!checks(&leader.step(at(9_000), Event::Tick)));
        assert!(checks(&leader.step(at(9_100), Event::Claimed(2))), "it became due in the meantime");
    }

    /// The messages to the worker after the former gang is gone. The chief has a checkpoint and the worker has none.
    fn messages_without_a_common_step(leader: &mut Leader) -> Vec<ToMember> {
        let mut messages = Vec::new();
        for ms in (0..60_000).step_by(1_000) {
            for number in [0, 1] {
                let steps =
                    if number == 0 { vec![Step { step: Some(50), hash: 50, is_stored: true }] } else { Vec::new() };
                if ms == 0 {
                    receive(leader, ms, number, ToLeader::Hello(hello(number)));
                }
                let offer = Offer { steps, has_own_checkpoints: true, ..Offer::default() };
                let actions = receive(leader, ms, number, ToLeader::Offer { after: leader.generation(), offer });
                messages.extend(sent(&actions, 1).into_iter().cloned());
            }
        }
        messages
    }

    fn starts_from_the_beginning(messages: &[ToMember]) -> bool {
        messages.iter().any(|message| matches!(message, ToMember::Agreed { choice: Choice::Start, .. }))
    }

    #[test]
    fn a_leader_with_only_new_members_reads_from_the_claim_that_the_job_started_without_checkpoints() {
        let claim = Claim { job: NOTHING, ..claim_of(4) };
        assert!(starts_from_the_beginning(&messages_without_a_common_step(&mut leader(|config| config
            .newest_claim =
            Some(claim.clone())))));
        // The claim was not read at the start, and the store answers the leader's own claim with it.
        let mut late = leader(|_| {});
        step(&mut late, 0, Event::ClaimedByOther(claim));
        assert!(starts_from_the_beginning(&messages_without_a_common_step(&mut late)));
        let messages = messages_without_a_common_step(&mut leader(|config| config.newest_claim = Some(claim_of(4))));
        assert!(
            messages.iter().any(|message| matches!(message, ToMember::GiveUp { no_common_step: true, .. })),
            "{messages:?}"
        );
    }
}

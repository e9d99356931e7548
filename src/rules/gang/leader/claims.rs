//! The claims in the store: a generation is agreed on only once its number is this leader's.

use std::time::Duration;

use super::super::Generation;
use super::super::agreement::Agreement;
use super::super::claim::{Claim, JobState};
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
    /// Asked for, as the end of the job.
    AskedEnd(Generation),
    /// This claim is the end of the job.
    Ended(Generation),
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
    /// Whether the newest claim was known to this leader. Only then is what it finds newer than itself.
    was_read: bool,
    /// When a newer claim is looked for next.
    next_look: Duration,
}

impl Claims {
    pub(super) fn new(now: Duration, was_read: bool, newest: Option<Claim>) -> Claims {
        let (next, has_claimed, former_ends) = (Next::Unclaimed, false, None);
        Claims { next, has_claimed, former: newest, former_ends, was_read, next_look: now }
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
                actions.push(Action::Claim { generation, job: self.job_state(from_nothing) });
                None
            }
            Next::Asked(_) | Next::AskedEnd(_) | Next::Ended(_) => None,
            Next::Held(generation) => self.former_is_gone(now).then_some(generation),
        }
    }

    fn job_state(&self, from_nothing: bool) -> JobState {
        JobState { from_nothing, from_scratch: self.config.from_scratch, has_finished: false }
    }

    /// Puts the end of the job after the newest claim, for the other agents of this leader's seat. The claim before is answered
    /// first, so that no number is left out.
    pub(super) fn claim_end(&mut self, actions: &mut Vec<Action>) {
        if matches!(self.claims.next, Next::Unclaimed | Next::Held(_)) {
            self.ask_end(self.newest_claim() + 1, actions);
        }
    }

    fn ask_end(&mut self, generation: Generation, actions: &mut Vec<Action>) {
        self.claims.next = Next::AskedEnd(generation);
        let job = JobState { has_finished: true, ..self.job_state(self.record.from_nothing) };
        actions.push(Action::Claim { generation, job });
    }

    /// The newest number that this leader has claimed, or else the newest generation.
    fn newest_claim(&self) -> Generation {
        match self.claims.next {
            Next::Held(generation) | Next::Ended(generation) => generation,
            Next::Unclaimed | Next::Asked(_) | Next::AskedEnd(_) => self.generation,
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
        if self.claims.next == Next::AskedEnd(generation) {
            self.claims.next = Next::Ended(generation);
        }
        if self.claims.next != Next::Asked(generation) {
            return;
        }
        (self.claims.next, self.claims.next_look) = (Next::Held(generation), now);
        (self.claims.has_claimed, self.claims.was_read) = (true, true);
        if self.claims.former_ends.is_none() {
            // The other leader looks, halts, and the lease of a member that does not hear of it ends.
            let found = self.look_interval() + self.config.timing.lease / 4;
            self.claims.former_ends = Some(self.lease_end(now + found));
        }
    }

    /// The newest claim in the store is another leader's.
    pub(super) fn found(&mut self, now: Duration, claim: Claim, actions: &mut Vec<Action>) {
        if claim.leader == self.config.incarnation || claim.generation <= self.newest_claim() {
            return;
        }
        if self.is_over() {
            return self.found_before_end(claim, actions);
        }
        // An end that this leader may not have seen at its start can be that of an earlier run.
        if claim.job.has_finished && self.claims.was_read {
            return self.has_finished_under(now, claim, actions);
        }
        if self.claims.has_claimed {
            return self.yield_to(&claim, actions);
        }
        if claim.generation > self.record.generation {
            self.record.from_nothing = claim.job.from_nothing;
        }
        self.begun_anew = claim.begun_anew();
        // What was surveyed may be older than what that generation commits until it ends.
        (self.generation, self.old_generation) = (claim.generation, true);
        self.old_lease = self.old_lease.max(Some(self.lease_end(now)));
        self.claims = Claims::new(now, true, Some(claim));
    }

    /// The number of this leader's last claim is taken. The end of the job comes after the newest claim.
    fn found_before_end(&mut self, claim: Claim, actions: &mut Vec<Action>) {
        let is_asked = match self.claims.next {
            Next::Asked(_) => self.phase == Phase::Ending,
            Next::AskedEnd(_) => true,
            Next::Unclaimed | Next::Held(_) | Next::Ended(_) => false,
        };
        if !is_asked {
            return;
        }
        if claim.job.has_finished {
            self.claims.next = Next::Ended(claim.generation);
        } else {
            self.ask_end(claim.generation + 1, actions);
        }
        self.claims.former = Some(claim);
    }

    /// The job has finished under another leader while this one waited for its members, or trained with others.
    fn has_finished_under(&mut self, now: Duration, claim: Claim, actions: &mut Vec<Action>) {
        actions.push(Action::Log(format!(
            "the job has finished: the gang's leader on {} has said so in the store",
            claim.host
        )));
        self.halt(now, false, actions);
        (self.claims.next, self.claims.former) = (Next::Ended(claim.generation), Some(claim));
        self.end(now, actions);
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

    /// Whether all members are about to leave and some have not, or the store does not know yet that the job has finished.
    pub fn awaits_its_end(&self) -> bool {
        let leaves = |seat: Seat| self.holders.get(&seat).is_none_or(|holder| holder.notice.is_some());
        let all_leave = self.is_over() || self.required().all(|seat| seat == self.config.own || leaves(seat));
        let is_one_here = self.holders.iter().any(|(seat, holder)| {
            *seat != self.config.own && seat.is_required() && holder.link.is_some() && !self.left.contains(seat)
        });
        self.claims.has_claimed && all_leave && (is_one_here || matches!(self.claims.next, Next::AskedEnd(_)))
    }

    /// A number that another leader has used is not claimed any more.
    pub(super) fn forget_old_claim(&mut self) {
        match self.claims.next {
            Next::Asked(generation) | Next::Held(generation) if generation <= self.generation => {
                self.claims.next = Next::Unclaimed;
            }
            Next::Asked(_) | Next::Held(_) | Next::Unclaimed | Next::AskedEnd(_) | Next::Ended(_) => {}
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
        actions.push(Action::LookForClaim(self.newest_claim() + 1));
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
    use super::super::tests::{NOTHING, at, claim_of, fell, hello, join, leader, says, sent, step, training};
    use super::*;

    #[test]
    fn a_claim_that_has_no_answer_is_not_replaced_by_a_look() {
        let mut leader = training();
        let looks = |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::LookForClaim(_)));
        says(&mut leader, 3_000, 1, fell(Class::Code, None));
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
        assert!(leader.awaits_its_end());
        let actions = leader.step(at(5_100), Event::ClaimedByOther(claim_of(3)));
        assert_eq!(asked(&actions), [(4, END)], "another leader has taken the number");
        assert_eq!(asked(&leader.step(at(5_200), Event::Claimed(4))), []);
        says(&mut leader, 6_000, 1, ToLeader::Leaving);
        assert!(!leader.awaits_its_end());
        assert_eq!(leader.ended_generation(), None, "the other leader's gang may train");
    }

    #[test]
    fn a_claim_that_has_no_answer_is_answered_before_the_end_is_claimed() {
        let mut leader = training();
        says(&mut leader, 5_000, 1, fell(Class::Code, None));
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

    #[test]
    fn a_job_begins_from_the_beginning_once_as_it_was_asked_to() {
        let begins = |job: JobState| {
            let mut leader = leader(|config| {
                config.from_scratch = true;
                (config.newest_claim, config.former_has_ended) = (Some(Claim { job, ..claim_of(4) }), true);
            });
            join(&mut leader, 0);
            leader.choice == Some(Choice::Start)
        };
        let asked = JobState { from_scratch: true, ..JobState::default() };
        assert!(begins(JobState::default()), "the run before was not asked to");
        assert!(!begins(asked), "all agents were replaced");
        assert!(begins(JobState { from_nothing: true, ..asked }), "no step is common since");
        assert!(begins(JobState { has_finished: true, ..asked }), "another run");
    }
}

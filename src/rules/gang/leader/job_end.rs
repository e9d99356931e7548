//! The end of the job: the final message to the members, the end in the store, and the wait for the last member.

use std::time::Duration;

use super::super::Generation;
use super::super::beat::Departure;
use super::super::claim::{Claim, JobState};
use super::super::message::ToMember;
use super::claims::NextClaim;
use super::{Action, Holder, LATE_EVALUATORS, Leader, Link, MARGIN, Phase, State};
use crate::cluster::seat::Seat;
use crate::process::exit::{Prospect, prospect};

impl Leader {
    /// The chief's trainer has ended with 0: nothing is halted any more.
    pub(super) fn conclude(&mut self, now: Duration) {
        if matches!(self.phase, Phase::Training | Phase::Collecting) {
            (self.phase, self.since, self.name_at, self.inquiry) = (Phase::Concluding, now, None, None);
            self.failures.clear();
        }
    }

    /// A member exits with an empty tree.
    pub(super) fn on_leaving(&mut self, now: Duration, seat: Seat, actions: &mut Vec<Action>) {
        let Some(holder) = self.holders.get(&seat) else { return };
        let (host, leaves, has_finished) =
            (holder.host.clone(), holder.leaves.clone(), holder.state == State::Finished);
        let is_success = leaves.as_ref().is_some_and(|leaves| leaves.code == 0);
        let why = match &leaves {
            Some(Departure { code, detail, .. }) => format!("it left with exit code {code}: {detail}"),
            None => "it left".to_owned(),
        };
        self.left.insert(seat);
        if self.phase == Phase::Concluding && Some(seat) == self.chief() && !is_success {
            // Its last commit has failed, so the job has not finished.
            self.halt(now, false, actions);
        }
        // The part of a member that exits with 0 is done, and the others go on.
        if self.is_over() || has_finished && is_success {
            let holder = self.holders.remove(&seat);
            holder.and_then(|holder| holder.link).map(|link| self.links.remove(&link));
            return;
        }
        let is_permanent = leaves.as_ref().is_some_and(|leaves| prospect(leaves.code) == Prospect::Permanent);
        self.remove_holder(now, seat, false, &host, &why, actions);
        self.fences.remove(&seat);
        if is_permanent && seat.is_required() {
            return self.give_up(now, format!("{seat} on {host} is missing for good: {why}"), false, actions);
        }
        self.departed.insert(seat, why);
    }

    /// Ends, because the job had finished before this leader started.
    pub(super) fn end_as_replacement(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let Some(end) = self.found_end else { return };
        actions.push(Action::Log(format!("the job has finished: generation {end} in the store is its end")));
        self.claims.next = NextClaim::Ended(end);
        self.end(now, actions);
    }

    pub(super) fn end(&mut self, now: Duration, actions: &mut Vec<Action>) {
        (self.phase, self.since, self.name_at, self.inquiry) = (Phase::Ending, now, None, None);
        self.send_final(ToMember::Finish, actions);
    }

    pub(super) fn give_up(&mut self, now: Duration, why: String, no_common_step: bool, actions: &mut Vec<Action>) {
        let first = self.record.first.clone();
        self.give_up_with(now, ToMember::GiveUp { why, no_common_step, contradiction: false, first }, actions);
    }

    pub(super) fn give_up_with(&mut self, now: Duration, message: ToMember, actions: &mut Vec<Action>) {
        (self.phase, self.since, self.name_at, self.inquiry) = (Phase::GivenUp, now, None, None);
        self.send_final(message, actions);
    }

    /// Sends the final message to all members except the leader's own, which leaves last.
    fn send_final(&mut self, message: ToMember, actions: &mut Vec<Action>) {
        let others = self.holders.iter().filter(|(seat, _)| **seat != self.config.own);
        let links: Vec<Link> = others.filter_map(|(_, holder)| holder.link).collect();
        actions.extend(links.into_iter().map(|link| Action::Send(link, message.clone())));
        self.final_message = Some(message);
    }

    pub(super) fn try_to_end(&mut self, now: Duration, grace: Duration, actions: &mut Vec<Action>) {
        let timing = self.config.timing;
        // A member without a connection may reconnect and get the final message.
        let commits = |holder: &Holder| holder.link.is_some() && holder.commits;
        let until = |leader: &Leader, seat: Seat| match (leader.holders.get(&seat), seat.is_required()) {
            (Some(holder), _) if commits(holder) => timing.wait,
            (Some(_), true) => grace + timing.stop_grace + MARGIN,
            (Some(_), false) => timing.evaluator_grace.max(LATE_EVALUATORS),
            (None, true) => timing.lease.min(grace + timing.stop_grace + MARGIN),
            (None, false) => LATE_EVALUATORS,
        };
        let own = self.config.own;
        if self.any_seat(|leader, seat| {
            seat != own && !leader.left.contains(&seat) && now < leader.since + until(leader, seat)
        }) {
            return;
        }
        self.phase = Phase::Done;
        if let (Some(message), Some(link)) =
            (&self.final_message, self.holders.get(&self.config.own).and_then(|own| own.link))
        {
            actions.push(Action::Send(link, message.clone()));
        }
        actions.push(Action::Done);
    }

    /// Claims the number after the newest claim as the end of the job, for other agents of this leader's seat. A pending claim
    /// is answered first, so that no number is skipped.
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

    /// Handles another leader's claim on the number that this leader requested: requests the next number as the end of the job.
    pub(super) fn on_other_claim_at_end(&mut self, claim: Claim, actions: &mut Vec<Action>) {
        let is_end_pending = match self.claims.next {
            NextClaim::Requested(_) => self.phase == Phase::Ending,
            NextClaim::EndRequested(_) => true,
            NextClaim::Unclaimed | NextClaim::Held(_) | NextClaim::Ended(_) => false,
        };
        if !is_end_pending {
            return;
        }
        if claim.job.has_finished {
            self.claims.next = NextClaim::Ended(claim.generation);
        } else {
            self.request_end_claim(claim.generation + 1, actions);
        }
        self.claims.former = Some(claim);
    }

    /// Ends, because the job has finished under another leader.
    pub(super) fn end_with_other_leader(&mut self, now: Duration, claim: Claim, actions: &mut Vec<Action>) {
        actions.push(Action::Log(format!(
            "the job has finished: the gang's leader on {} has written the end to the store",
            claim.host
        )));
        self.halt(now, false, actions);
        (self.claims.next, self.claims.former) = (NextClaim::Ended(claim.generation), Some(claim));
        self.end(now, actions);
    }

    /// Whether all members are about to leave and some have not left, or the end of the job is not in the store yet.
    pub fn is_waiting_to_end(&self) -> bool {
        let leaves = |seat: Seat| self.holders.get(&seat).is_none_or(|holder| holder.notice.is_some());
        let all_leave = self.is_over() || self.required().all(|seat| seat == self.config.own || leaves(seat));
        let is_connected = self.holders.iter().any(|(seat, holder)| {
            *seat != self.config.own && seat.is_required() && holder.link.is_some() && !self.left.contains(seat)
        });
        self.claims.has_claimed && all_leave && (is_connected || matches!(self.claims.next, NextClaim::EndRequested(_)))
    }

    /// The newest generation that this leader has claimed, if every other required member has left: when this agent exits, no
    /// trainer of the gang runs.
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
    use super::super::super::Incarnation;
    use super::super::super::beat::Beat;
    use super::super::super::message::{Class, FormerLeader, Hello, Offer, ToLeader};
    use super::super::tests::{NOTHING, at, claim_of, failed, hello, join, leader, receive, sent, step, training};
    use super::super::{Config, Event};
    use super::*;

    fn claims(actions: &[Action]) -> Vec<(Generation, JobState)> {
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
        assert_eq!(claims(&actions), [(2, END)]);
        assert!(leader.is_waiting_to_end());
        let actions = leader.step(at(5_100), Event::ClaimedByOther(claim_of(3)));
        assert_eq!(claims(&actions), [(4, END)], "another leader has claimed the number");
        assert_eq!(claims(&leader.step(at(5_200), Event::Claimed(4))), []);
        receive(&mut leader, 6_000, 1, ToLeader::Leaving);
        assert!(!leader.is_waiting_to_end());
        assert_eq!(leader.ended_generation(), None, "the other leader's gang may train");
    }

    #[test]
    fn a_pending_claim_is_answered_before_the_end_is_claimed() {
        let mut leader = training();
        receive(&mut leader, 5_000, 1, failed(Class::Code, None));
        let offer = || ToLeader::Offer { after: 1, offer: Offer::default() };
        leader.step(at(5_100), Event::Received(1, offer()));
        let mut pending = leader.clone();
        assert_eq!(claims(&pending.step(at(5_100), Event::Received(0, offer()))).len(), 1);
        // The chief's trainer ended with 0 before the halt reached it.
        let actions = leader.step(at(5_200), Event::Received(0, ToLeader::Finished { generation: 1 }));
        assert_eq!((leader.state(), claims(&actions)), ("ending", vec![(2, END)]));
        pending.phase = Phase::Ending;
        assert_eq!(claims(&pending.step(at(5_200), Event::Tick)), []);
        assert_eq!(claims(&pending.step(at(5_300), Event::Claimed(2))), [(3, END)]);
        assert_eq!(claims(&pending.step(at(5_400), Event::Claimed(3))), []);
    }

    /// A leader with two offers, and its actions when it finds the end of the job.
    fn finds_the_end(has_read_claims: bool) -> (Leader, Vec<Action>) {
        let mut leader = leader(|config| config.has_read_claims = has_read_claims);
        let offer = |number| Event::Received(number, ToLeader::Offer { after: 0, offer: Offer::default() });
        for number in [0, 1] {
            receive(&mut leader, 0, number, ToLeader::Hello(hello(number)));
        }
        leader.step(at(0), offer(0));
        assert_eq!(claims(&leader.step(at(0), offer(1))), [(1, NOTHING)]);
        let actions = leader.step(at(100), Event::ClaimedByOther(Claim { job: END, ..claim_of(5) }));
        (leader, actions)
    }

    #[test]
    fn a_leader_that_finds_an_end_newer_than_its_start_ends_with_its_members() {
        let (mut leader, actions) = finds_the_end(true);
        assert!(sent(&actions, 1).contains(&&ToMember::Finish) && claims(&actions).is_empty(), "{actions:?}");
        let actions = receive(&mut leader, 200, 1, ToLeader::Leaving);
        assert!(sent(&actions, 0).contains(&&ToMember::Finish), "{actions:?}");
        assert_eq!(leader.ended_generation(), None, "the other leader's agent may still run");
    }

    #[test]
    fn a_leader_that_did_not_read_the_store_at_its_start_begins_a_new_run() {
        let (leader, actions) = finds_the_end(false);
        assert_eq!(claims(&actions), [(6, NOTHING)]);
        assert_eq!(leader.state(), "collecting");
    }

    #[test]
    fn a_leader_that_started_trainers_before_the_end_was_in_the_store_stops_them() {
        let mut leader = training();
        let actions = leader.step(at(5_000), Event::ClaimedByOther(Claim { job: END, ..claim_of(2) }));
        assert_eq!(sent(&actions, 1), [&ToMember::Halt { generation: 1, hung: false }, &ToMember::Finish]);
        assert_eq!(sent(&actions, 0), [&ToMember::Halt { generation: 1, hung: false }]);
    }

    #[test]
    fn an_end_that_is_older_than_the_leaders_start_belongs_to_another_run() {
        let mut leader = leader(|config| config.newest_claim = Some(Claim { job: END, ..claim_of(4) }));
        join(&mut leader, 0);
        assert_eq!((leader.state(), leader.generation()), ("collecting", 4));
    }

    fn beat(beat: Beat) -> ToLeader {
        ToLeader::Beat(beat)
    }

    fn chief_succeeds(leader: &mut Leader, ms: u64) -> Vec<Action> {
        receive(leader, ms, 0, beat(Beat { succeeded: Some(1), commits: true, ..Beat::default() }))
    }

    fn left(code: u8) -> ToLeader {
        let departure = Departure { code, reason: "store".to_owned(), detail: "full".to_owned() };
        beat(Beat { leaves: Some(departure), ..Beat::default() })
    }

    #[test]
    fn from_the_success_of_the_chief_on_nothing_is_halted() {
        let mut leader = training();
        chief_succeeds(&mut leader, 5_000);
        let quiet = |actions: &[Action]| !actions.iter().any(|action| matches!(action, Action::Send(..)));
        let actions = receive(&mut leader, 5_010, 1, failed(Class::Code, None));
        assert!(quiet(&actions), "{actions:?}");
        assert!(actions.iter().any(|action| matches!(action, Action::Log(line) if line.contains("worker/0"))));
        receive(&mut leader, 5_020, 1, ToLeader::Offer { after: 1, offer: Offer::default() });
        leader.step(at(5_030), Event::Closed(1));
        assert!(quiet(&leader.step(at(6_000), Event::Tick)), "a lost member");
        let rejoins = receive(&mut leader, 9_000, 7, ToLeader::Hello(hello(1)));
        assert!(matches!(sent(&rejoins, 7)[..], [ToMember::Welcome { .. }]), "{rejoins:?}");
        let actions = receive(&mut leader, 10_000, 0, ToLeader::Finished { generation: 1 });
        assert_eq!(sent(&actions, 7), [&ToMember::Finish]);
    }

    #[test]
    fn a_failed_last_commit_of_the_chief_halts_all() {
        let mut leader = training();
        chief_succeeds(&mut leader, 5_000);
        receive(&mut leader, 6_000, 0, left(204));
        let actions = receive(&mut leader, 6_000, 0, ToLeader::Leaving);
        assert_eq!(sent(&actions, 1), [&ToMember::Halt { generation: 1, hung: false }]);
        assert_eq!(leader.state(), "collecting");
    }

    #[test]
    fn the_leader_waits_for_the_last_commit_of_a_member() {
        let mut leader = training();
        receive(&mut leader, 5_000, 0, ToLeader::Finished { generation: 1 });
        for ms in (6_000..300_000).step_by(2_000) {
            receive(&mut leader, ms, 1, beat(Beat { commits: true, ..Beat::default() }));
            assert!(!step(&mut leader, ms, Event::Tick).contains(&Action::Done), "{ms}");
        }
        assert!(receive(&mut leader, 300_000, 1, ToLeader::Leaving).contains(&Action::Done));
    }

    #[test]
    fn a_member_that_leaves_with_a_permanent_code_ends_the_gang_at_once() {
        let mut leader = training();
        receive(&mut leader, 6_000, 1, left(205));
        let actions = receive(&mut leader, 6_000, 1, ToLeader::Leaving);
        assert_eq!(leader.state(), "done");
        let [ToMember::Halt { .. }, ToMember::GiveUp { why, .. }] = sent(&actions, 0)[..] else {
            panic!("{actions:?}")
        };
        assert_eq!(why, "worker/0 on host-1 is missing for good: it left with exit code 205: full");
    }

    #[test]
    fn a_member_that_left_is_named_with_its_reason_when_the_wait_ends() {
        let mut leader = training();
        leader.config.timing.wait = Duration::from_secs(60);
        receive(&mut leader, 6_000, 1, left(204));
        receive(&mut leader, 6_000, 1, ToLeader::Leaving);
        let failure = leader.failures[0].first.failure.clone();
        assert_eq!((failure.class, failure.detail.as_str()), (Class::Lost, "it left with exit code 204: full"));
        for ms in (7_000..70_000).step_by(1_000) {
            receive(&mut leader, ms, 0, beat(Beat::default()));
        }
        let Some(ToMember::GiveUp { why, .. }) = &leader.final_message else { panic!("it waits") };
        assert_eq!(why, "waited for 60 s for worker/0 (it left with exit code 204: full)");
    }

    #[test]
    fn a_member_that_leaves_with_0_after_its_success_halts_nobody() {
        let mut leader = training();
        receive(&mut leader, 5_000, 1, ToLeader::Finished { generation: 1 });
        receive(&mut leader, 6_000, 1, left(0));
        receive(&mut leader, 6_000, 1, ToLeader::Leaving);
        assert_eq!(leader.state(), "training");
    }

    fn found_end(change: impl FnOnce(&mut Config)) -> Leader {
        leader(|config| {
            let end = Claim { job: END, job_id: "job-7".to_owned(), ..claim_of(4) };
            (config.newest_claim, config.former_has_ended) = (Some(end), true);
            change(config);
        })
    }

    #[test]
    fn a_leader_that_replaces_one_of_a_run_that_has_ended_ends_too() {
        let mut of_job = found_end(|config| config.job_id = "job-7".to_owned());
        let actions = receive(&mut of_job, 0, 1, ToLeader::Hello(hello(1)));
        assert!(sent(&actions, 1).contains(&&ToMember::Finish), "{actions:?}");

        let mut met_member = found_end(|_| {});
        let former = Some(FormerLeader { leader: Incarnation(99), silent_for: None });
        let actions = receive(&mut met_member, 0, 1, ToLeader::Hello(Hello { newest: 3, former, ..hello(1) }));
        assert!(sent(&actions, 1).contains(&&ToMember::Finish) && claims(&actions).is_empty(), "{actions:?}");

        let mut alone = found_end(|config| config.timing.wait = Duration::from_secs(60));
        receive(&mut alone, 0, 0, ToLeader::Hello(hello(0)));
        step(&mut alone, 60_000, Event::Tick);
        assert_eq!(alone.state(), "ending");

        let mut next_run = found_end(|config| config.timing.wait = Duration::from_secs(60));
        receive(&mut next_run, 0, 1, ToLeader::Hello(hello(1)));
        step(&mut next_run, 60_000, Event::Tick);
        assert_eq!(next_run.state(), "given_up", "a replica has come");
    }

    #[test]
    fn a_leader_whose_members_do_not_come_looks_for_the_end() {
        let mut leader = leader(|_| {});
        let checks = |actions: &[Action]| actions.contains(&Action::CheckForNewerClaim(1));
        assert!(!checks(&step(&mut leader, 19_999, Event::Tick)));
        assert!(checks(&step(&mut leader, 20_000, Event::Tick)));
        step(&mut leader, 20_100, Event::ClaimedByOther(Claim { job: END, ..claim_of(5) }));
        assert_eq!(leader.state(), "ending");
    }
}

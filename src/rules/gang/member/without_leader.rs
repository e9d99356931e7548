//! A member that reaches no leader: it reads the end of the job from the store, and gives up after the limit for waiting.
//!
//! Claims are a log, so an end that is newer than the newest generation of this member ends this member's run. A member that
//! never had a seat cannot compare: it believes an end with the platform's id of its own job, an end that it has seen come,
//! and any end if no other replica has connected within the limit for waiting.

use std::time::Duration;

use super::super::Generation;
use super::super::claim::Claim;
use super::{Action, Leave, Member, WAITING_REPORT_INTERVAL};

/// What a member has read of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct StoreView {
    /// The platform's id of this member's job; empty if the platform gives none.
    pub(super) job_id: String,
    /// The time of the next read.
    pub(super) next_read: Option<Duration>,
    /// The newest claim of the first read; 0: there was none.
    first_read: Option<Generation>,
    /// The newest claim is the end of a job.
    has_end: bool,
}

impl Member {
    /// Sets the platform's id of this member's job.
    pub fn of_job(&mut self, job_id: String) {
        self.store.job_id = job_id;
    }

    pub(super) fn wait_for_leader(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let wait = self.timing.wait;
        let first_read = self.waiting + self.timing.lease.min(wait / 2);
        if now >= self.waiting + wait {
            return self.give_up(actions);
        }
        if now >= *self.store.next_read.get_or_insert(first_read) {
            self.store.next_read = Some(now + self.timing.lease / 2);
            actions.push(Action::ReadClaim);
        }
        if now >= self.last_waiting_report + WAITING_REPORT_INTERVAL {
            self.last_waiting_report = now;
            actions.push(Action::Waiting(vec![self.leader_seat]));
        }
    }

    /// Leaves with 0 if the newest claim is the end of this member's run.
    pub(super) fn on_claim_read(&mut self, claim: Option<Claim>, actions: &mut Vec<Action>) {
        // The answer is outdated.
        if self.store.next_read.is_none() {
            return;
        }
        let newest = claim.as_ref().map_or(0, |claim| claim.generation);
        let first_read = *self.store.first_read.get_or_insert(newest);
        let end = claim.filter(|claim| claim.job.has_finished);
        self.store.has_end = end.is_some();
        let is_of_this_run = |end: &Claim| {
            let has_id = !end.job_id.is_empty() && end.job_id == self.store.job_id;
            let is_after_last_seat = self.leader.is_some() && self.newest > 0 && end.generation > self.newest;
            has_id || is_after_last_seat || Some(end.leader) == self.leader || end.generation > first_read
        };
        if end.is_some_and(|end| is_of_this_run(&end)) {
            self.on_finish(actions);
        }
    }

    fn give_up(&mut self, actions: &mut Vec<Action>) {
        if self.leader.is_none() && self.store.has_end {
            return self.on_finish(actions);
        }
        let seats: Vec<String> = self.missing.iter().map(ToString::to_string).collect();
        let leader = || format!("the leader, {}", self.leader_seat);
        let missing = if seats.is_empty() { leader() } else { seats.join(", ") };
        let why = format!("waited for {} s for: {missing}", self.timing.wait.as_secs());
        let first = self.record.first.clone();
        self.stop_and_leave(Leave::GaveUp { why, no_common_step: false, first }, actions);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Incarnation;
    use super::super::super::claim::JobState;
    use super::super::super::message::ToMember;
    use super::super::Event;
    use super::super::tests::{LEADER, at, member, offer, ready, receive, training, welcome};
    use super::*;
    use crate::cluster::spec::Role;

    fn end_of_job(generation: Generation, leader: Incarnation) -> Option<Claim> {
        let job = JobState { has_finished: true, ..JobState::default() };
        Some(Claim { generation, leader, host: "h".to_owned(), job_id: "job-7".to_owned(), job })
    }

    /// The actions of a member after it has reached no leader for the lease, and the store has answered with these claims.
    fn reads(mut member: Member, claims: &[Option<Claim>]) -> Vec<Action> {
        member.step(at(100_000), Event::Unlinked { silent: false });
        member.step(at(100_001), Event::Tick);
        let actions = member.step(at(121_000), Event::Tick);
        assert!(actions.contains(&Action::ReadClaim), "{actions:?}");
        claims.iter().flat_map(|claim| member.step(at(121_010), Event::ClaimRead(claim.clone()))).collect()
    }

    #[test]
    fn a_member_that_reaches_no_leader_finds_the_end_of_its_run_in_the_store() {
        let leaves = |actions: &[Action]| actions.contains(&Action::Leave(Leave::Finished));
        let other = Incarnation(99);
        let stopped = || {
            let mut member = training();
            receive(&mut member, 10, ToMember::Halt { generation: 1, hung: false });
            member.step(at(20), Event::TreeEmpty(offer(&[20])));
            member
        };
        assert!(leaves(&reads(stopped(), &[end_of_job(2, other)])));
        assert!(
            !leaves(&reads(stopped(), &[end_of_job(1, other)])),
            "an end before its generation is of an earlier run"
        );
        assert!(!leaves(&reads(stopped(), &[None])));
        // Its newest generation is unknown to it, as to an evaluator that joined before the first one.
        assert!(leaves(&reads(ready(), &[end_of_job(2, LEADER)])));
        let fresh = || member(Role::Worker);
        assert!(!leaves(&reads(fresh(), &[end_of_job(2, other)])), "it may be of an earlier run");
        assert!(leaves(&reads(fresh(), &[None, end_of_job(2, other)])), "it has seen it come");
        let mut of_job = fresh();
        of_job.of_job("job-7".to_owned());
        assert!(leaves(&reads(of_job, &[end_of_job(2, other)])));
        let evaluator = reads(
            {
                let mut evaluator = member(Role::Evaluator);
                evaluator.step(at(0), Event::Linked);
                receive(&mut evaluator, 0, welcome(1));
                evaluator
            },
            &[end_of_job(2, other)],
        );
        assert!(evaluator.contains(&Action::End(Duration::from_secs(600))), "{evaluator:?}");
    }

    #[test]
    fn a_new_member_that_nobody_joins_believes_an_end_after_the_limit_for_waiting() {
        let after_wait = |claim: Option<Claim>| {
            let mut member = member(Role::Worker);
            member.step(at(0), Event::TreeEmpty(offer(&[])));
            member.step(at(20_000), Event::Tick);
            member.step(at(20_001), Event::ClaimRead(claim));
            member.step(at(3_600_000), Event::Tick)
        };
        assert!(after_wait(end_of_job(2, LEADER)).contains(&Action::Leave(Leave::Finished)));
        assert!(after_wait(None).iter().any(|action| matches!(action, Action::Leave(Leave::GaveUp { .. }))));
    }

    #[test]
    fn the_limit_for_waiting_counts_while_the_trainer_of_an_evaluator_runs() {
        let mut evaluator = member(Role::Evaluator);
        let actions = evaluator.step(at(3_600_000), Event::Tick);
        assert!(actions.contains(&Action::Stop(Duration::from_millis(500))), "{actions:?}");
        let left = evaluator.step(at(3_600_100), Event::TreeEmpty(offer(&[])));
        assert!(left.iter().any(|action| matches!(action, Action::Leave(Leave::GaveUp { .. }))), "{left:?}");
    }
}

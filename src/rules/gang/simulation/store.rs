//! The store of the claims, which is slow or does not answer at times. A put takes effect even if its agent dies.

use super::*;

/// A new leader does not allow for a slower check.
const LATE: Millis = 4 * SECOND;

#[derive(Default)]
pub(super) struct Store {
    pub(super) claims: BTreeMap<Generation, Claim>,
    /// Generations in which all members have committed a step.
    pub(super) common: BTreeSet<Generation>,
    away_until: Millis,
    /// The time until which a leader may find a newer claim too late.
    pub(super) late_until: Millis,
}

impl World {
    pub(super) fn store_goes_away(&mut self, lasts: Millis) {
        self.store.away_until = self.store.away_until.max(self.now + lasts);
    }

    fn latency(&mut self) -> Millis {
        let slow = self.random.below(20) == 0;
        self.random.between(5, if slow { 8 * SECOND } else { 200 })
    }

    /// The request of a leader to claim a generation, which is retried until the store has answered.
    pub(super) fn claim(&mut self, agent: usize, generation: Generation, job: JobState) {
        self.agents[agent].claim += 1;
        let claim = self.agents[agent].claim;
        if !self.plan.store {
            return self.at(self.now, WorldEvent::ToLeader { agent, claim, event: leader::Event::Claimed(generation) });
        }
        let when = self.now.max(self.store.away_until) + self.latency();
        let leader = self.agents[agent].incarnation;
        let object = Claim { generation, leader, host: format!("host-{agent}"), job_id: self.plan.job_id.clone(), job };
        self.at(when, WorldEvent::Put { agent, claim, object });
    }

    pub(super) fn put(&mut self, agent: usize, claim: u64, object: Claim) {
        let (generation, leader) = (object.generation, object.leader);
        let existing = self.store.claims.entry(generation).or_insert(object);
        let event = if existing.leader == leader {
            leader::Event::Claimed(generation)
        } else {
            leader::Event::ClaimedByOther(self.newest_claim().expect("a claim exists"))
        };
        if self.end_written.is_none() && self.newest_claim().is_some_and(|claim| claim.job.has_finished) {
            self.end_written = Some(self.now);
        }
        self.milestone(|| format!("the store answers agent {agent}: {event:?}"));
        let when = self.now + self.latency();
        self.at(when, WorldEvent::ToLeader { agent, claim, event });
    }

    pub(super) fn mark_common(&mut self, generation: Generation) {
        if self.plan.store {
            let when = self.now.max(self.store.away_until) + self.latency();
            self.at(when, WorldEvent::MarksCommon(generation));
        }
    }

    /// The request of a leader to check whether a generation is claimed. A failed check is not retried.
    pub(super) fn check_claim(&mut self, agent: usize, generation: Generation) {
        // This replaces the request before.
        self.agents[agent].claim += 1;
        if !self.plan.store {
            return;
        }
        let (request_delay, answer_delay) = (self.latency(), self.latency());
        if self.store.away_until > self.now {
            self.store.late_until = self.store.late_until.max(self.store.away_until);
            return;
        }
        if request_delay + answer_delay > LATE {
            self.store.late_until = self.store.late_until.max(self.now + request_delay + answer_delay);
        }
        let when = self.now + request_delay;
        self.at(when, WorldEvent::ReadsClaim { agent, generation, answer_delay });
    }

    pub(super) fn read_claim(&mut self, agent: usize, generation: Generation, answer_delay: Millis) {
        let own = self.agents[agent].incarnation;
        if let Some(claim) = self.newest_claim().filter(|c| c.generation >= generation && c.leader != own) {
            let when = self.now + answer_delay;
            let request = self.agents[agent].claim;
            self.at(when, WorldEvent::ToLeader { agent, claim: request, event: leader::Event::ClaimedByOther(claim) });
        }
    }

    /// The request of a member for the newest claim. A failed read is not retried.
    pub(super) fn read_newest_claim(&mut self, agent: usize) {
        if self.plan.store && self.store.away_until <= self.now {
            let (claim, when) = (self.newest_claim(), self.now + self.latency());
            self.at(when, WorldEvent::ToAgent(agent, Input::Member(member::Event::ClaimRead(claim))));
        }
    }

    pub(super) fn newest_claim(&self) -> Option<Claim> {
        let newest = self.store.claims.values().next_back().cloned()?;
        let is_common = self.store.common.contains(&newest.generation);
        let from_nothing = newest.job.from_nothing && !is_common;
        Some(Claim { job: JobState { from_nothing, ..newest.job }, ..newest })
    }

    /// Whether two complete gangs may train at the same time, because the store answers late.
    pub(super) fn two_gangs_may_train(&self) -> bool {
        self.two_gangs && self.now < self.store.late_until + 35 * SECOND
    }
}

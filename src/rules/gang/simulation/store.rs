//! The store of the claims: slow at times, and away at times. A put that was sent takes effect even if its agent dies.

use super::*;

/// A look that takes longer than this is later than a new leader counts on.
const LATE: Millis = 4 * SECOND;

/// The claims, and when the store does not answer.
#[derive(Default)]
pub(super) struct Store {
    pub(super) claims: BTreeMap<Generation, Claim>,
    /// Generations in which all members have committed a step.
    pub(super) common: BTreeSet<Generation>,
    away_until: Millis,
    /// Until when a leader may know of a newer claim later than is promised.
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

    /// The request of a leader to claim a generation. Its caller tries until the store has answered.
    pub(super) fn claim(&mut self, agent: usize, generation: Generation, job: JobState) {
        self.agents[agent].claim += 1;
        let claim = self.agents[agent].claim;
        if !self.plan.store {
            return self.at(self.now, Happening::ToLeader { agent, claim, event: leader::Event::Claimed(generation) });
        }
        let when = self.now.max(self.store.away_until) + self.latency();
        let leader = self.agents[agent].incarnation;
        let object = Claim { generation, leader, host: format!("host-{agent}"), job };
        self.at(when, Happening::Put { agent, claim, object });
    }

    pub(super) fn put(&mut self, agent: usize, claim: u64, object: Claim) {
        let (generation, leader) = (object.generation, object.leader);
        let there = self.store.claims.entry(generation).or_insert(object);
        let event = if there.leader == leader {
            leader::Event::Claimed(generation)
        } else {
            leader::Event::ClaimedByOther(self.newest_claim().expect("one is there"))
        };
        self.milestone(|| format!("the store answers agent {agent}: {event:?}"));
        let when = self.now + self.latency();
        self.at(when, Happening::ToLeader { agent, claim, event });
    }

    pub(super) fn mark_common(&mut self, generation: Generation) {
        if self.plan.store {
            let when = self.now.max(self.store.away_until) + self.latency();
            self.at(when, Happening::MarksCommon(generation));
        }
    }

    /// The request of a leader to read whether a generation is claimed. One that fails is not tried again.
    pub(super) fn look(&mut self, agent: usize, generation: Generation) {
        // It replaces the request before.
        self.agents[agent].claim += 1;
        if !self.plan.store {
            return;
        }
        let (there, back) = (self.latency(), self.latency());
        if self.store.away_until > self.now {
            self.store.late_until = self.store.late_until.max(self.store.away_until);
            return;
        }
        if there + back > LATE {
            self.store.late_until = self.store.late_until.max(self.now + there + back);
        }
        let when = self.now + there;
        self.at(when, Happening::Looks { agent, generation, back });
    }

    pub(super) fn looks(&mut self, agent: usize, generation: Generation, back: Millis) {
        let own = self.agents[agent].incarnation;
        if let Some(claim) = self.newest_claim().filter(|c| c.generation >= generation && c.leader != own) {
            let when = self.now + back;
            let claim_of = self.agents[agent].claim;
            self.at(when, Happening::ToLeader { agent, claim: claim_of, event: leader::Event::ClaimedByOther(claim) });
        }
    }

    pub(super) fn newest_claim(&self) -> Option<Claim> {
        let newest = self.store.claims.values().next_back().cloned()?;
        let is_common = self.store.common.contains(&newest.generation);
        let from_nothing = newest.job.from_nothing && !is_common;
        Some(Claim { job: JobState { from_nothing, ..newest.job }, ..newest })
    }

    /// Whether what is promised of two complete gangs is not promised now: the store answers late.
    pub(super) fn two_gangs_may_train(&self) -> bool {
        self.two_gangs && self.now < self.store.late_until + 35 * SECOND
    }
}

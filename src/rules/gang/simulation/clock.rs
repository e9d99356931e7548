//! The simulated time, the clocks of the agents, and the queue of events.

use super::*;

impl World {
    pub(super) fn at(&mut self, when: Millis, what: WorldEvent) {
        self.count += 1;
        self.events.insert(self.count, what);
        self.heap.push(Reverse((when.max(self.now), self.count)));
    }

    pub(super) fn clock(&self, agent: usize) -> Duration {
        let agent = &self.agents[agent];
        let local = self.now as i64 * (100_000 + agent.clock_excess) / 100_000;
        Duration::from_millis(local as u64 + agent.offset)
    }

    /// The simulated time at which an agent's clock has this value.
    pub(super) fn when(&self, agent: usize, clock: Duration) -> Millis {
        let at = &self.agents[agent];
        let local = (clock.as_millis() as u64).saturating_sub(at.offset) as i64;
        (local * 100_000 / (100_000 + at.clock_excess)) as u64 + 1
    }

    pub(super) fn wake(&mut self, agent: usize, clock: Duration, leader: bool) {
        let when = self.when(agent, clock).max(self.now + 1);
        let next = &mut self.agents[agent].ticks[usize::from(leader)];
        if next.is_none_or(|at| when < at) {
            *next = Some(when);
            self.at(when, WorldEvent::ToAgent(agent, Input::Tick { leader }));
        }
    }

    pub(super) fn run(&mut self, until: Millis) {
        while let Some(Reverse((when, count))) = self.heap.pop() {
            if when > until || self.violation.is_some() {
                self.heap.push(Reverse((when, count)));
                return;
            }
            self.now = when;
            let Some(what) = self.events.remove(&count) else { continue };
            self.handle(what);
        }
    }

    fn agent_of(&self, what: &WorldEvent) -> Option<usize> {
        match what {
            WorldEvent::ToAgent(agent, _) | WorldEvent::Dials(agent) => Some(*agent),
            WorldEvent::TrainerSteps { agent, .. }
            | WorldEvent::TrainerGone { agent, .. }
            | WorldEvent::LastCommitEnds { agent, .. }
            | WorldEvent::TrainerEnds { agent, .. }
            | WorldEvent::FindsHang { agent, .. }
            | WorldEvent::ToLeader { agent, .. }
            | WorldEvent::Surveyed { agent, .. } => Some(*agent),
            WorldEvent::Arrives { link, to_leader, .. } | WorldEvent::Closed { link, to_leader, .. } => {
                self.links.get(link).map(|conn| if *to_leader { conn.leader } else { conn.member })
            }
            WorldEvent::Fault(_)
            | WorldEvent::Put { .. }
            | WorldEvent::MarksCommon(_)
            | WorldEvent::ReadsClaim { .. }
            | WorldEvent::Thaws(_)
            | WorldEvent::Heals
            | WorldEvent::Dies(_)
            | WorldEvent::MachineEnds { .. }
            | WorldEvent::CollectiveBreaks { .. }
            | WorldEvent::CheckHalt { .. }
            | WorldEvent::Replaces { .. } => None,
        }
    }

    pub(super) fn handle(&mut self, what: WorldEvent) {
        if let Some(agent) = self.agent_of(&what) {
            if !self.agents[agent].alive {
                return;
            }
            if self.agents[agent].frozen.is_some() {
                return self.agents[agent].waiting.push(what);
            }
        }
        match what {
            WorldEvent::ToAgent(agent, Input::Member(event)) => self.member(agent, event),
            WorldEvent::ToAgent(agent, Input::Tick { leader }) => {
                // This tick was replaced by an earlier one.
                if self.agents[agent].ticks[usize::from(leader)].is_none_or(|at| at > self.now) {
                    return;
                }
                self.agents[agent].ticks[usize::from(leader)] = None;
                if leader { self.leader(agent, leader::Event::Tick) } else { self.member(agent, member::Event::Tick) }
            }
            WorldEvent::Arrives { link, to_leader, message } => self.arrives(link, to_leader, message),
            WorldEvent::Closed { link, to_leader, silent } => self.closed(link, to_leader, silent),
            WorldEvent::Dials(agent) => self.dial(agent),
            WorldEvent::TrainerSteps { agent, run } => self.trainer_steps(agent, run),
            WorldEvent::TrainerGone { agent, run } => self.trainer_gone(agent, run),
            WorldEvent::LastCommitEnds { agent, run } => self.end_last_commit(agent, run),
            WorldEvent::ToLeader { agent, claim, event } => {
                if self.agents[agent].claim == claim {
                    self.leader(agent, event);
                }
            }
            WorldEvent::Put { agent, claim, object } => self.put(agent, claim, object),
            WorldEvent::MarksCommon(generation) => drop(self.store.common.insert(generation)),
            WorldEvent::ReadsClaim { agent, generation, answer_delay } => {
                self.read_claim(agent, generation, answer_delay)
            }
            WorldEvent::Fault(fault) => self.fault(fault),
            WorldEvent::Thaws(agent) => self.thaw(agent),
            WorldEvent::Heals => {
                let now = self.now;
                self.cuts.retain(|(_, _, until)| *until > now);
            }
            WorldEvent::Dies(agent) => {
                let seat = self.agents[agent].seat;
                self.kill_agent(agent);
                if self.holder(seat).is_none() {
                    self.at(self.now + 10 * SECOND, WorldEvent::Replaces { seat });
                }
            }
            WorldEvent::MachineEnds { agent, after } => self.end_machine(agent, after),
            WorldEvent::Replaces { seat } => self.replace(seat),
            WorldEvent::CheckHalt { generation, since, soft } => self.check_halt(generation, since, soft),
            WorldEvent::CollectiveBreaks { generation, except } => self.break_collective(generation, except),
            WorldEvent::FindsHang { agent, run } => self.find_hang(agent, run),
            WorldEvent::TrainerEnds { agent, run } => self.trainer_gone(agent, run),
            WorldEvent::Surveyed { agent, survey, offer } => {
                if self.agents[agent].survey == survey {
                    self.member(agent, member::Event::TreeEmpty(offer));
                }
            }
        }
    }
}

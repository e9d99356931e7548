//! The world's time, the agents' clocks, and the queue of what happens next.

use super::*;

impl World {
    pub(super) fn at(&mut self, when: Millis, what: Happening) {
        self.count += 1;
        self.happenings.insert(self.count, what);
        self.heap.push(Reverse((when.max(self.now), self.count)));
    }

    pub(super) fn clock(&self, agent: usize) -> Duration {
        let agent = &self.agents[agent];
        let local = self.now as i64 * (100_000 + agent.fast) / 100_000;
        Duration::from_millis(local as u64 + agent.offset)
    }

    /// When an agent's clock shows this.
    pub(super) fn when(&self, agent: usize, clock: Duration) -> Millis {
        let at = &self.agents[agent];
        let local = (clock.as_millis() as u64).saturating_sub(at.offset) as i64;
        (local * 100_000 / (100_000 + at.fast)) as u64 + 1
    }

    pub(super) fn wake(&mut self, agent: usize, clock: Duration, leader: bool) {
        let when = self.when(agent, clock).max(self.now + 1);
        let next = &mut self.agents[agent].ticks[usize::from(leader)];
        if next.is_none_or(|at| when < at) {
            *next = Some(when);
            self.at(when, Happening::ToAgent(agent, Input::Tick { leader }));
        }
    }

    pub(super) fn run(&mut self, until: Millis) {
        while let Some(Reverse((when, count))) = self.heap.pop() {
            if when > until || self.trouble.is_some() {
                self.heap.push(Reverse((when, count)));
                return;
            }
            self.now = when;
            let Some(what) = self.happenings.remove(&count) else { continue };
            self.happen(what);
        }
    }

    pub(super) fn agent_of(&self, what: &Happening) -> Option<usize> {
        match what {
            Happening::ToAgent(agent, _) | Happening::Dials(agent) => Some(*agent),
            Happening::TrainerSteps { agent, .. }
            | Happening::TrainerGone { agent, .. }
            | Happening::TrainerEnds { agent, .. }
            | Happening::FindsHang { agent, .. }
            | Happening::ToLeader { agent, .. }
            | Happening::Surveyed { agent, .. } => Some(*agent),
            Happening::Arrives { link, to_leader, .. } | Happening::Closed { link, to_leader, .. } => {
                self.links.get(link).map(|conn| if *to_leader { conn.leader } else { conn.member })
            }
            Happening::Fault(_)
            | Happening::Put { .. }
            | Happening::MarksCommon(_)
            | Happening::Looks { .. }
            | Happening::Thaws(_)
            | Happening::Heals
            | Happening::Dies(_)
            | Happening::MachineGoes { .. }
            | Happening::Judge { .. }
            | Happening::Replaces { .. } => None,
        }
    }

    pub(super) fn happen(&mut self, what: Happening) {
        if let Some(agent) = self.agent_of(&what) {
            if !self.agents[agent].alive {
                return;
            }
            if self.agents[agent].frozen.is_some() {
                return self.agents[agent].waiting.push(what);
            }
        }
        match what {
            Happening::ToAgent(agent, Input::Member(event)) => self.member(agent, event),
            Happening::ToAgent(agent, Input::Tick { leader }) => {
                // One that a sooner one has replaced.
                if self.agents[agent].ticks[usize::from(leader)].is_none_or(|at| at > self.now) {
                    return;
                }
                self.agents[agent].ticks[usize::from(leader)] = None;
                if leader { self.leader(agent, leader::Event::Tick) } else { self.member(agent, member::Event::Tick) }
            }
            Happening::Arrives { link, to_leader, message } => self.arrives(link, to_leader, message),
            Happening::Closed { link, to_leader, silent } => self.closed(link, to_leader, silent),
            Happening::Dials(agent) => self.dial(agent),
            Happening::TrainerSteps { agent, run } => self.trainer_steps(agent, run),
            Happening::TrainerGone { agent, run } => self.trainer_gone(agent, run),
            Happening::ToLeader { agent, claim, event } => {
                if self.agents[agent].claim == claim {
                    self.leader(agent, event);
                }
            }
            Happening::Put { agent, claim, object } => self.put(agent, claim, object),
            Happening::MarksCommon(generation) => drop(self.store.common.insert(generation)),
            Happening::Looks { agent, generation, back } => self.looks(agent, generation, back),
            Happening::Fault(fault) => self.fault(fault),
            Happening::Thaws(agent) => self.thaw(agent),
            Happening::Heals => {
                let now = self.now;
                self.cuts.retain(|(_, _, until)| *until > now);
            }
            Happening::Dies(agent) => {
                let seat = self.agents[agent].seat;
                self.kill_agent(agent);
                if self.holder(seat).is_none() {
                    self.at(self.now + 10 * SECOND, Happening::Replaces { seat });
                }
            }
            Happening::MachineGoes { agent, after } => self.machine_goes(agent, after),
            Happening::Replaces { seat } => self.replace(seat),
            Happening::Judge { generation, since, soft } => self.judge_halt(generation, since, soft),
            Happening::FindsHang { agent, run } => self.find_hang(agent, run),
            Happening::TrainerEnds { agent, run } => self.trainer_gone(agent, run),
            Happening::Surveyed { agent, survey, offer } => {
                if self.agents[agent].survey == survey {
                    self.member(agent, member::Event::TreeEmpty(offer));
                }
            }
        }
    }
}

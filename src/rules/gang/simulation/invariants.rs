//! The promises, checked after every event that could break one.

use std::collections::BTreeSet;

use super::*;

impl World {
    pub(super) fn restore(&mut self, agent: usize, choice: Choice) {
        let restores_own = self.plan.mode == Mode::Each || self.agents[agent].seat == seat_of(0);
        let is_offered = self.agents[agent].offered.iter().any(|offered| offered.step == choice.step());
        if choice != Choice::Start && restores_own && !is_offered {
            self.record_violation(format!("agent {agent} restores {choice:?}, which it did not offer"));
        }
        // Newer steps that the agent has offered are poisoned. Later commits of another agent of its seat are not, even if this
        // agent was frozen meanwhile.
        if choice.step().is_none() || restores_own {
            let newer = self.agents[agent].offered.iter().filter(|offered| offered.step > choice.step());
            let given_up: BTreeSet<u64> = newer.map(|offered| offered.hash).collect();
            let commits = self.commits.entry(self.agents[agent].seat).or_default();
            commits.retain(|step, of| !given_up.contains(&hash_of(*step, *of)));
        }
        // An agent that was frozen may receive an outdated agreement, which does not start.
        let is_over = self.started.range(self.agents[agent].member.newest() + 1..).next().is_some();
        // With `from_scratch`, the job may start from the beginning until the store has the mark of a common step.
        let may_begin = self.plan.from_scratch && self.store.common.is_empty();
        if choice == Choice::Start && !is_over && !may_begin && self.a_step_is_common() {
            self.record_violation(format!(
                "agent {agent} starts from the beginning although there are steps: {:?}",
                self.commits
            ));
        }
        self.agents[agent].restored = Some(choice);
        let slow = self.random.below(20) == 0;
        let when = self.now + self.random.between(10, if slow { 60 } else { 3 } * SECOND);
        self.at(when, WorldEvent::ToAgent(agent, Input::Member(member::Event::Restored)));
    }

    /// A generation starts once, and with a store only under its leader's claim.
    pub(super) fn starts(&mut self, agent: usize, generation: Generation) {
        self.milestone(|| format!("leader {agent} starts generation {generation}"));
        let own = self.agents[agent].incarnation;
        if self.plan.store && self.store.claims.get(&generation).is_none_or(|claim| claim.leader != own) {
            self.record_violation(format!("generation {generation} starts without a claim"));
        }
        if self.finished == Some(agent) {
            self.record_violation(format!("leader {agent} starts generation {generation} after the job has finished"));
        }
        self.done.remove(&generation);
        if !self.plan.store {
            // If every agent was replaced, the numbers are used again.
            self.started.split_off(&generation);
            self.timelines.split_off(&generation);
        }
        if self.started.insert(generation, (None, self.now)).is_some() {
            self.record_violation(format!("generation {generation} starts twice"));
        }
    }

    pub(super) fn launch(&mut self, agent: usize, generation: Generation) {
        self.milestone(|| format!("agent {agent} launches generation {generation}"));
        self.check_after_end(agent, generation);
        self.agents[agent].has_closed = false;
        if self.agents[agent].is_misconfigured {
            self.record_violation(format!("agent {agent} trains although its settings contradict those of the others"));
        }
        if !self.started.contains_key(&generation) {
            self.record_violation(format!("agent {agent} starts generation {generation}, which no leader has started"));
        }
        if self.agents[agent].leader.as_ref().is_some_and(Leader::may_borrow_port) {
            self.record_violation(format!("agent {agent} starts a trainer whose port its leader has"));
        }
        let restored = self.agents[agent].restored.take();
        let step = restored.and_then(Choice::step);
        let trains = self.agents[agent].seat.trains();
        match self.started.get_mut(&generation).filter(|_| trains) {
            Some((agreed @ None, _)) => *agreed = Some(step.unwrap_or(0)),
            Some((Some(agreed), _)) if *agreed != step.unwrap_or(0) => {
                let agreed = *agreed;
                self.record_violation(format!("generation {generation} starts from {agreed} and from {step:?}"));
            }
            _ => {}
        }
        self.check_timeline(agent, generation, step);
        self.runs += 1;
        let id = self.runs;
        if self.agents[agent].run.is_some() {
            self.record_violation(format!("agent {agent} starts a second trainer"));
        }
        self.agents[agent].run = Some(Run {
            id,
            generation,
            step: step.unwrap_or(0),
            stopping: false,
            ignores_signals: self.random.below(4) == 0,
            hangs: false,
        });
        if self.agents.len() < MANY {
            self.check_runs();
        }
        if self.agents[agent].seat.trains() {
            *self.done.entry(generation).or_default().entry(step.unwrap_or(0)).or_default() += 1;
            let when = self.now + self.plan.step;
            self.at(when, WorldEvent::TrainerSteps { agent, run: id });
        }
    }

    /// No generation starts whose claim is later than the end of the job in the store.
    fn check_after_end(&mut self, agent: usize, generation: Generation) {
        let Some(ended) = self.finished.map(|leader| self.agents[leader].incarnation) else { return };
        let end = self.store.claims.iter().find(|(_, claim)| claim.job.has_finished && claim.leader == ended);
        if end.is_some_and(|(end, _)| *end < generation) {
            self.record_violation(format!("agent {agent} starts generation {generation} after the job has finished"));
        }
    }

    /// All members continue from commits of one generation.
    fn check_timeline(&mut self, agent: usize, generation: Generation, step: Option<u64>) {
        let commits = self.commits.get(&self.agents[agent].seat);
        let Some(of) = step.and_then(|step| commits?.get(&step).copied()) else { return };
        let first = *self.timelines.entry(generation).or_insert(of);
        if first != of && !self.two_gangs {
            self.record_violation(format!("generation {generation} continues from generation {first} and from {of}"));
        }
    }

    /// An agent gets its seat of the only leader only when the trainer of the former agent is gone. A frozen trainer does not count.
    fn trains_in(&self, seat: Seat, except: usize) -> bool {
        let trains = |(at, agent): (usize, &Agent)| {
            at != except && agent.seat == seat && agent.alive && agent.frozen.is_none() && agent.run.is_some()
        };
        self.agents.iter().enumerate().any(trains)
    }

    pub(super) fn check_seat(&mut self, link: u64) {
        let Some(member) = self.links.get(&link).map(|conn| conn.member) else { return };
        let seat = self.agents[member].seat;
        if self.leaders.len() == 1 && seat.is_required() && self.trains_in(seat, member) {
            self.record_violation(format!("agent {member} gets {seat} while the trainer of another agent runs there"));
        }
    }

    /// No two generations train at once, and no seat twice. A frozen trainer does not count.
    pub(super) fn check_runs(&mut self) {
        if self.two_gangs_may_train() {
            return;
        }
        let running = self.agents.iter().filter(|agent| agent.frozen.is_none());
        let runs: Vec<(Seat, Generation)> =
            running.filter_map(|agent| agent.run.as_ref().map(|run| (agent.seat, run.generation))).collect();
        let generations: BTreeSet<Generation> = runs.iter().map(|(_, generation)| *generation).collect();
        let seats: BTreeSet<Seat> = runs.iter().map(|(seat, _)| *seat).collect();
        if generations.len() > 1 {
            self.record_violation(format!("generations {generations:?} train at once"));
        }
        if seats.len() < runs.len() {
            self.record_violation(format!("two trainers for one seat: {runs:?}"));
        }
    }

    /// Whether every training member can restore one common step.
    pub(super) fn a_step_is_common(&self) -> bool {
        let mut all = self.plan.seats.iter().filter(|seat| seat.trains()).map(|seat| self.commits.get(seat));
        match self.plan.mode {
            Mode::Each | Mode::Auto => {
                let Some(first) = all.next().flatten() else { return false };
                let others: Vec<_> = all.collect();
                first.keys().any(|step| others.iter().all(|steps| steps.is_some_and(|steps| steps.contains_key(step))))
            }
            Mode::Chief | Mode::Shared => all.next().flatten().is_some_and(|steps| !steps.is_empty()),
        }
    }

    /// The newest kept step of the seat's agents.
    pub(super) fn kept_by(&self, seat: Seat) -> Option<u64> {
        self.kept_by.get(&seat).copied()
    }

    /// The kept step stays offered.
    pub(super) fn check_offer(&mut self, agent: usize, steps: &[Step]) {
        let is_own = self.plan.mode == Mode::Each || self.agents[agent].seat == seat_of(0);
        if is_own
            && self.agents[agent].seat.trains()
            && let Some(kept) = self.kept_by(self.agents[agent].seat)
            && !steps.iter().any(|step| step.step == Some(kept))
        {
            self.record_violation(format!("agent {agent} does not offer the kept step {kept}"));
        }
    }

    /// After a death every tree becomes empty: soon if there is no other fault, and after the lease in any case.
    pub(super) fn check_halt(&mut self, generation: Generation, since: Millis, soft: bool) {
        // Without a store another generation may have the number by now.
        if self.started.get(&generation).is_some_and(|(_, start)| *start > since) {
            return;
        }
        // Trainers that hang have time for their stacks, in any case.
        let late = since + 34 * SECOND;
        if !soft && self.now < late && self.hung.contains(&generation) {
            return self.at(late, WorldEvent::CheckHalt { generation, since, soft });
        }
        // After a notice, trainers may run until the deadline.
        if self.saving_until > self.now || soft && self.disturbed_until + 25 * SECOND > since {
            return;
        }
        let runs = |agent: &Agent| {
            agent.frozen.is_none() && agent.run.as_ref().is_some_and(|run| run.generation == generation)
        };
        if self.finished.is_none() && self.agents.iter().any(runs) {
            self.record_violation(format!(
                "a trainer of generation {generation} runs {} ms after a death",
                self.now - since
            ));
        }
    }

    pub(super) fn fail(&self, seed: u64, what: &str) -> ! {
        let states: Vec<String> = self
            .agents
            .iter()
            .enumerate()
            .filter(|(_, agent)| agent.alive)
            .map(|(at, agent)| {
                let leader = agent.leader.as_ref().map_or("", |leader| leader.state());
                format!("{at} {} {} {leader}", agent.seat, agent.member.state())
            })
            .collect();
        let seats: Vec<String> = self.plan.seats.iter().map(ToString::to_string).collect();
        panic!(
            "seed {seed} of {seats:?}, {:?}: {what}\n{}\n--- the last of it\n{}\nstates: {}",
            self.plan.mode,
            self.milestones.join("\n"),
            self.trace.join("\n"),
            states.join("; ")
        );
    }
}

//! The faults, and the platform's reaction.

use super::*;

impl World {
    pub(super) fn kill_agent(&mut self, agent: usize) {
        self.agents[agent].alive = false;
        // The kernel kills the trainer with the agent, and closes the connections.
        self.agents[agent].run = None;
        let links: Vec<u64> =
            self.links.iter().filter(|(_, c)| c.member == agent || c.leader == agent).map(|(l, _)| *l).collect();
        for link in links {
            let (is_member, is_leader) =
                self.links.get(&link).map(|c| (c.member == agent, c.leader == agent)).unwrap_or_default();
            if is_member {
                self.close(link, false);
            }
            if is_leader {
                self.close(link, true);
            }
        }
    }

    /// Whether this is the link of a leader to its own member.
    fn is_inside(&self, link: u64) -> bool {
        self.links.get(&link).is_some_and(|conn| conn.member == conn.leader)
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        self.milestone(|| format!("FAULT {fault:?}"));
        let lasts = match fault {
            Fault::TrainerDies(_) | Fault::TrainerHangs { .. } => None,
            Fault::Freeze { lasts, .. } | Fault::Cut { lasts, .. } | Fault::OtherSettings { lasts, .. } => {
                Some(lasts + SECOND)
            }
            _ => Some(SECOND),
        };
        if let Fault::Notice { lead, .. } = fault {
            self.saving_until = self.saving_until.max(self.now + lead + SECOND);
        }
        if let Some(lasts) = lasts {
            self.disturbed_until = self.disturbed_until.max(self.now + lasts);
        }
        match fault {
            Fault::TrainerDies(seat) => {
                let Some(agent) = self.holder(seat).filter(|agent| self.agents[*agent].frozen.is_none()) else {
                    return;
                };
                if let Some(run) = self.agents[agent].run.take() {
                    self.deaths += 1;
                    let (signal, now) = (Some(9), self.now);
                    let failure =
                        Failure { class: Class::Signal, code: None, signal, step: None, detail: String::new() };
                    self.member(agent, member::Event::Failed(failure));
                    self.emptied(agent, 1);
                    self.at(now + SECOND, WorldEvent::CheckHalt { generation: run.generation, since: now, soft: true });
                    self.at(
                        now + 22 * SECOND,
                        WorldEvent::CheckHalt { generation: run.generation, since: now, soft: false },
                    );
                }
            }
            Fault::TrainerHangs { seat, is_reported } => {
                if let Some(agent) = self.holder(seat).filter(|agent| self.agents[*agent].frozen.is_none()) {
                    self.hang(agent, is_reported);
                }
            }
            Fault::AgentDies { seat, after } => {
                if let Some(agent) = self.holder(seat) {
                    self.kill_agent(agent);
                    if let Some(after) = after {
                        let when = self.now + after;
                        self.at(when, WorldEvent::Replaces { seat });
                    }
                }
            }
            Fault::Vanishes { seat, after } => {
                let Some(agent) = self.holder(seat) else { return };
                (self.agents[agent].alive, self.agents[agent].run) = (false, None);
                let when = self.now + after;
                self.at(when, WorldEvent::Replaces { seat });
                // The other end gives up the connection after the time-out.
                let ends = self.links.iter().filter(|(_, conn)| conn.member == agent || conn.leader == agent);
                let ends: Vec<(u64, bool)> = ends.map(|(link, conn)| (*link, conn.member == agent)).collect();
                let when = self.now + 20 * SECOND;
                for (link, to_leader) in ends {
                    self.at(when, WorldEvent::Closed { link, to_leader, silent: true });
                }
            }
            Fault::Freeze { seat, lasts } => {
                if let Some(agent) = self.holder(seat).filter(|agent| self.agents[*agent].frozen.is_none()) {
                    self.agents[agent].frozen = Some(self.now);
                    let when = self.now + lasts;
                    self.at(when, WorldEvent::Thaws(agent));
                }
            }
            Fault::Reset(seat) => {
                // Both ends must detect the reset: if the agent is frozen, the leader would treat the reset as its death.
                let awake = |agent: &usize| self.agents[*agent].frozen.is_none();
                let link = self.holder(seat).filter(awake).and_then(|agent| self.agents[agent].link);
                if let Some(link) = link.filter(|link| !self.is_inside(*link)) {
                    let when = self.now;
                    self.at(when, WorldEvent::Closed { link, to_leader: true, silent: false });
                    self.at(when, WorldEvent::Closed { link, to_leader: false, silent: false });
                }
            }
            Fault::Cut { seat, to_leader, lasts } => {
                let until = self.now + lasts;
                self.cuts.push((seat, to_leader, until));
                self.at(until, WorldEvent::Heals);
                // If the cut is longer than the gang's time-out, both kernels give up the connection.
                let link = self.holder(seat).and_then(|agent| self.agents[agent].link);
                if lasts > 20 * SECOND
                    && let Some(link) = link.filter(|link| !self.is_inside(*link))
                {
                    let when = self.now + 20 * SECOND;
                    self.at(when, WorldEvent::Closed { link, to_leader: true, silent: true });
                    self.at(when, WorldEvent::Closed { link, to_leader: false, silent: true });
                }
            }
            Fault::SecondGang => {
                for seat in self.plan.seats.clone() {
                    let starts = self.now + self.random.below(10 * SECOND);
                    self.at(starts, WorldEvent::Replaces { seat });
                }
            }
            Fault::StoreAway(lasts) => self.store_goes_away(lasts),
            Fault::EarlyExit(seat) => {
                let Some(agent) = self.holder(seat).filter(|agent| self.agents[*agent].frozen.is_none()) else {
                    return;
                };
                let Some(generation) = self.agents[agent].run.as_ref().map(|run| run.generation) else { return };
                self.deaths += 1;
                self.succeed(agent);
                let when = self.now + self.random.between(10, 2 * SECOND);
                self.at(when, WorldEvent::CollectiveBreaks { generation, except: seat });
            }
            Fault::ClosesConnections(seat) => {
                let Some(agent) = self.holder(seat).filter(|agent| self.agents[*agent].frozen.is_none()) else {
                    return;
                };
                let Some(generation) = self.agents[agent].run.as_ref().map(|run| run.generation) else { return };
                self.deaths += 1;
                self.agents[agent].has_closed = true;
                self.disturbed_until = self.disturbed_until.max(self.now + 8 * SECOND);
                let when = self.now + self.random.between(10, 2 * SECOND);
                self.at(when, WorldEvent::CollectiveBreaks { generation, except: seat });
            }
            Fault::OtherSettings { seat, lasts } => {
                let is_active = self.misconfigured.is_some_and(|(_, until)| self.now < until);
                let Some(agent) = self.holder(seat).filter(|_| seat.is_required() && !is_active) else { return };
                self.misconfigured = Some((seat, self.now + lasts));
                self.kill_agent(agent);
                self.replace(seat);
            }
            Fault::OneSidedClose(seat) => {
                let link = self.holder(seat).and_then(|agent| self.agents[agent].link);
                if let Some(link) = link.filter(|link| !self.is_inside(*link)) {
                    self.at(self.now, WorldEvent::Closed { link, to_leader: true, silent: false });
                    // The next bytes of the member are answered with a reset, or never.
                    let is_silent = self.random.below(2) == 0;
                    let when = self.now + if is_silent { 20 * SECOND } else { self.random.below(2 * SECOND) };
                    self.at(when, WorldEvent::Closed { link, to_leader: false, silent: is_silent });
                    self.disturbed_until = self.disturbed_until.max(self.now + 21 * SECOND);
                }
            }
            Fault::Leaves { seat, code } => {
                let Some(agent) = self.holder(seat).filter(|agent| self.agents[*agent].frozen.is_none()) else {
                    return;
                };
                if self.agents[agent].left.is_none() {
                    self.deaths += 1;
                    (self.agents[agent].run, self.agents[agent].last_commit) = (None, None);
                    self.leave_with(agent, code);
                }
            }
            // The platform starts a replacement before the old agent is dead.
            Fault::SecondAgent(seat) => self.replace(seat),
            Fault::Notice { seat, lead } => {
                if let Some(agent) = self.holder(seat).filter(|agent| self.agents[*agent].frozen.is_none()) {
                    self.member(agent, member::Event::Noticed(Duration::from_millis(lead)));
                    let when = self.now + lead;
                    let after = self.random.between(5 * SECOND, 60 * SECOND);
                    self.at(when, WorldEvent::MachineEnds { agent, after });
                }
            }
        }
    }

    /// The machine of this agent goes away. Another agent may have its seat already.
    pub(super) fn end_machine(&mut self, agent: usize, after: Millis) {
        if !self.agents[agent].alive {
            return;
        }
        self.milestone(|| format!("the machine of agent {agent} goes away"));
        self.disturbed_until = self.disturbed_until.max(self.now + SECOND);
        self.kill_agent(agent);
        let (seat, when) = (self.agents[agent].seat, self.now + after);
        self.at(when, WorldEvent::Replaces { seat });
    }

    /// Whether each required seat would have two agents after a start for this seat.
    pub(super) fn would_be_two_gangs(&self, next: Seat) -> bool {
        let alive = |seat: Seat| self.agents.iter().filter(|agent| agent.alive && agent.seat == seat).count();
        let mut others = self.plan.seats.iter().filter(|seat| seat.is_required() && **seat != next);
        alive(next) > 0 && others.all(|seat| alive(*seat) > 1)
    }

    pub(super) fn thaw(&mut self, agent: usize) {
        let Some(_) = self.agents[agent].frozen.take() else { return };
        if !self.agents[agent].alive {
            return;
        }
        // The lease first, then the waiting events, as in one turn of the event loop.
        self.member(agent, member::Event::Tick);
        let waiting = std::mem::take(&mut self.agents[agent].waiting);
        // A due kill comes first.
        let (kills, waiting): (Vec<WorldEvent>, Vec<WorldEvent>) =
            waiting.into_iter().partition(|what| matches!(what, WorldEvent::TrainerGone { .. }));
        kills.into_iter().for_each(|kill| self.handle(kill));
        let now = self.now;
        // The trainer wakes after the agent has checked the lease; until then it counts as frozen.
        for what in waiting {
            self.at(now, what);
        }
    }

    pub(super) fn faults(&mut self, many: u64, until: Millis) {
        let seats = self.plan.seats.len() as u64;
        for _ in 0..many {
            let seat = self.plan.seats[self.random.below(seats) as usize];
            let when = self.random.between(5 * SECOND, until);
            let lasts = self.random.between(100, 60 * SECOND);
            let fault = match self.random.below(18) {
                0 | 1 => Fault::TrainerDies(seat),
                2 => Fault::AgentDies { seat, after: Some(lasts) },
                3 => Fault::Freeze { seat, lasts },
                4 => Fault::Reset(seat),
                5 => Fault::Cut { seat, to_leader: self.random.below(2) == 0, lasts },
                6 => Fault::SecondAgent(seat),
                7 => Fault::Vanishes { seat, after: lasts * 10 },
                8 => Fault::StoreAway(lasts),
                9 => Fault::TrainerHangs { seat, is_reported: self.random.below(2) == 0 },
                10 if self.plan.has_two_gangs() => Fault::SecondGang,
                11 => Fault::EarlyExit(seat),
                12 => Fault::OneSidedClose(seat),
                14 => Fault::ClosesConnections(seat),
                15 => Fault::OtherSettings { seat, lasts: lasts * 2 / 3 },
                13 => Fault::Leaves { seat, code: [201, 204][self.random.below(2) as usize] },
                _ => Fault::Notice { seat, lead: self.random.between(SECOND, 30 * SECOND) },
            };
            self.at(when, WorldEvent::Fault(fault));
        }
    }
}

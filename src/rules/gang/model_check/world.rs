//! The effects of events on the agents, the links and the store.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::super::leader::{self, Config, Leader};
use super::super::member::{self, Member};
use super::super::message::{Offer, Step, ToMember};
use super::super::{Generation, Incarnation};
use super::{Agent, Faults, Item, Pipe, SEATS, TIMING, World, claim, seat};

impl World {
    pub(super) fn new(faults: Faults) -> World {
        let mut world = World {
            now: Duration::from_secs(1_000),
            agents: Vec::new(),
            pipes: BTreeMap::new(),
            store: BTreeMap::new(),
            started: BTreeSet::new(),
            crashes: faults.crashes,
            losses: faults.losses,
            replacements: faults.replacements,
            violation: None,
        };
        (0..SEATS).for_each(|number| world.starts(number));
        world
    }

    pub(super) fn starts(&mut self, number: usize) {
        let incarnation = Incarnation(self.agents.len() as u128);
        let (member, actions) = Member::new(self.now, seat(number), seat(0), incarnation, "host".to_owned(), TIMING);
        let newest = self.store.last_key_value();
        let config = Config {
            timing: TIMING,
            newest_claim: newest.map(|(generation, leader)| claim(*generation, *leader)),
            ..Config::of((0..SEATS).map(seat), seat(0), incarnation)
        };
        self.agents.push(Agent {
            seat: number,
            member,
            leader: (number == 0).then(|| Leader::new(self.now, config)),
            alive: true,
            link: None,
            dials: None,
            trainer: None,
            wakes: [None; 2],
            claims: None,
        });
        self.do_member(self.agents.len() - 1, actions);
    }

    /// The agent at the leader's address.
    pub(super) fn chief(&self) -> Option<usize> {
        (0..self.agents.len()).rev().find(|at| self.agents[*at].alive && self.agents[*at].leader.is_some())
    }

    pub(super) fn member(&mut self, agent: usize, event: member::Event) {
        let actions = self.agents[agent].member.step(self.now, event);
        self.do_member(agent, actions);
    }

    fn do_member(&mut self, agent: usize, actions: Vec<member::Action>) {
        for action in actions {
            match action {
                member::Action::Wake(at) => self.agents[agent].wakes[0] = Some(at),
                member::Action::Dial => {
                    self.hang_up(agent);
                    let is_first = self.agents[agent].member.newest() == 0 && self.agents[agent].dials.is_none();
                    let pause = if is_first { Duration::ZERO } else { Duration::from_secs(1) };
                    self.agents[agent].dials = Some(self.now + pause);
                }
                member::Action::Hangup => {
                    self.hang_up(agent);
                    self.agents[agent].dials = None;
                }
                member::Action::Send(message) => {
                    if let Some(link) = self.agents[agent].link {
                        self.send(link, 0, Item::Up(message));
                    }
                }
                member::Action::Survey => self.surveyed(agent),
                member::Action::Restore(_) => self.member(agent, member::Event::Restored),
                member::Action::Launch(generation) => {
                    if !self.started.contains(&generation) {
                        self.violation = Some("a trainer starts in a generation that no leader has started");
                    }
                    self.agents[agent].trainer = Some((generation, None));
                }
                member::Action::Stop(grace) | member::Action::AwaitEnd(grace) | member::Action::End(grace) => {
                    match &mut self.agents[agent].trainer {
                        Some((_, end)) => *end = Some(self.now + grace),
                        None => self.surveyed(agent),
                    }
                }
                member::Action::Abort | member::Action::ReportTree => {
                    self.violation = Some("a hang is found although no limit is set");
                }
                member::Action::Kill => {
                    self.agents[agent].trainer = None;
                    self.surveyed(agent);
                }
                member::Action::Leave(_) => {
                    if self.agents[agent].trainer.is_some() {
                        self.violation = Some("an agent leaves with a trainer");
                    }
                }
                // No end is written.
                member::Action::ReadClaim
                | member::Action::Save { .. }
                | member::Action::Keep(_)
                | member::Action::FirstFailure(_)
                | member::Action::Log(_)
                | member::Action::Waiting(_) => {}
            }
        }
    }

    pub(super) fn surveyed(&mut self, agent: usize) {
        let offer = Offer { steps: vec![Step { step: Some(10), hash: 10, is_stored: true }], ..Offer::default() };
        self.member(agent, member::Event::TreeEmpty(offer));
    }

    pub(super) fn leader(&mut self, agent: usize, event: leader::Event) {
        let Some(leader) = &mut self.agents[agent].leader else { return };
        for action in leader.step(self.now, event) {
            match action {
                leader::Action::Send(link, message) => self.send(link, 1, Item::Down(message)),
                leader::Action::Close(link) => self.close(link, 0),
                leader::Action::Claim { generation, .. } => self.agents[agent].claims = Some(generation),
                leader::Action::CheckForNewerClaim(generation) => {
                    // This replaces the request before.
                    self.agents[agent].claims = None;
                    let newest = self.store.last_key_value().map(|(generation, leader)| claim(*generation, *leader));
                    let own = Incarnation(agent as u128);
                    if let Some(claim) = newest.filter(|c| c.generation >= generation && c.leader != own) {
                        self.leader(agent, leader::Event::ClaimedByOther(claim));
                    }
                }
                leader::Action::Started(generation) => {
                    if !self.started.insert(generation) {
                        self.violation = Some("a generation starts twice");
                    }
                    if self.store.get(&generation) != Some(&Incarnation(agent as u128)) {
                        self.violation = Some("a generation starts without a claim");
                    }
                }
                leader::Action::Done
                | leader::Action::MarkCommon(_)
                | leader::Action::LogHang(_)
                | leader::Action::Log(_)
                | leader::Action::Warn(_) => {}
                leader::Action::Wake(at) => self.agents[agent].wakes[1] = Some(at),
            }
        }
    }

    pub(super) fn send(&mut self, link: u64, way: usize, item: Item) {
        let Some(pipe) = self.pipes.get_mut(&link) else { return };
        // The sender's end is closed.
        if !pipe.open[1 - way] {
            return;
        }
        pipe.items[way].push_back(item);
        if pipe.member == pipe.leader {
            self.arrives(link, way);
        }
    }

    /// Closes one end; the other detects it after the earlier messages. `end` 0 is the leader's.
    pub(super) fn close(&mut self, link: u64, end: usize) {
        let Some(pipe) = self.pipes.get_mut(&link) else { return };
        if std::mem::replace(&mut pipe.open[end], false) {
            pipe.items[end].clear();
            pipe.items[1 - end].push_back(Item::Closed);
        }
    }

    pub(super) fn hang_up(&mut self, agent: usize) {
        if let Some(link) = self.agents[agent].link.take() {
            self.close(link, 1);
        }
    }

    pub(super) fn arrives(&mut self, link: u64, way: usize) {
        let Some(pipe) = self.pipes.get_mut(&link) else { return };
        let Some(item) = pipe.items[way].pop_front() else { return };
        let (member, leader) = (pipe.member, pipe.leader);
        if !pipe.open[way] || !self.agents[if way == 0 { leader } else { member }].alive {
            return self.forget(link);
        }
        match item {
            Item::Up(message) => self.leader(leader, leader::Event::Received(link, message)),
            Item::Down(message) => {
                let is_refused = matches!(message, ToMember::Refused { .. });
                self.member(member, member::Event::Received(message));
                if is_refused {
                    self.hang_up(member);
                    self.member(member, member::Event::Unlinked { silent: false });
                }
            }
            Item::Closed => {
                pipe.open[way] = false;
                if way == 0 {
                    self.leader(leader, leader::Event::Closed(link));
                } else if self.agents[member].link == Some(link) {
                    self.agents[member].link = None;
                    self.member(member, member::Event::Unlinked { silent: false });
                }
            }
        }
        self.forget(link);
    }

    /// Removes a link that is closed at both ends and has nothing pending, so that its number can be used again.
    pub(super) fn forget(&mut self, link: u64) {
        if self
            .pipes
            .get(&link)
            .is_some_and(|pipe| pipe.open == [false; 2] && pipe.items.iter().all(VecDeque::is_empty))
        {
            self.pipes.remove(&link);
        }
    }

    pub(super) fn dial(&mut self, agent: usize) {
        self.agents[agent].dials = None;
        let Some(leader) = self.chief() else { return };
        let link = (0..).find(|link| !self.pipes.contains_key(link)).unwrap_or_default();
        self.pipes
            .insert(link, Pipe { member: agent, leader, items: [VecDeque::new(), VecDeque::new()], open: [true; 2] });
        self.agents[agent].link = Some(link);
        self.member(agent, member::Event::Linked);
    }

    pub(super) fn store_answers(&mut self, agent: usize) {
        let Some(generation) = self.agents[agent].claims.take() else { return };
        let own = Incarnation(agent as u128);
        let event = if *self.store.entry(generation).or_insert(own) == own {
            leader::Event::Claimed(generation)
        } else {
            let (generation, leader) = self.store.last_key_value().expect("a claim exists");
            leader::Event::ClaimedByOther(claim(*generation, *leader))
        };
        self.leader(agent, event);
    }

    pub(super) fn crash(&mut self, agent: usize) {
        let gone = &mut self.agents[agent];
        (gone.alive, gone.trainer, gone.link, gone.dials, gone.claims) = (false, None, None, None, None);
        let links: Vec<(u64, usize)> = self
            .pipes
            .iter()
            .flat_map(|(link, pipe)| [(*link, 0, pipe.leader), (*link, 1, pipe.member)])
            .filter(|(_, _, of)| *of == agent)
            .map(|(link, end, _)| (link, end))
            .collect();
        for (link, end) in links {
            self.close(link, end);
            self.forget(link);
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        let has_leader = self.chief().is_some();
        let dials = |agent: &Agent| has_leader && agent.dials.is_some_and(|at| at <= self.now);
        let is_due = |agent: &Agent| dials(agent) || agent.claims.is_some();
        let is_stopped = |agent: &Agent| agent.trainer.is_some_and(|(_, end)| end.is_some_and(|end| end <= self.now));
        self.pipes.values().all(|pipe| pipe.items.iter().all(VecDeque::is_empty))
            && !self.agents.iter().any(|agent| agent.alive && (is_due(agent) || is_stopped(agent)))
    }

    pub(super) fn pass_time(&mut self) {
        let times = |agent: &Agent| {
            let end = agent.trainer.and_then(|(_, end)| end);
            agent.wakes.into_iter().chain([agent.dials, end]).flatten().collect::<Vec<_>>()
        };
        // A dial without a leader is delayed until one starts.
        let next = self.agents.iter().filter(|agent| agent.alive).flat_map(times).filter(|at| *at > self.now).min();
        self.now = next.unwrap_or(self.now).max(self.now + Duration::from_millis(1));
        for agent in 0..self.agents.len() {
            for (which, event) in [(0, None), (1, Some(leader::Event::Tick))] {
                if !self.agents[agent].alive || self.agents[agent].wakes[which].is_none_or(|at| at > self.now) {
                    continue;
                }
                self.agents[agent].wakes[which] = None;
                match event {
                    Some(event) => self.leader(agent, event),
                    None => self.member(agent, member::Event::Tick),
                }
            }
        }
    }

    pub(super) fn trains(&self) -> impl Iterator<Item = (usize, Generation)> + '_ {
        self.agents.iter().filter_map(|agent| agent.trainer.map(|(generation, _)| (agent.seat, generation)))
    }
}

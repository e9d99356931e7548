//! Every order of events of three replicas with one crash, one lost connection and one replacement, by `stateright` over the
//! same types.
//!
//! Time is abstract: it passes only where no message, survey or request to the store is under way, and then to the next
//! time that an agent asked for. So what reaches the leaders and the store at one time does so in every order, and nothing is
//! slow; slow networks, frozen agents and clocks that differ are the simulator's. A trainer that was told to stop ends at any time up to its
//! grace. The link of the leader to its own member is inside the process, and is handled at once. A fault can come between
//! any two events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use stateright::{Checker, Model, Property};

use super::agreement::Mode;
use super::budget::Limits;
use super::claim::Claim;
use super::leader::{self, Config, Leader, OnNotice};
use super::member::{self, Member};
use super::message::{Offer, Step, ToLeader, ToMember};
use super::seat::{Incarnation, Seat};
use super::{Generation, Timing};
use crate::cluster::spec::Role;

const SEATS: usize = 3;
const TIMING: Timing = Timing {
    lease: Duration::from_secs(4),
    beat: Duration::from_secs(2),
    return_grace: Duration::from_millis(500),
    naming: Duration::from_millis(500),
    stop_grace: Duration::from_millis(500),
    wait: Duration::from_secs(60),
    finish_grace: Duration::from_secs(1),
    evaluator_grace: Duration::from_secs(1),
};

fn seat(number: usize) -> Seat {
    if number == 0 { Seat::new(Role::Chief, 0) } else { Seat::new(Role::Worker, number as u32 - 1) }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Agent {
    seat: usize,
    member: Member,
    leader: Option<Leader>,
    alive: bool,
    link: Option<u64>,
    /// When it dials.
    dials: Option<Duration>,
    /// Its trainer's generation, and by when it ends if it was told to stop.
    trainer: Option<(Generation, Option<Duration>)>,
    /// The wake-ups of the member and the leader.
    wakes: [Option<Duration>; 2],
    /// The generation that its leader asks the store for.
    claims: Option<Generation>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Item {
    Up(ToLeader),
    Down(ToMember),
    Closed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Pipe {
    member: usize,
    leader: usize,
    /// To the leader, to the member.
    items: [VecDeque<Item>; 2],
    /// Open at the leader's end, at the member's.
    open: [bool; 2],
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    now: Duration,
    agents: Vec<Agent>,
    pipes: BTreeMap<u64, Pipe>,
    store: BTreeMap<Generation, Incarnation>,
    started: BTreeSet<Generation>,
    crashes: u8,
    losses: u8,
    replacements: u8,
    wrong: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Happens {
    /// The first item of a pipe arrives: to the leader, or to the member.
    Arrives(u64, usize),
    Dials(usize),
    StoreAnswers(usize),
    TrainerGone(usize),
    TimePasses,
    Crashes(usize),
    Resets(u64),
    Replaces(usize),
}

impl World {
    fn new(faults: Faults) -> World {
        let mut world = World {
            now: Duration::from_secs(1_000),
            agents: Vec::new(),
            pipes: BTreeMap::new(),
            store: BTreeMap::new(),
            started: BTreeSet::new(),
            crashes: faults.crashes,
            losses: faults.losses,
            replacements: faults.replacements,
            wrong: None,
        };
        (0..SEATS).for_each(|number| world.starts(number));
        world
    }

    fn starts(&mut self, number: usize) {
        let incarnation = Incarnation(self.agents.len() as u128);
        let (member, actions) = Member::new(self.now, seat(number), seat(0), incarnation, "host".to_owned(), TIMING);
        let newest = self.store.last_key_value();
        let config = Config {
            roster: (0..SEATS).map(seat).collect(),
            own: seat(0),
            incarnation,
            timing: TIMING,
            mode: Mode::Each,
            from_scratch: false,
            on_notice: OnNotice::Hold,
            limits: Limits::default(),
            hang: None,
            newest_claim: newest.map(|(generation, leader)| claim(*generation, *leader)),
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

    /// The agent that the leader's name leads to.
    fn chief(&self) -> Option<usize> {
        (0..self.agents.len()).rev().find(|at| self.agents[*at].alive && self.agents[*at].leader.is_some())
    }

    fn member(&mut self, agent: usize, event: member::Event) {
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
                        self.wrong = Some("a trainer starts in a generation that no leader has started");
                    }
                    self.agents[agent].trainer = Some((generation, None));
                }
                member::Action::Stop(grace) | member::Action::End(grace) => match &mut self.agents[agent].trainer {
                    Some((_, end)) => *end = Some(self.now + grace),
                    None => self.surveyed(agent),
                },
                member::Action::Kill => {
                    self.agents[agent].trainer = None;
                    self.surveyed(agent);
                }
                member::Action::Leave(_) => {
                    if self.agents[agent].trainer.is_some() {
                        self.wrong = Some("an agent leaves with a trainer");
                    }
                }
                member::Action::Save { .. }
                | member::Action::Keep(_)
                | member::Action::Name(_)
                | member::Action::Waiting(_) => {}
            }
        }
    }

    fn surveyed(&mut self, agent: usize) {
        let offer = Offer { steps: vec![Step { step: 10, hash: 10 }], ..Offer::default() };
        self.member(agent, member::Event::TreeEmpty(offer));
    }

    fn leader(&mut self, agent: usize, event: leader::Event) {
        let Some(leader) = &mut self.agents[agent].leader else { return };
        for action in leader.step(self.now, event) {
            match action {
                leader::Action::Send(link, message) => self.send(link, 1, Item::Down(message)),
                leader::Action::Close(link) => self.close(link, 0),
                leader::Action::Claim(generation) => self.agents[agent].claims = Some(generation),
                leader::Action::LookForClaim(generation) => {
                    let newest = self.store.last_key_value().map(|(generation, leader)| claim(*generation, *leader));
                    let own = Incarnation(agent as u128);
                    if let Some(claim) = newest.filter(|c| c.generation >= generation && c.leader != own) {
                        self.leader(agent, leader::Event::Found(claim));
                    }
                }
                leader::Action::Started(generation) => {
                    if !self.started.insert(generation) {
                        self.wrong = Some("a generation starts twice");
                    }
                    if self.store.get(&generation) != Some(&Incarnation(agent as u128)) {
                        self.wrong = Some("a generation starts without a claim");
                    }
                }
                leader::Action::Done => {}
                leader::Action::Wake(at) => self.agents[agent].wakes[1] = Some(at),
            }
        }
    }

    fn send(&mut self, link: u64, way: usize, item: Item) {
        let Some(pipe) = self.pipes.get_mut(&link) else { return };
        // The sender's end.
        if !pipe.open[1 - way] {
            return;
        }
        pipe.items[way].push_back(item);
        if pipe.member == pipe.leader {
            self.arrives(link, way);
        }
    }

    /// One end closes; the other hears of it after what was sent before. `end` 0 is the leader's.
    fn close(&mut self, link: u64, end: usize) {
        let Some(pipe) = self.pipes.get_mut(&link) else { return };
        if std::mem::replace(&mut pipe.open[end], false) {
            pipe.items[end].clear();
            pipe.items[1 - end].push_back(Item::Closed);
        }
    }

    fn hang_up(&mut self, agent: usize) {
        if let Some(link) = self.agents[agent].link.take() {
            self.close(link, 1);
        }
    }

    fn arrives(&mut self, link: u64, way: usize) {
        let Some(pipe) = self.pipes.get_mut(&link) else { return };
        let Some(item) = pipe.items[way].pop_front() else { return };
        let (member, leader) = (pipe.member, pipe.leader);
        if !pipe.open[way] || !self.agents[if way == 0 { leader } else { member }].alive {
            return self.forget(link);
        }
        match item {
            Item::Up(message) => self.leader(leader, leader::Event::Heard(link, message)),
            Item::Down(message) => {
                let is_refused = matches!(message, ToMember::Refused { .. });
                self.member(member, member::Event::Heard(message));
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

    /// A link that is closed at both ends and has nothing under way is forgotten, so that its number is used again.
    fn forget(&mut self, link: u64) {
        if self
            .pipes
            .get(&link)
            .is_some_and(|pipe| pipe.open == [false; 2] && pipe.items.iter().all(VecDeque::is_empty))
        {
            self.pipes.remove(&link);
        }
    }

    fn dial(&mut self, agent: usize) {
        self.agents[agent].dials = None;
        let Some(leader) = self.chief() else { return };
        let link = (0..).find(|link| !self.pipes.contains_key(link)).unwrap_or_default();
        self.pipes
            .insert(link, Pipe { member: agent, leader, items: [VecDeque::new(), VecDeque::new()], open: [true; 2] });
        self.agents[agent].link = Some(link);
        self.member(agent, member::Event::Linked);
    }

    fn store_answers(&mut self, agent: usize) {
        let Some(generation) = self.agents[agent].claims.take() else { return };
        let own = Incarnation(agent as u128);
        let event = if *self.store.entry(generation).or_insert(own) == own {
            leader::Event::Claimed(generation)
        } else {
            let (generation, leader) = self.store.last_key_value().expect("one is there");
            leader::Event::Found(claim(*generation, *leader))
        };
        self.leader(agent, event);
    }

    fn crash(&mut self, agent: usize) {
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

    fn is_quiet(&self) -> bool {
        let has_leader = self.chief().is_some();
        let dials = |agent: &Agent| has_leader && agent.dials.is_some_and(|at| at <= self.now);
        let is_due = |agent: &Agent| dials(agent) || agent.claims.is_some();
        let is_stopped = |agent: &Agent| agent.trainer.is_some_and(|(_, end)| end.is_some_and(|end| end <= self.now));
        self.pipes.values().all(|pipe| pipe.items.iter().all(VecDeque::is_empty))
            && !self.agents.iter().any(|agent| agent.alive && (is_due(agent) || is_stopped(agent)))
    }

    fn pass_time(&mut self) {
        let times = |agent: &Agent| {
            let end = agent.trainer.and_then(|(_, end)| end);
            agent.wakes.into_iter().chain([agent.dials, end]).flatten().collect::<Vec<_>>()
        };
        // A member that dials without a leader waits for one to start.
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

    fn trains(&self) -> impl Iterator<Item = (usize, Generation)> + '_ {
        self.agents.iter().filter_map(|agent| agent.trainer.map(|(generation, _)| (agent.seat, generation)))
    }
}

fn claim(generation: Generation, leader: Incarnation) -> Claim {
    Claim { generation, leader, host: "host".to_owned() }
}

#[derive(Debug, Clone, Copy)]
struct Faults {
    crashes: u8,
    losses: u8,
    replacements: u8,
    /// Time ends here.
    seconds: u64,
}

impl Model for Faults {
    type State = World;
    type Action = Happens;

    fn init_states(&self) -> Vec<World> {
        // The first start without faults, in one order: the faults come once all train.
        let faultless = Faults { crashes: 0, losses: 0, replacements: 0, ..*self };
        let mut world = World::new(*self);
        while world.trains().count() < SEATS {
            let mut actions = Vec::new();
            faultless.actions(&World { crashes: 0, losses: 0, replacements: 0, ..world.clone() }, &mut actions);
            world = faultless.next_state(&world, actions[0]).expect("every event changes something");
        }
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Happens>) {
        if world.losses > 0 {
            let between = world.pipes.iter().filter(|(_, pipe)| pipe.open == [true; 2] && pipe.member != pipe.leader);
            actions.extend(between.map(|(link, _)| Happens::Resets(*link)));
        }
        let alive = || world.agents.iter().enumerate().filter(|(_, agent)| agent.alive);
        if world.crashes > 0 {
            // The two workers are alike.
            let is_other = |agent: &Agent| agent.seat < 2;
            actions.extend(alive().filter(|(_, agent)| is_other(agent)).map(|(at, _)| Happens::Crashes(at)));
        }
        // What reaches one member alone is independent of what reaches another: one order is enough.
        let mut down = world.pipes.iter().filter(|(_, pipe)| !pipe.items[1].is_empty());
        if let Some((link, _)) = down.next() {
            return actions.push(Happens::Arrives(*link, 1));
        }
        let has_leader = world.chief().is_some();
        let mut dials = alive().filter(|(_, agent)| has_leader && agent.dials.is_some_and(|at| at <= world.now));
        if let Some((at, _)) = dials.next() {
            return actions.push(Happens::Dials(at));
        }
        if world.replacements > 0 {
            actions.extend((0..SEATS).map(Happens::Replaces));
        }
        let up = world.pipes.iter().filter(|(_, pipe)| !pipe.items[0].is_empty());
        actions.extend(up.map(|(link, _)| Happens::Arrives(*link, 0)));
        actions.extend(alive().filter(|(_, agent)| agent.claims.is_some()).map(|(at, _)| Happens::StoreAnswers(at)));
        let stops = alive().filter(|(_, agent)| agent.trainer.is_some_and(|(_, end)| end.is_some()));
        actions.extend(stops.map(|(at, _)| Happens::TrainerGone(at)));
        if world.is_quiet() {
            actions.push(Happens::TimePasses);
        }
    }

    fn next_state(&self, before: &World, action: Happens) -> Option<World> {
        let mut world = before.clone();
        match action {
            Happens::Arrives(link, way) => world.arrives(link, way),
            Happens::Dials(agent) => world.dial(agent),
            Happens::StoreAnswers(agent) => world.store_answers(agent),
            Happens::TrainerGone(agent) => {
                world.agents[agent].trainer = None;
                world.surveyed(agent);
            }
            Happens::TimePasses => world.pass_time(),
            Happens::Crashes(agent) => {
                world.crashes -= 1;
                world.crash(agent);
            }
            Happens::Resets(link) => {
                world.losses -= 1;
                let pipe = world.pipes.get_mut(&link)?;
                pipe.items = [VecDeque::from([Item::Closed]), VecDeque::from([Item::Closed])];
            }
            Happens::Replaces(number) => {
                world.replacements -= 1;
                world.starts(number);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Faults>> {
        vec![
            Property::always("no two generations train at once", |_, world: &World| {
                world.trains().map(|(_, generation)| generation).collect::<BTreeSet<_>>().len() <= 1
            }),
            Property::always("two agents for one seat never both train", |_, world: &World| {
                world.trains().map(|(seat, _)| seat).collect::<BTreeSet<_>>().len() == world.trains().count()
            }),
            Property::always("a generation starts once, under its claim", |_, world: &World| world.wrong.is_none()),
            Property::sometimes("all train again after the faults", |_, world: &World| {
                (world.crashes, world.losses, world.replacements) == (0, 0, 0)
                    && world.started.len() > 1
                    && world.trains().count() == SEATS
            }),
        ]
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.now <= Duration::from_secs(1_000 + self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many states: more are tried with `GANG_STATES=20000000 cargo test --release -p trainit-rules gang::model_check`.
    #[allow(clippy::disallowed_methods, reason = "a test's own switch")]
    fn states(usual: usize) -> usize {
        std::env::var("GANG_STATES").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
    }

    fn check(faults: Faults) {
        let checker = faults.checker().target_state_count(states(60_000)).threads(2).spawn_bfs().join();
        println!(
            "{faults:?}: {} states, {} of them different, depth {}, all: {}",
            checker.state_count(),
            checker.unique_state_count(),
            checker.max_depth(),
            checker.state_count() < states(60_000)
        );
        for property in [
            "no two generations train at once",
            "two agents for one seat never both train",
            "a generation starts once, under its claim",
        ] {
            if let Some(path) = checker.discovery(property) {
                let steps: Vec<String> = path.into_actions().into_iter().map(|action| format!("{action:?}")).collect();
                panic!("{property} does not hold after {}", steps.join(", "));
            }
        }
    }

    #[test]
    fn one_crash_and_one_replacement_in_every_order() {
        check(Faults { crashes: 1, losses: 0, replacements: 1, seconds: 7 });
    }

    #[test]
    fn one_lost_connection_and_one_second_agent_in_every_order() {
        check(Faults { crashes: 0, losses: 1, replacements: 1, seconds: 7 });
    }

    #[test]
    fn one_crash_one_lost_connection_and_one_replacement_in_every_order() {
        check(Faults { crashes: 1, losses: 1, replacements: 1, seconds: 7 });
    }
}

//! A model check by `stateright` of the same types: every order of events of three replicas with one crash, one lost connection
//! and one replacement.
//!
//! Time is abstract. It advances only when no message, survey or request to the store is pending, and then to the next
//! wake-up. So concurrent events at the leaders and the store are checked in every order, and nothing is slow; the simulation
//! covers slow networks, frozen agents and clocks that differ. A trainer that is stopping ends at any time up to its grace. The
//! link of the leader to its own member is inside the process and is handled at once. A fault can occur between any two
//! events.

mod world;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use stateright::{Checker, Model, Property};

use super::claim::{Claim, JobState};
use super::leader::Leader;
use super::member::Member;
use super::message::{ToLeader, ToMember};
use super::{Generation, Incarnation, Timing};
use crate::cluster::seat::Seat;
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
    /// The time of its next dial.
    dials: Option<Duration>,
    /// Its trainer's generation, and its deadline if it is stopping.
    trainer: Option<(Generation, Option<Duration>)>,
    /// The wake-ups of the member and the leader.
    wakes: [Option<Duration>; 2],
    /// The generation that its leader is claiming.
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
    violation: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Transition {
    /// The first item of a pipe arrives at the leader (0) or at the member (1).
    Arrives(u64, usize),
    Dials(usize),
    StoreAnswers(usize),
    TrainerGone(usize),
    TimePasses,
    Crashes(usize),
    Resets(u64),
    Replaces(usize),
}

fn claim(generation: Generation, leader: Incarnation) -> Claim {
    Claim { generation, leader, host: "host".to_owned(), job_id: String::new(), job: JobState::default() }
}

#[derive(Debug, Clone, Copy)]
struct Faults {
    crashes: u8,
    losses: u8,
    replacements: u8,
    /// The time after which the check ends.
    seconds: u64,
}

impl Model for Faults {
    type State = World;
    type Action = Transition;

    fn init_states(&self) -> Vec<World> {
        // The first start is without faults and in one order: the faults occur after all train.
        let faultless = Faults { crashes: 0, losses: 0, replacements: 0, ..*self };
        let mut world = World::new(*self);
        while world.trains().count() < SEATS {
            let mut actions = Vec::new();
            faultless.actions(&World { crashes: 0, losses: 0, replacements: 0, ..world.clone() }, &mut actions);
            world = faultless.next_state(&world, actions[0]).expect("every event changes something");
        }
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Transition>) {
        if world.losses > 0 {
            let between = world.pipes.iter().filter(|(_, pipe)| pipe.open == [true; 2] && pipe.member != pipe.leader);
            actions.extend(between.map(|(link, _)| Transition::Resets(*link)));
        }
        let alive = || world.agents.iter().enumerate().filter(|(_, agent)| agent.alive);
        if world.crashes > 0 {
            // The two workers are equivalent.
            let is_other = |agent: &Agent| agent.seat < 2;
            actions.extend(alive().filter(|(_, agent)| is_other(agent)).map(|(at, _)| Transition::Crashes(at)));
        }
        // Messages to different members are independent, so one order is enough.
        let mut down = world.pipes.iter().filter(|(_, pipe)| !pipe.items[1].is_empty());
        if let Some((link, _)) = down.next() {
            return actions.push(Transition::Arrives(*link, 1));
        }
        let has_leader = world.chief().is_some();
        let mut dials = alive().filter(|(_, agent)| has_leader && agent.dials.is_some_and(|at| at <= world.now));
        if let Some((at, _)) = dials.next() {
            return actions.push(Transition::Dials(at));
        }
        if world.replacements > 0 {
            actions.extend((0..SEATS).map(Transition::Replaces));
        }
        let up = world.pipes.iter().filter(|(_, pipe)| !pipe.items[0].is_empty());
        actions.extend(up.map(|(link, _)| Transition::Arrives(*link, 0)));
        actions.extend(alive().filter(|(_, agent)| agent.claims.is_some()).map(|(at, _)| Transition::StoreAnswers(at)));
        let stops = alive().filter(|(_, agent)| agent.trainer.is_some_and(|(_, end)| end.is_some()));
        actions.extend(stops.map(|(at, _)| Transition::TrainerGone(at)));
        if world.is_quiet() {
            actions.push(Transition::TimePasses);
        }
    }

    fn next_state(&self, before: &World, action: Transition) -> Option<World> {
        let mut world = before.clone();
        match action {
            Transition::Arrives(link, way) => world.arrives(link, way),
            Transition::Dials(agent) => world.dial(agent),
            Transition::StoreAnswers(agent) => world.store_answers(agent),
            Transition::TrainerGone(agent) => {
                world.agents[agent].trainer = None;
                world.surveyed(agent);
            }
            Transition::TimePasses => world.pass_time(),
            Transition::Crashes(agent) => {
                world.crashes -= 1;
                world.crash(agent);
            }
            Transition::Resets(link) => {
                world.losses -= 1;
                let pipe = world.pipes.get_mut(&link)?;
                pipe.items = [VecDeque::from([Item::Closed]), VecDeque::from([Item::Closed])];
            }
            Transition::Replaces(number) => {
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
            Property::always("a generation starts once, under its claim", |_, world: &World| world.violation.is_none()),
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

    /// The number of states. For more: `GANG_STATES=20000000 cargo test --release -p trainit-rules gang::model_check`.
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

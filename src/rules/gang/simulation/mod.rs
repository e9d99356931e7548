//! A complete gang in one thread: a seed determines the faults and their times, and every promise is checked after every event.
//!
//! The world has one true time. Each agent has its own clock, whose rate differs by up to half a per cent. Links keep the order
//! of messages; a cut delays one direction until it heals or both ends give up the silent link. A freeze stops an agent and its
//! trainer. A failing seed is printed, and can be repeated with `GANG_SEED=339`.
//!
//! | promise | checked in |
//! |---|---|
//! | no two generations train at once; no seat twice | `check_runs`, at each launch and each step of a trainer |
//! | a generation starts once, under its leader's claim | `starts` |
//! | a generation starts from one step, and from commits of one earlier generation | `launch` |
//! | the agreed step was offered by the member that restores it | `restore` |
//! | no start from the beginning while a step is common | `restore` |
//! | every tree is empty 1 s after a death, or after the lease, or some time after a hang | `check_halt` |
//! | once the end is in the store, every agent leaves with 0; no gang gives up then | `tests::violation`, `member_actions` |
//! | nothing is halted for a seat outside the barrier | `World::leader` |
//! | a seat is filled only after the trainer of its former agent | `check_seat` |
//! | after the last fault the job finishes | `tests::violation` |
//! | one cause is charged once | `World::leader` |
//! | nothing starts after the end; the leader is done last | `check_after_end`, `World::leader` |
//! | the kept step never decreases and stays offered | `member_actions`, `check_offer` |
//! | each 203 and 204 names a seat | `member_actions` |
//! | no agent trains whose settings contradict the leader's | `launch` |
//!
//! A freeze of an agent whose trainer goes on is not simulated, because nothing stops that trainer.
//!
//! Of two complete gangs with a store, one yields. They train at the same time only if the store answers late
//! (`two_gangs_may_train`). Without a store, two complete gangs are not simulated, because only the lease separates them
//! (`Plan::has_two_gangs`). A leader that has claimed a generation before the end is in the store starts and ends it. Without a
//! store, another leader does not detect the end.

mod clock;
mod faults;
mod invariants;
mod links;
mod plan;
mod scale;
mod store;
#[cfg(test)]
mod tests;
mod trainers;
mod world;
mod world_event;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use super::agreement::{Mode, offered};
use super::beat::Departure;
use super::budget::Limits;
use super::claim::{Claim, JobState};
use super::hang::TreeState;
use super::leader::{self, Config, Leader, OnNotice};
use super::member::{self, Leave, Member};
use super::message::{Choice, Class, Failure, Offer, Step, ToLeader, ToMember};
use super::settings::Settings;
use super::{Generation, Incarnation, Timing};
use crate::cluster::seat::Seat;
use crate::cluster::spec::Role;
use crate::gang::random::Random;
use plan::Plan;
use world_event::{Fault, Input, Message, WorldEvent};

const SECOND: u64 = 1_000;
/// From this number of agents on, the runs are checked once per step, not at each trainer's step.
const MANY: usize = 100;
/// The gang hangs if no step advances for this long.
const HANG: Duration = Duration::from_secs(40);
type Millis = u64;

struct Run {
    id: u64,
    generation: Generation,
    step: u64,
    stopping: bool,
    /// The trainer ignores SIGTERM and SIGABRT.
    ignores_signals: bool,
    hangs: bool,
}

struct Agent {
    seat: Seat,
    /// The time of its start.
    started: Millis,
    incarnation: Incarnation,
    /// The number of its leader's last request to the store.
    claim: u64,
    member: Member,
    leader: Option<Leader>,
    alive: bool,
    frozen: Option<Millis>,
    waiting: Vec<WorldEvent>,
    offset: u64,
    survey: u64,
    /// The agent leaves after a notice when its tree is empty.
    leaves_after_stop: bool,
    /// The leader refused its last connection, so it dials more slowly.
    refused: bool,
    /// The excess rate of its clock, in parts per 100,000.
    clock_excess: i64,
    link: Option<u64>,
    dials: bool,
    run: Option<Run>,
    /// The trainer of this run has ended with 0, and its last files are being committed.
    last_commit: Option<u64>,
    /// Its trainer has closed its connections to the others.
    has_closed: bool,
    /// It counts other replicas than the others.
    is_misconfigured: bool,
    restored: Option<Choice>,
    left: Option<(Millis, Leave)>,
    offered: Vec<Step>,
    /// The next ticks of the member and the leader.
    ticks: [Option<Millis>; 2],
}

struct Conn {
    member: usize,
    leader: usize,
    /// Open at the member's end, at the leader's end.
    open: [bool; 2],
    last: [Millis; 2],
}

struct World {
    now: Millis,
    heap: BinaryHeap<Reverse<(Millis, u64)>>,
    events: BTreeMap<u64, WorldEvent>,
    count: u64,
    random: Random,
    agents: Vec<Agent>,
    links: BTreeMap<u64, Conn>,
    cuts: Vec<(Seat, bool, Millis)>,
    plan: Plan,
    /// The step and the time of each start.
    started: BTreeMap<Generation, (Option<u64>, Millis)>,
    deaths: u32,
    charges: u32,
    runs: u64,
    /// The end of the last fault other than a trainer's death.
    disturbed_until: Millis,
    /// The last deadline of a notice.
    saving_until: Millis,
    /// Until this time, the platform starts agents for this seat with other settings.
    misconfigured: Option<(Seat, Millis)>,
    store: store::Store,
    /// Every required seat has had two agents at once.
    two_gangs: bool,
    /// The agent whose leader has ended the job.
    finished: Option<usize>,
    /// The time since which the end of the job is in the store.
    end_written: Option<Millis>,
    gave_up: bool,
    violation: Option<String>,
    /// The commits of each seat that are not poisoned: the step and its generation.
    commits: BTreeMap<Seat, BTreeMap<u64, Generation>>,
    /// Seats that train.
    trainers: usize,
    /// The number of trainers of each generation that have done each step.
    done: BTreeMap<Generation, BTreeMap<u64, usize>>,
    /// The generation whose commits each generation has restored.
    timelines: BTreeMap<Generation, Generation>,
    kept: BTreeMap<usize, u64>,
    /// The newest kept step of the agents of each seat.
    kept_by: BTreeMap<Seat, u64>,
    /// Generations with a trainer that hangs.
    hung: BTreeSet<Generation>,
    /// Agents with a leader.
    leaders: Vec<usize>,
    /// Whether a trace is written, for a seed that has failed.
    traced: bool,
    trace: Vec<String>,
    milestones: Vec<String>,
}

fn seat_of(number: usize) -> Seat {
    if number == 0 { Seat::new(Role::Chief, 0) } else { Seat::new(Role::Worker, number as u32 - 1) }
}

/// Distinguishes commits of one step in different generations.
fn hash_of(step: u64, generation: Generation) -> u64 {
    generation << 32 | step
}

//! A whole gang in one thread: seeds decide what fails and when, and every promise is judged after every event.
//!
//! The world has one true time. Each agent has a clock of its own, whose rate differs by up to half a per cent. Links keep
//! the order of messages; a cut holds one direction back until it heals or both ends find the link silent. A freeze stops an
//! agent with its trainer. A failing seed is printed and replays with `GANG_SEED=339`.
//!
//! | promise | checked in |
//! |---|---|
//! | no two generations train at once; no seat twice | `judge_runs`, at each launch and each step of a trainer |
//! | a generation starts once, under its leader's claim | `starts` |
//! | a generation starts from one step, and from commits of one earlier generation | `launch` |
//! | the agreed step was offered by the member that restores it | `restore` |
//! | no start from the beginning while a step is common | `restore` |
//! | every tree is empty 1 s after a death, or after the lease, or some time after a hang | `judge_halt` |
//! | once faults stop the job finishes | `tests::trouble` |
//! | one cause is charged once | `World::leader` |
//! | nothing starts after the end; the leader is done last | `judge_after_end`, `World::leader` |
//! | the kept step never decreases and stays offered | `member_actions`, `judge_offer` |
//! | each 203 and 204 names a seat | `member_actions` |
//!
//! Of two complete gangs with a store one yields, and they train at once only while the store answers late
//! (`two_gangs_may_train`). Without a store two complete gangs are not tried: only the lease is left (`Plan::has_two_gangs`). A
//! leader that has claimed a generation before the end is in the store starts it, and ends it; without a store no other leader
//! knows of the end.

mod clock;
mod faults;
mod happening;
mod invariants;
mod links;
mod plan;
mod scale;
mod store;
#[cfg(test)]
mod tests;
mod trainers;
mod world;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use super::agreement::{Mode, offered};
use super::budget::Limits;
use super::claim::{Claim, JobState};
use super::hang::TreeState;
use super::leader::{self, Config, Leader, OnNotice};
use super::member::{self, Leave, Member};
use super::message::{Choice, Class, Failure, Offer, Step, ToLeader, ToMember};
use super::seat::{Incarnation, Seat};
use super::{Generation, Timing};
use crate::cluster::spec::Role;
use crate::random::Random;
use happening::{Fault, Happening, Input, Message};
use plan::Plan;

const SECOND: u64 = 1_000;
/// From so many agents on the trainers are judged once a step, not at each trainer's.
const MANY: usize = 100;
/// No step moves for so long: the gang hangs.
const HANG: Duration = Duration::from_secs(40);
/// Microseconds would be finer than anything here needs: the world counts milliseconds.
type Millis = u64;

struct Run {
    id: u64,
    generation: Generation,
    step: u64,
    stopping: bool,
    /// It ignores SIGTERM and SIGABRT.
    stubborn: bool,
    hangs: bool,
}

struct Agent {
    seat: Seat,
    incarnation: Incarnation,
    /// The number of its leader's last request to claim.
    claim: u64,
    member: Member,
    leader: Option<Leader>,
    alive: bool,
    frozen: Option<Millis>,
    waiting: Vec<Happening>,
    offset: u64,
    survey: u64,
    /// It leaves when its tree is empty, after a notice.
    parts: bool,
    /// Its last connection was refused a seat: it dials more slowly.
    refused: bool,
    /// Parts per 100,000 that its clock is fast.
    fast: i64,
    link: Option<u64>,
    dials: bool,
    run: Option<Run>,
    restored: Option<Choice>,
    left: Option<(Millis, Leave)>,
    offered: Vec<Step>,
    /// When the member and the leader are ticked next.
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
    happenings: BTreeMap<u64, Happening>,
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
    /// When a fault other than a trainer's death last held.
    disturbed: Millis,
    /// The last deadline of a notice.
    saving: Millis,
    store: store::Store,
    /// Every required seat has had two agents at once.
    two_gangs: bool,
    /// The agent whose leader has ended the job.
    finished: Option<usize>,
    gave_up: bool,
    trouble: Option<String>,
    /// The store: the steps that each seat has committed and not passed over, and the generation that each is of.
    commits: BTreeMap<Seat, BTreeMap<u64, Generation>>,
    /// Seats that train.
    trainers: usize,
    /// How many trainers of each generation have done each step.
    done: BTreeMap<Generation, BTreeMap<u64, usize>>,
    /// The generation whose commits each generation has restored.
    timelines: BTreeMap<Generation, Generation>,
    kept: BTreeMap<usize, u64>,
    /// The newest step that an agent of the seat was told to keep.
    kept_by: BTreeMap<Seat, u64>,
    /// Generations with a trainer that hangs.
    hung: BTreeSet<Generation>,
    /// Agents with a leader.
    leaders: Vec<usize>,
    /// Whether what happens is written down: for a seed that has failed.
    traced: bool,
    trace: Vec<String>,
    milestones: Vec<String>,
}

fn seat_of(number: usize) -> Seat {
    if number == 0 { Seat::new(Role::Chief, 0) } else { Seat::new(Role::Worker, number as u32 - 1) }
}

/// Tells the commits of one step apart: each is of another generation.
fn hash_of(step: u64, generation: Generation) -> u64 {
    generation << 32 | step
}

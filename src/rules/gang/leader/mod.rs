//! The leader: collects offers, agrees, starts, halts, and ends with the chief.
//!
//! The caller passes the messages of each link in order, and performs the actions. The leader's own replica is a member on a
//! link inside the process. Every link is proven before its first message (`handshake`).
//!
//! No message has a generation whose number is not claimed (`claim`). The order is offers, claim, agreement, arming, go.

mod agreement;
mod claims;
mod events;
mod hang;
mod job_end;
mod kept;
mod messages;
mod phases;
mod refusals;
mod saves;
mod seats;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::beat::Departure;
use super::claim::Claim;
use super::first_failure::FailureReport;
use super::hang::TreeState;
use super::message::{Choice, Offer, Record, ToLeader, ToMember};
use super::{Generation, Incarnation, Timing};
use crate::cluster::seat::Seat;
use claims::Claims;
use hang::Inquiry;
use refusals::Refusal;
use saves::Speed;
use seats::{Fence, SearchStart};

pub use events::{Action, Config, Event, Link, OnNotice};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    Joined,
    Offered(Offer),
    Restoring,
    Armed,
    Training,
    /// The halt was sent, and no offer has arrived since.
    Stopping,
    Finished,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Holder {
    incarnation: Incarnation,
    host: String,
    boot: String,
    /// The generation of the last agreement that was sent to it.
    agreed: Generation,
    /// The time of its last offer.
    offered: Duration,
    link: Option<Link>,
    last_received: Duration,
    /// The time at which its link was closed.
    closed: Option<Duration>,
    state: State,
    step: Option<u64>,
    progressed: Duration,
    /// Steps that it has committed.
    committed: BTreeSet<u64>,
    /// Its earlier leader, and the newest generation that it had seen when it joined.
    former_leader: Option<(Incarnation, Generation)>,
    /// The time at which its machine goes away.
    notice: Option<Duration>,
    restoring: Option<(u64, u64)>,
    /// The time at which its trainer ended with 0 in this generation.
    succeeded: Option<Duration>,
    /// Its trainer does not run any more, and its last files are being committed.
    commits: bool,
    /// Its trainer, which had closed its connections before the halt, is about to end by itself.
    ends: bool,
    /// Why it is about to leave.
    leaves: Option<Departure>,
    /// The activity of its trainer, as reported in this generation.
    tree: Option<TreeState>,
}

impl Holder {
    /// Whether the member takes part in a generation that has not ended for it.
    fn is_active(&self) -> bool {
        matches!(self.state, State::Restoring | State::Armed | State::Training)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    /// Waits until every required seat has offered.
    Collecting,
    /// A step is agreed on; waits until every required seat is armed.
    Arming,
    Training,
    /// The chief's trainer has ended with 0. Nothing is halted any more, unless its last commit fails.
    Concluding,
    /// The chief has finished.
    Ending,
    GivenUp,
    /// A replica has a notice, and the platform restarts all: every member saves and exits.
    Parting,
    /// Another leader has a newer claim.
    Yielded,
    Done,
}

/// The state machine of the leader.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    config: Config,
    phase: Phase,
    since: Duration,
    /// The newest generation of which this leader has information, from itself, a member or the store.
    generation: Generation,
    claims: Claims,
    holders: BTreeMap<Seat, Holder>,
    /// Earlier holders of seats that may still train.
    fences: BTreeMap<Seat, Fence>,
    record: Record,
    /// An earlier leader has already started from the beginning as `from_scratch` requires.
    has_started_over: bool,
    /// The checkpoint of the next or running generation.
    choice: Option<Choice>,
    /// The agents whose trainers started last.
    last_started: BTreeSet<Incarnation>,
    /// The number of failed restores since the last start.
    failed_restores: u32,
    /// The seat of each link.
    links: BTreeMap<Link, Seat>,
    /// The earliest time at which a holder may be lost.
    next_loss: Duration,
    /// Seats whose agents saw the earlier leader close the connection: that leader is dead.
    saw_former_close: BTreeSet<Seat>,
    /// The time until which trainers of an earlier leader may run.
    former_lease_end: Option<Duration>,
    /// An earlier leader had a generation: agents that were not in it may have surveyed before it ended.
    has_former_generation: bool,
    /// Seats whose agents have sent `Leaving`.
    left: BTreeSet<Seat>,
    /// Why the last agent of a seat left.
    departed: BTreeMap<Seat, String>,
    /// Whether the loss of an earlier leader was charged.
    has_charged_former: bool,
    /// The end of a job that was the newest claim when this leader started. It belongs to an earlier run, or this leader
    /// replaces one of the run that has ended.
    found_end: Option<Generation>,
    /// Whether another agent has joined.
    has_met_other: bool,
    /// The last refusal of an agent that asked for this seat.
    refusals: BTreeMap<Seat, Refusal>,
    failures: Vec<FailureReport>,
    /// The failure that was named after the last halt.
    named: Option<FailureReport>,
    /// The gang may hang: the activity of the members is requested.
    inquiry: Option<Inquiry>,
    /// The time at which the first failure of the last halt is named.
    name_at: Option<Duration>,
    /// No generation starts before this time, because a trainer of an earlier leader may run.
    not_before: Duration,
    /// The speed of this generation.
    speed: Speed,
    /// The step of this generation at which all save next.
    save_step: Option<u64>,
    /// The duration of the last generation.
    lasted: Duration,
    /// The pause before the next generation, after the last tree is empty.
    pause: Duration,
    /// The time at which the last required seat offered.
    empty_since: Option<Duration>,
    last_waiting_report: Duration,
    recent_missing: Option<(Duration, Vec<Seat>)>,
    /// The time that members have to leave after a notice.
    parting: Duration,
    /// The message to every member that joins after the end.
    final_message: Option<ToMember>,
    /// The last requested wake-up.
    wake: Duration,
    search: SearchStart,
}

/// The interval between two log lines about missing seats.
const WAITING_REPORT_INTERVAL: Duration = Duration::from_secs(30);
/// Evaluators that join within this time after the end get the final message.
const LATE_EVALUATORS: Duration = Duration::from_secs(10);
/// After this many failed restores in a row the gang gives up.
const MOST_FAILED_RESTORES: u32 = 3;
/// The allowance for the delay of a kill and a message.
const MARGIN: Duration = Duration::from_millis(500);

impl Leader {
    /// A leader without members.
    pub fn new(now: Duration, config: Config) -> Leader {
        let Timing { lease, .. } = config.timing;
        let floor = config.newest_claim.as_ref().map_or(0, |claim| claim.generation);
        let from_nothing = config.newest_claim.as_ref().is_some_and(|claim| claim.job.from_nothing);
        let has_started_over = config.newest_claim.as_ref().is_some_and(Claim::has_started_over);
        let end = config.newest_claim.clone().filter(|claim| claim.job.has_finished);
        let is_own_end = |end: &Claim| !end.job_id.is_empty() && end.job_id == config.job_id;
        let own_end = end.clone().filter(is_own_end);
        let former = config.newest_claim.clone().filter(|_| !config.former_has_ended);
        let former_lease_end = former.as_ref().map(|_| now + lease + lease / 50 + MARGIN);
        let mut leader = Leader {
            phase: Phase::Collecting,
            since: now,
            links: BTreeMap::new(),
            next_loss: now,
            saw_former_close: BTreeSet::new(),
            former_lease_end,
            has_former_generation: former.is_some(),
            left: BTreeSet::new(),
            departed: BTreeMap::new(),
            has_charged_former: false,
            found_end: end.as_ref().map(|end| end.generation),
            has_met_other: false,
            refusals: BTreeMap::new(),
            generation: floor,
            claims: Claims::new(now, config.has_read_claims, former),
            holders: BTreeMap::new(),
            fences: BTreeMap::new(),
            record: Record { from_nothing, ..Record::default() },
            has_started_over,
            choice: None,
            last_started: BTreeSet::new(),
            failed_restores: 0,
            failures: Vec::new(),
            named: None,
            inquiry: None,
            name_at: None,
            not_before: now,
            speed: Speed::default(),
            save_step: None,
            lasted: Duration::ZERO,
            pause: Duration::ZERO,
            empty_since: None,
            last_waiting_report: now,
            recent_missing: None,
            parting: Duration::ZERO,
            final_message: None,
            wake: now,
            search: SearchStart(config.own),
            config,
        };
        if own_end.is_some() {
            leader.end_as_replacement(now, &mut Vec::new());
        }
        leader
    }

    /// The required seats without an agent; if there are none, the required seats that are not ready.
    fn missing(&self) -> Vec<Seat> {
        let is_connected = |seat: &Seat| self.holders.get(seat).is_some_and(|holder| holder.link.is_some());
        let absent: Vec<Seat> = self.required().filter(|seat| !is_connected(seat)).collect();
        if !absent.is_empty() {
            return absent;
        }
        // With a shared directory, the other members restore after the chief.
        let arming = self.phase == Phase::Arming && !self.awaits_chief();
        let is_ready = |seat: &Seat| match self.holders.get(seat).map(|holder| &holder.state) {
            Some(State::Offered(_)) => !arming && self.holders[seat].notice.is_none(),
            Some(State::Armed) => true,
            _ => false,
        };
        self.required().filter(|seat| !is_ready(seat)).collect()
    }

    /// The missing seats at most a second ago, for the many answers to beats.
    fn recently_missing(&mut self, now: Duration) -> Vec<Seat> {
        if self.recent_missing.as_ref().is_none_or(|(at, _)| now >= *at + Duration::from_secs(1)) {
            self.recent_missing = Some((now, self.some_missing()));
        }
        self.recent_missing.clone().map_or(Vec::new(), |(_, missing)| missing)
    }

    /// The first of the missing seats, for a message.
    fn some_missing(&self) -> Vec<Seat> {
        let mut missing = self.missing();
        missing.truncate(16);
        missing
    }

    fn required(&self) -> impl Iterator<Item = Seat> + '_ {
        self.config.roster.iter().copied().filter(|seat| seat.is_required())
    }

    fn chief(&self) -> Option<Seat> {
        // The roster is sorted, as in `agreement::chief_of`.
        self.config.roster.iter().copied().find(|seat| seat.trains())
    }

    /// The time until which a silent member may train, by this clock. Clocks differ by half a per cent, and a kill takes a
    /// moment.
    fn lease_end(&self, last_received: Duration) -> Duration {
        last_received + self.config.timing.lease + self.config.timing.lease / 50 + MARGIN
    }

    /// The time until which a member with a closed link may train.
    fn lease_end_after_close(&self, closed: Duration) -> Duration {
        closed + self.config.timing.return_grace + self.config.timing.stop_grace + MARGIN
    }

    /// Handles one event.
    pub fn step(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        // Ten thousand members send five thousand beats a second, and a beat does not change the results of the checks below.
        let is_beat = matches!(event, Event::Received(_, ToLeader::Beat(_)));
        match event {
            Event::Received(link, ToLeader::Hello(hello)) => self.on_hello(now, link, hello, &mut actions),
            Event::Received(link, message) => self.on_message(now, link, message, &mut actions),
            Event::Closed(link) => {
                if let Some((_, holder)) = self.holder_of(link) {
                    holder.link = None;
                    holder.closed = Some(now);
                    self.next_loss = self.next_loss.min(now + self.config.timing.return_grace);
                }
                self.links.remove(&link);
            }
            Event::Claimed(generation) => self.on_claimed(now, generation),
            Event::ClaimedByOther(claim) => self.on_other_claim(now, claim, &mut actions),
            Event::Tick => {}
        }
        if is_beat && now < self.wake {
            actions.push(Action::Wake(self.wake));
            return actions;
        }
        self.remove_lost_holders(now, &mut actions);
        self.name_first_failure(now, &mut actions);
        self.advance(now, &mut actions);
        self.check_for_newer_claim(now, &mut actions);
        if !matches!(self.phase, Phase::Yielded | Phase::Done) {
            self.wake = self.next_wake(now);
            actions.push(Action::Wake(self.wake));
        }
        actions
    }

    fn holder_of(&mut self, link: Link) -> Option<(Seat, &mut Holder)> {
        let seat = *self.links.get(&link)?;
        self.holders.get_mut(&seat).filter(|holder| holder.link == Some(link)).map(|holder| (seat, holder))
    }

    fn send_to_all(&self, message: &ToMember, actions: &mut Vec<Action>) {
        let links = self.holders.values().filter_map(|holder| holder.link);
        actions.extend(links.map(|link| Action::Send(link, message.clone())));
    }

    fn next_wake(&self, now: Duration) -> Duration {
        let timing = self.config.timing;
        let mut next = now + timing.beat;
        let mut sooner = |at: Duration| next = next.min(at);
        sooner(self.next_loss);
        if let Some(at) = self.name_at {
            sooner(at);
        }
        if let Some(inquiry) = &self.inquiry {
            sooner(inquiry.until);
        }
        if let Some(since) = self.empty_since.filter(|_| self.phase == Phase::Collecting) {
            sooner(self.start_at(since));
        }
        next.max(now + Duration::from_millis(1))
    }
}

#[cfg(test)]
impl Leader {
    /// The newest generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The state in one word.
    pub fn state(&self) -> &'static str {
        match self.phase {
            Phase::Collecting => "collecting",
            Phase::Arming => "arming",
            Phase::Training => "training",
            Phase::Concluding => "concluding",
            Phase::Ending => "ending",
            Phase::GivenUp => "given_up",
            Phase::Parting => "parting",
            Phase::Yielded => "yielded",
            Phase::Done => "done",
        }
    }

    /// The record of the generations so far.
    pub fn record(&self) -> &Record {
        &self.record
    }
}

#[cfg(test)]
mod tests;

//! The leader's side: collects offers, agrees, starts, halts, and ends with the chief.
//!
//! The caller hands in what came over each link, in order, and sends what it is told. The leader's own replica is a member
//! on a link inside the process. A link is proven before the leader hears of it (`handshake`).
//!
//! No member hears of a generation whose number is not claimed (`claim`): the order is offers, claim, agreement, arming, go.

mod agreement;
mod borrowed_port;
mod claims;
mod events;
mod hang;
mod job_end;
mod kept;
mod messages;
mod phases;
mod seats;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::claim::Claim;
use super::first_failure::FailureReport;
use super::hang::TreeState;
use super::message::{Choice, FirstFailure, Offer, Record, ToLeader, ToMember};
use super::seat::{Incarnation, Seat};
use super::{Generation, Timing};
use claims::Claims;
use hang::Inquiry;
use seats::SearchStart;

pub use events::{Action, Config, Event, Link, OnNotice};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    Joined,
    Offered(Offer),
    Restoring,
    Armed,
    Training,
    /// Told to halt, and not offered since.
    Stopping,
    Finished,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Holder {
    incarnation: Incarnation,
    host: String,
    /// The generation of the last agreement that was sent to it.
    agreed: Generation,
    /// When its last offer came.
    offered: Duration,
    link: Option<Link>,
    last_received: Duration,
    /// When the link was closed, where it is.
    closed: Option<Duration>,
    state: State,
    step: Option<u64>,
    progressed: Duration,
    /// Steps that it has committed.
    committed: BTreeSet<u64>,
    /// The earlier leader that it was a member of, and the newest generation that it had seen when it came.
    former_leader: Option<(Incarnation, Generation)>,
    /// Its machine goes then.
    notice: Option<Duration>,
    restoring: Option<(u64, u64)>,
    /// What its trainer's processes do, where it was asked in this generation.
    tree: Option<TreeState>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    /// Waits for every required seat to offer.
    Collecting,
    /// A step is agreed on; waits for every required seat to arm.
    Arming,
    Training,
    /// The chief has finished.
    Ending,
    GivenUp,
    /// A replica's machine goes, and the platform restarts all: every member saves and leaves.
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
    /// The newest generation: agreed on by this leader, or known from a member or the store.
    generation: Generation,
    claims: Claims,
    holders: BTreeMap<Seat, Holder>,
    /// Until when an earlier holder of a seat may still train.
    fences: BTreeMap<Seat, Duration>,
    record: Record,
    /// An earlier leader of the job has begun from the beginning as this one is asked to.
    has_started_over: bool,
    /// What the generation that comes, or runs, starts from.
    choice: Option<Choice>,
    /// The agents whose trainers started last.
    last_started: BTreeSet<Incarnation>,
    /// Members have failed to put an agreed checkpoint in place so often since the last start.
    failed_restores: u32,
    /// Which seat each link holds.
    links: BTreeMap<Link, Seat>,
    /// When a holder may be lost next, at the earliest.
    next_loss: Duration,
    /// Seats whose agents saw an earlier leader close its connection: it is dead.
    saw_former_close: BTreeSet<Seat>,
    /// Until when an earlier leader may train, where a generation has started before this leader.
    former_lease_end: Option<Duration>,
    /// A generation of an earlier leader is known of: agents that were not in it may have surveyed before it ended.
    has_former_generation: bool,
    /// Seats that have said that they leave.
    left: BTreeSet<Seat>,
    failures: Vec<FailureReport>,
    /// The gang seems to hang: the members are asked what their trainers do.
    inquiry: Option<Inquiry>,
    /// When the first failure of the last halt is named.
    name_at: Option<Duration>,
    /// No generation starts before: an old leader's trainer may live, or the pause after a crash lasts.
    not_before: Duration,
    /// How long the generation that ended had lasted.
    lasted: Duration,
    /// The pause before the next one, from when the last tree is empty.
    pause: Duration,
    /// Since when every required seat has offered.
    empty_since: Option<Duration>,
    last_waiting_report: Duration,
    /// How long members may take to leave after a notice.
    parting: Duration,
    /// What every member is told that joins after the end.
    final_message: Option<ToMember>,
    /// The last wake-up that was asked for.
    wake: Duration,
    search: SearchStart,
}

/// Pause between two log lines that name the missing seats.
const WAITING_REPORT_INTERVAL: Duration = Duration::from_secs(30);
/// Evaluators join within this time of the end.
const LATE_EVALUATORS: Duration = Duration::from_secs(10);
/// So often in a row an agreed checkpoint may not be put in place.
const MOST_FAILED_RESTORES: u32 = 3;
/// What a kill and a message may take beyond their time.
const MARGIN: Duration = Duration::from_millis(500);

impl Leader {
    /// A leader that has heard of no member.
    pub fn new(now: Duration, config: Config) -> Leader {
        let Timing { lease, .. } = config.timing;
        let floor = config.newest_claim.as_ref().map_or(0, |claim| claim.generation);
        let from_nothing = config.newest_claim.as_ref().is_some_and(|claim| claim.job.from_nothing);
        let has_started_over = config.newest_claim.as_ref().is_some_and(Claim::has_started_over);
        let former = config.newest_claim.clone().filter(|_| !config.former_has_ended);
        let former_lease_end = former.as_ref().map(|_| now + lease + lease / 50 + MARGIN);
        Leader {
            phase: Phase::Collecting,
            since: now,
            links: BTreeMap::new(),
            next_loss: now,
            saw_former_close: BTreeSet::new(),
            former_lease_end,
            has_former_generation: former.is_some(),
            left: BTreeSet::new(),
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
            inquiry: None,
            name_at: None,
            not_before: now,
            lasted: Duration::ZERO,
            pause: Duration::ZERO,
            empty_since: None,
            last_waiting_report: now,
            parting: Duration::ZERO,
            final_message: None,
            wake: now,
            search: SearchStart(config.own),
            config,
        }
    }

    /// The newest generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// For the status: what it does, in one word.
    pub fn state(&self) -> &'static str {
        match self.phase {
            Phase::Collecting => "collecting",
            Phase::Arming => "arming",
            Phase::Training => "training",
            Phase::Ending => "ending",
            Phase::GivenUp => "given_up",
            Phase::Parting => "parting",
            Phase::Yielded => "yielded",
            Phase::Done => "done",
        }
    }

    /// Required seats that are waited for: those without an agent, or where all have one, those that are not ready.
    pub fn missing(&self) -> Vec<Seat> {
        let is_there = |seat: &Seat| self.holders.get(seat).is_some_and(|holder| holder.link.is_some());
        let absent: Vec<Seat> = self.required().filter(|seat| !is_there(seat)).collect();
        if !absent.is_empty() {
            return absent;
        }
        // Where all see one directory, the others come after the chief.
        let arming = self.phase == Phase::Arming && !self.awaits_chief();
        let is_ready = |seat: &Seat| match self.holders.get(seat).map(|holder| &holder.state) {
            Some(State::Offered(_)) => !arming && self.holders[seat].notice.is_none(),
            Some(State::Armed) => true,
            _ => false,
        };
        self.required().filter(|seat| !is_ready(seat)).collect()
    }

    /// The agreed steps, charges and failures so far.
    pub fn record(&self) -> &Record {
        &self.record
    }

    fn required(&self) -> impl Iterator<Item = Seat> + '_ {
        self.config.roster.iter().copied().filter(|seat| seat.is_required())
    }

    fn chief(&self) -> Option<Seat> {
        // The roster is sorted, as in `agreement::chief_of`.
        self.config.roster.iter().copied().find(|seat| seat.trains())
    }

    /// How long a member that is silent may still train after it was last heard, by this clock: clocks differ by half a per
    /// cent, and a kill takes a moment.
    fn lease_end(&self, heard: Duration) -> Duration {
        heard + self.config.timing.lease + self.config.timing.lease / 50 + MARGIN
    }

    /// How long a member whose link was closed may still train.
    fn lease_end_after_close(&self, closed: Duration) -> Duration {
        closed + self.config.timing.return_grace + self.config.timing.stop_grace + MARGIN
    }

    /// Takes one event.
    pub fn step(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        // Of ten thousand members come five thousand beats a second, and a beat changes nothing that is judged below.
        let is_beat = matches!(event, Event::Received(_, ToLeader::Beat { .. }));
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

    /// The first failure of the last halt.
    pub fn first(&self) -> Option<&FirstFailure> {
        self.record.first.as_ref()
    }
}

#[cfg(test)]
mod tests;

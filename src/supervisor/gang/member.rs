//! The gang's member of this replica, in the main loop: passes events to it, and performs its actions or passes them to the
//! job machine.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use super::Gang;
use super::thread::{News, Order, Thread};
use super::trainers_connection::{Search, TrainersConnection};
use crate::edge::clock::Clock;
use crate::edge::host::dmi;
use crate::edge::net::gang::random;
use crate::rules::cluster::seat::Seat;
use crate::rules::gang::member::{Action, Event as MemberEvent, Leave, Member};
use crate::rules::gang::message::{FirstFailure, ToMember, bounded_text};
use crate::rules::gang::settings::PERMANENT;
use crate::rules::gang::view::{LeaderView, View};
use crate::rules::gang::{Incarnation, Summary};
use crate::rules::job::{Event, Uptime};
use crate::rules::process::exit;

/// The maximum number of news handled in one turn of the loop.
const AT_ONCE: usize = 64;

/// The member, and the thread with its connection.
pub(in crate::supervisor) struct GangMember {
    member: Member,
    thread: Thread,
    /// The member's next wake-up.
    wake: Uptime,
    own: Seat,
    leads: bool,
    beat: Duration,
    required: usize,
    /// The leader's agent, known from its welcome.
    leader: Option<Incarnation>,
    /// The port of the trainers' rendezvous.
    rendezvous: u16,
    connection: TrainersConnection,
    /// Why the leader cannot be reached.
    trouble: Option<String>,
    is_dead: bool,
}

impl GangMember {
    /// Starts the thread. Returns the member's first events for the job, too. Errors: as [`Thread::start`] and getrandom(2).
    pub(in crate::supervisor) fn start(gang: Gang, clock: Clock) -> io::Result<(GangMember, Vec<Event>)> {
        let incarnation = Incarnation(u128::from_ne_bytes(random()?));
        let now = clock.now();
        let (own, leader, rendezvous) = (gang.place.own, gang.place.leader, gang.place.rendezvous);
        let required = gang.place.roster.iter().filter(|seat| seat.is_required()).count();
        let (mut member, actions) = Member::new(now, own, leader, incarnation, gang.host.clone(), gang.timing);
        member.of_job(gang.job_id.clone());
        member.booted(dmi::boot_id().unwrap_or_default());
        member.announce(gang.settings());
        let (leads, beat) = (gang.place.leads(), gang.timing.beat);
        let thread = Thread::start(gang, incarnation, clock)?;
        let connection = TrainersConnection::default();
        let mut gang = GangMember {
            member,
            thread,
            wake: now,
            own,
            leads,
            required,
            leader: None,
            beat,
            rendezvous,
            connection,
            trouble: None,
            is_dead: false,
        };
        let events = gang.perform(actions);
        Ok((gang, events))
    }

    /// Readable when the thread has news.
    pub(in crate::supervisor) fn fd(&self) -> RawFd {
        self.thread.fd()
    }

    /// The time of the next wake-up.
    pub(in crate::supervisor) fn due(&self) -> Uptime {
        self.wake
    }

    /// Passes an event to the member. Returns its events for the job.
    pub(in crate::supervisor) fn step(&mut self, now: Uptime, event: MemberEvent) -> Vec<Event> {
        let actions = self.member.step(now, event);
        self.perform(actions)
    }

    /// Handles the time and the news of the thread. The lease is checked before any message is read.
    pub(in crate::supervisor) fn receive(&mut self, now: Uptime, search: Search<'_>) -> Vec<Event> {
        let mut events = self.step(now, MemberEvent::Tick);
        if self.member.is_training() {
            self.connection.look(now, self.rendezvous, search);
        }
        self.thread.clear();
        for _ in 0..AT_ONCE {
            let event = match self.thread.next() {
                Ok(None) => return events,
                Ok(Some(News::Linked)) => MemberEvent::Linked,
                Ok(Some(News::Unlinked { silent })) => MemberEvent::Unlinked { silent },
                Ok(Some(News::Received(message))) => {
                    self.note_refusal(&message);
                    if matches!(message, ToMember::Halt { .. })
                        && self.member.is_training()
                        && self.connection.is_closed(now, self.rendezvous, search)
                    {
                        events.extend(self.step(now, MemberEvent::ConnectionsClosed));
                    }
                    MemberEvent::Received(message)
                }
                Ok(Some(News::ClaimRead(claim))) => MemberEvent::ClaimRead(claim),
                Ok(Some(News::Unreachable(why))) => {
                    self.trouble = Some(why);
                    continue;
                }
                Ok(Some(News::Listening)) => {
                    self.trouble = None;
                    continue;
                }
                Err(()) => {
                    events.extend(self.on_thread_death());
                    return events;
                }
            };
            events.extend(self.step(now, event));
        }
        self.thread.notify();
        events
    }

    /// Logs once why the seat is refused.
    fn note_refusal(&mut self, message: &ToMember) {
        match message {
            ToMember::Refused { why, contradicts } if self.trouble.as_ref() != Some(why) => {
                let words = bounded_text(why);
                if *contradicts {
                    tracing::warn!(
                        code = "gang",
                        "the gang's leader gives no seat: {words}; this replica exits with {} after {} s",
                        exit::NOT_STARTED,
                        PERMANENT.as_secs()
                    );
                } else {
                    tracing::info!("the gang's leader gives no seat yet: {words}");
                }
                self.trouble = Some(why.clone());
            }
            ToMember::Welcome { leader, .. } => (self.leader, self.trouble) = (Some(*leader), None),
            _ => {}
        }
    }

    /// Leaves the gang, because the connections are lost with the thread.
    fn on_thread_death(&mut self) -> Option<Event> {
        if std::mem::replace(&mut self.is_dead, true) {
            return None;
        }
        let why = "the thread that holds the gang's connections died".to_owned();
        tracing::error!(code = "gang", "{why}; this replica stops, start it again");
        Some(Event::Gang(Action::Leave(Leave::GaveUp {
            why,
            no_common_step: false,
            first: self.member.first().cloned(),
        })))
    }

    fn perform(&mut self, actions: Vec<Action>) -> Vec<Event> {
        let mut events = Vec::new();
        for action in actions {
            match action {
                Action::Dial => self.thread.order(Order::Dial),
                Action::Hangup => self.thread.order(Order::Hangup),
                Action::Send(message) => self.thread.order(Order::Send(Box::new(message))),
                Action::ReadClaim => self.thread.order(Order::ReadClaim),
                Action::Wake(at) => self.wake = at,
                Action::FirstFailure(first) => {
                    let FirstFailure { seat, host, failure } = &first;
                    tracing::warn!(code = "gang", "the gang was halted by {seat} on {host}: {}", failure.detail);
                }
                Action::Waiting(seats) => {
                    let named: Vec<String> = seats.iter().map(ToString::to_string).collect();
                    let trouble = self.trouble.as_ref().map_or(String::new(), |why| format!(": {why}"));
                    tracing::warn!(
                        code = "gang",
                        "the gang waits for {}{trouble}; if those replicas run no gang, give --gang off",
                        named.join(", ")
                    );
                }
                Action::Launch(generation) => {
                    self.connection = TrainersConnection::default();
                    events.push(Event::Gang(Action::Launch(generation)));
                }
                Action::Log(line) => tracing::info!("{line}"),
                Action::Leave(leave) => events.push(Event::Gang(Action::Leave(self.with_trouble(leave)))),
                for_the_job => events.push(Event::Gang(for_the_job)),
            }
        }
        events
    }

    /// Adds why the leader could not be reached to the reason for giving up.
    fn with_trouble(&self, leave: Leave) -> Leave {
        match (leave, &self.trouble) {
            (Leave::GaveUp { why, no_common_step, first }, Some(trouble)) => {
                Leave::GaveUp { why: format!("{why}; {trouble}"), no_common_step, first }
            }
            (leave, _) => leave,
        }
    }

    /// The leader's agent, if it is another replica's: its file shows whether the directory is shared.
    pub(in crate::supervisor) fn leader(&self) -> Option<Incarnation> {
        self.leader.filter(|_| !self.leads)
    }

    /// The step at which the trainer saves after a notice with this much time; `None`: at once.
    pub(in crate::supervisor) fn save_at(&mut self, left: Duration) -> Option<u64> {
        self.member.save_at(left)
    }

    /// All replicas shall save at this step.
    pub(in crate::supervisor) fn ask_to_save(&mut self, step: u64) {
        self.member.ask_to_save(step);
    }

    /// The step at which all save next.
    pub(in crate::supervisor) fn save_step(&self) -> Option<u64> {
        self.member.save_step()
    }

    /// Whether this replica has the leader.
    pub(in crate::supervisor) fn leads(&self) -> bool {
        self.leads
    }

    /// The longest time until a step that is asked for is known to all: it goes with a beat to the leader, and with the answer to
    /// the next beat to each member.
    pub(in crate::supervisor) fn reach(&self) -> Duration {
        self.beat * 2
    }

    /// The view for the status.
    pub(in crate::supervisor) fn view(&self) -> View {
        let LeaderView { members } = self.thread.view();
        View {
            generation: self.member.newest(),
            seat: self.own,
            state: self.member.state(),
            members: self.leads.then_some(members),
            waiting_for: self.member.waiting_for(),
        }
    }

    /// Ends the thread after its last messages are sent.
    pub(in crate::supervisor) fn end(&mut self) -> Summary {
        self.thread.end();
        Summary { generation: self.member.newest(), members: self.required, first: self.member.first().cloned() }
    }
}

//! The gang's member of this replica, in the main loop: what happens is told to it, and what it wants is done here or handed
//! to the job's machine.

use std::io;
use std::os::fd::RawFd;

use super::Gang;
use super::thread::{News, Order, Thread};
use crate::edge::clock::Clock;
use crate::edge::net::gang::random;
use crate::rules::gang::Summary;
use crate::rules::gang::member::{Action, Event as MemberEvent, Leave, Member};
use crate::rules::gang::message::{FirstFailure, ToMember, bounded_text};
use crate::rules::gang::seat::{Incarnation, Seat};
use crate::rules::gang::view::{LeaderView, View};
use crate::rules::job::{Event, Uptime};

/// News that is taken in one turn of the loop.
const AT_ONCE: usize = 64;

/// The member, and the thread with its connection.
pub(in crate::supervisor) struct GangMember {
    member: Member,
    thread: Thread,
    /// When the member is to be woken.
    wake: Uptime,
    own: Seat,
    leads: bool,
    required: usize,
    /// The agent that leads, once it has given the seat.
    leader: Option<Incarnation>,
    /// Why the leader cannot be reached.
    trouble: Option<String>,
    first: Option<FirstFailure>,
    missing: Vec<Seat>,
    is_dead: bool,
}

impl GangMember {
    /// Starts the thread, and what the member wants first. Errors: as [`Thread::start`] and getrandom(2).
    pub(in crate::supervisor) fn start(gang: Gang, clock: Clock) -> io::Result<(GangMember, Vec<Event>)> {
        let incarnation = Incarnation(u128::from_ne_bytes(random()?));
        let now = clock.now();
        let (own, leader) = (gang.place.own, gang.place.leader);
        let required = gang.place.roster.iter().filter(|seat| seat.is_required()).count();
        let (member, actions) = Member::new(now, own, leader, incarnation, gang.host.clone(), gang.timing);
        let leads = gang.place.leads();
        let thread = Thread::start(gang, incarnation, clock)?;
        let (first, missing) = (None, Vec::new());
        let mut desk = GangMember {
            member,
            thread,
            wake: now,
            own,
            leads,
            required,
            leader: None,
            trouble: None,
            first,
            missing,
            is_dead: false,
        };
        let events = desk.carry_out(actions);
        Ok((desk, events))
    }

    /// Readable when the thread has news.
    pub(in crate::supervisor) fn fd(&self) -> RawFd {
        self.thread.fd()
    }

    /// When the member must be woken.
    pub(in crate::supervisor) fn due(&self) -> Uptime {
        self.wake
    }

    /// Tells the member what happened. What it wants of the job.
    pub(in crate::supervisor) fn tell(&mut self, now: Uptime, word: MemberEvent) -> Vec<Event> {
        let actions = self.member.step(now, word);
        self.carry_out(actions)
    }

    /// What time and the thread bring. The lease is judged before any message is read.
    pub(in crate::supervisor) fn receive(&mut self, now: Uptime) -> Vec<Event> {
        let mut events = self.tell(now, MemberEvent::Tick);
        self.thread.clear();
        for _ in 0..AT_ONCE {
            let word = match self.thread.next() {
                Ok(None) => return events,
                Ok(Some(News::Linked)) => MemberEvent::Linked,
                Ok(Some(News::Unlinked { silent })) => MemberEvent::Unlinked { silent },
                Ok(Some(News::Received(message))) => {
                    self.note_refusal(&message);
                    MemberEvent::Received(message)
                }
                Ok(Some(News::Trouble(why))) => {
                    self.trouble = Some(why);
                    continue;
                }
                Err(()) => {
                    events.extend(self.bury());
                    return events;
                }
            };
            events.extend(self.tell(now, word));
        }
        self.thread.notify();
        events
    }

    /// Says once why the seat is not given.
    fn note_refusal(&mut self, message: &ToMember) {
        match message {
            ToMember::Refused { why } if self.trouble.as_ref() != Some(why) => {
                tracing::info!("the gang's leader gives no seat yet: {}", bounded_text(why));
                self.trouble = Some(why.clone());
            }
            ToMember::Welcome { leader, .. } => (self.leader, self.trouble) = (Some(*leader), None),
            _ => {}
        }
    }

    /// Without its thread this replica is none of the gang.
    fn bury(&mut self) -> Option<Event> {
        if std::mem::replace(&mut self.is_dead, true) {
            return None;
        }
        let why = "the thread that holds the gang's connections died".to_owned();
        tracing::error!(code = "gang", "{why}; this replica stops, start it again");
        Some(Event::Gang(Action::Leave(Leave::GaveUp { why, no_common_step: false, first: self.first.clone() })))
    }

    fn carry_out(&mut self, actions: Vec<Action>) -> Vec<Event> {
        let mut events = Vec::new();
        for action in actions {
            match action {
                Action::Dial => self.thread.order(Order::Dial),
                Action::Hangup => self.thread.order(Order::Hangup),
                Action::Send(message) => self.thread.order(Order::Send(Box::new(message))),
                Action::Wake(at) => self.wake = at,
                Action::FirstFailure(first) => {
                    let FirstFailure { seat, host, failure } = &first;
                    tracing::warn!(code = "gang", "the gang was halted by {seat} on {host}: {}", failure.detail);
                    self.first = Some(first);
                }
                Action::Waiting(seats) => {
                    let named: Vec<String> = seats.iter().map(ToString::to_string).collect();
                    let trouble = self.trouble.as_ref().map_or(String::new(), |why| format!(": {why}"));
                    tracing::warn!(
                        code = "gang",
                        "the gang waits for {}{trouble}; where those replicas run no gang, give --gang off",
                        named.join(", ")
                    );
                    self.missing = seats;
                }
                Action::Launch(generation) => {
                    self.missing.clear();
                    events.push(Event::Gang(Action::Launch(generation)));
                }
                Action::Leave(leave) => events.push(Event::Gang(Action::Leave(self.with_trouble(leave)))),
                for_the_job => events.push(Event::Gang(for_the_job)),
            }
        }
        events
    }

    /// Why the leader was not reached belongs to a wait for it that was given up.
    fn with_trouble(&self, leave: Leave) -> Leave {
        match (leave, &self.trouble) {
            (Leave::GaveUp { why, no_common_step, first }, Some(trouble)) => {
                Leave::GaveUp { why: format!("{why}; {trouble}"), no_common_step, first }
            }
            (leave, _) => leave,
        }
    }

    /// The agent that leads, where it is another replica's: its file tells whether the directory is shared.
    pub(in crate::supervisor) fn leader(&self) -> Option<Incarnation> {
        self.leader.filter(|_| !self.leads)
    }

    /// What the status shows.
    pub(in crate::supervisor) fn view(&self) -> View {
        let LeaderView { members, missing } = self.thread.view();
        View {
            generation: self.member.newest(),
            seat: self.own,
            state: self.member.state(),
            members: self.leads.then_some(members),
            waiting_for: if self.leads { missing } else { self.missing.clone() },
        }
    }

    /// Lets the last words out, and ends the thread.
    pub(in crate::supervisor) fn end(&mut self) -> Summary {
        self.thread.end();
        Summary { generation: self.member.newest(), members: self.required, first: self.first.clone() }
    }
}

//! One replica's side: it stops its trainer when the leader says so, when it loses the leader, and when its lease ends.
//!
//! The caller handles the events one by one, in the order in which they came, and carries out the actions in order. It
//! calls with [`Event::Tick`] no later than the last [`Action::Wake`] said. After every wake-up the lease is judged before
//! anything else, so a frozen agent trains no step after its lease has ended.

mod events;
mod messages;
pub mod routes;

use std::time::Duration;

use super::message::{Class, Failure, Former, Hello, MOST_STEPS, Offer, Record, ToLeader, bounded_text, millis};
use super::seat::{Incarnation, Seat};
use super::{Generation, Timing};

pub use events::{Action, Event, Leave};

/// What this replica does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    /// The tree is busy, or what can be restored is not known yet.
    Surveying,
    /// An evaluator or a reducer: it starts at once, outside the barrier, and its trainer is the caller's. Only the job's end
    /// concerns it.
    Beside,
    /// The tree is empty.
    Ready(Offer),
    Restoring(Generation),
    Armed(Generation),
    Training(Generation),
    /// The trainer was told to stop, or died.
    Stopping,
    /// The trainer of this generation ended with 0.
    Finished(Generation),
    /// The job is over; this is left once the tree is empty.
    Ending(Leave),
    Left,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Link {
    /// No connection.
    Down,
    /// A connection without a seat yet.
    Up,
    /// The seat is ours on this connection.
    Welcomed,
}

/// The state machine of one member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member {
    seat: Seat,
    incarnation: Incarnation,
    host: String,
    timing: Timing,
    phase: Phase,
    link: Link,
    newest: Generation,
    /// The trainer may run until then, by this clock.
    lease: Option<Duration>,
    next_beat: Duration,
    /// The leader's seat, for people.
    leader_seat: Seat,
    /// The leader that gave the seat, and since when it is gone and whether it was silent.
    leader: Option<Incarnation>,
    lost: Option<(Duration, bool)>,
    record: Record,
    /// The generation whose trainer hangs and got SIGABRT. Until its tree is empty it may train.
    aborting: Option<Generation>,
    /// A death that the leader may not have heard of: when, in which generation, how. It is said on each new connection
    /// until the leader halts that generation.
    fall: Option<(Duration, Generation, Failure)>,
    /// When the last survey was done; `None`: none has been asked for.
    surveyed: Option<Duration>,
    step: Option<u64>,
    /// Steps that were committed since the trainer's start, oldest first.
    committed: Vec<u64>,
    restoring: Option<(u64, u64)>,
    /// Since when it waits for the leader or for other seats.
    waiting: Duration,
    /// When it last named the missing members.
    said_waiting: Duration,
    missing: Vec<Seat>,
}

/// Between two log lines about a leader that is not there.
const SAY_WAITING: Duration = Duration::from_secs(30);

impl Member {
    /// A member that has not dialled yet. `leader` is the leader's seat.
    pub fn new(
        now: Duration,
        seat: Seat,
        leader: Seat,
        incarnation: Incarnation,
        host: String,
        timing: Timing,
    ) -> (Member, Vec<Action>) {
        let member = Member {
            seat,
            incarnation,
            host,
            timing,
            phase: if seat.is_required() { Phase::Surveying } else { Phase::Beside },
            link: Link::Down,
            newest: 0,
            lease: None,
            next_beat: now,
            leader_seat: leader,
            leader: None,
            lost: None,
            record: Record::default(),
            aborting: None,
            fall: None,
            surveyed: None,
            step: None,
            committed: Vec::new(),
            restoring: None,
            waiting: now,
            said_waiting: now,
            missing: Vec::new(),
        };
        (member, vec![Action::Dial])
    }

    /// The generation whose trainer may run now.
    pub fn training(&self) -> Option<Generation> {
        if let Phase::Training(generation) = self.phase { Some(generation) } else { None }
    }

    /// The newest generation that this member has seen.
    pub fn newest(&self) -> Generation {
        self.newest
    }

    /// For the status: what it does, in one word.
    pub fn state(&self) -> &'static str {
        match self.phase {
            Phase::Surveying => "surveying",
            Phase::Beside => "beside",
            Phase::Ready(_) => "ready",
            Phase::Restoring(_) => "restoring",
            Phase::Armed(_) => "armed",
            Phase::Training(_) => "training",
            Phase::Stopping => "stopping",
            Phase::Finished(_) => "finished",
            Phase::Ending(_) => "ending",
            Phase::Left => "left",
        }
    }

    fn busy(&self) -> Option<Generation> {
        match self.phase {
            Phase::Restoring(generation) | Phase::Armed(generation) | Phase::Training(generation) => Some(generation),
            Phase::Surveying
            | Phase::Beside
            | Phase::Ready(_)
            | Phase::Stopping
            | Phase::Finished(_)
            | Phase::Ending(_)
            | Phase::Left => self.aborting,
        }
    }

    /// Takes one event.
    pub fn step(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.judge_lease(now, &mut actions);
        match event {
            Event::TreeEmpty(offer) => self.tree_empty(now, offer, &mut actions),
            Event::Linked => self.linked(now, &mut actions),
            Event::Unlinked { silent } => self.unlinked(now, silent, &mut actions),
            Event::Received(message) => self.on_message(now, message, &mut actions),
            Event::Restored => {
                if let Phase::Restoring(generation) = self.phase {
                    self.restoring = None;
                    self.phase = Phase::Armed(generation);
                    self.send(ToLeader::Armed { generation }, &mut actions);
                }
            }
            Event::NotRestored(why) => {
                if let Phase::Restoring(generation) = self.phase {
                    self.restoring = None;
                    self.phase = Phase::Surveying;
                    self.send(ToLeader::CannotRestore { generation, why: bounded_text(&why) }, &mut actions);
                    actions.push(Action::Survey);
                }
            }
            Event::Failed(failure) => {
                if let Phase::Training(generation) = self.phase {
                    self.phase = Phase::Stopping;
                    self.aborting = Some(generation).filter(|_| failure.class == Class::Hung);
                    self.fall = Some((now, generation, failure.bounded()));
                    self.tell_fall(now, &mut actions);
                }
            }
            Event::Finished => {
                if let Phase::Training(generation) = self.phase {
                    self.phase = Phase::Finished(generation);
                    self.send(ToLeader::Finished { generation }, &mut actions);
                }
            }
            Event::TreeReported(tree) => {
                if let Phase::Training(generation) = self.phase {
                    self.send(ToLeader::Tree { generation, tree: tree.bounded() }, &mut actions);
                }
            }
            Event::Stepped(step) => self.step = Some(step),
            Event::Committed(step) => {
                self.committed.retain(|other| *other != step);
                self.committed.push(step);
                let more = self.committed.len().saturating_sub(MOST_STEPS);
                self.committed.drain(..more);
            }
            Event::Restoring(done, all) => {
                self.restoring = Some((done, all)).filter(|_| matches!(self.phase, Phase::Restoring(_)));
            }
            Event::Noticed(lead) => self.send(ToLeader::Notice { lead: millis(lead) }, &mut actions),
            Event::Leaves => {
                self.send(ToLeader::Leaving, &mut actions);
                self.phase = Phase::Left;
                actions.push(Action::Hangup);
            }
            Event::Tick => {}
        }
        self.pass_time(now, &mut actions);
        actions
    }

    /// Whether processes of the trainer may train on, unless they are stopped in time.
    fn may_train(&self) -> bool {
        self.aborting.is_some() || matches!(self.phase, Phase::Training(_))
    }

    /// The trainer gets SIGTERM or SIGKILL.
    fn stops(&mut self) {
        self.aborting = None;
        if let Phase::Training(_) = self.phase {
            self.phase = Phase::Stopping;
        }
    }

    /// FirstFailure of all: what the trainer may no longer do.
    fn judge_lease(&mut self, now: Duration, actions: &mut Vec<Action>) {
        // Without a connection the leader counts on the trainer's end earlier, even if this agent stands still in between.
        let closed = self.lost.map(|(since, _)| since + self.timing.return_grace + self.timing.stop_grace);
        if self.may_train() && (self.lease.is_none_or(|until| now >= until) || closed.is_some_and(|until| now >= until))
        {
            self.stops();
            actions.push(Action::Kill);
        }
    }

    fn pass_time(&mut self, now: Duration, actions: &mut Vec<Action>) {
        // Until the seat is ours again: a connection alone does not show that a leader counts on this member.
        if let Some((since, _)) = self.lost.filter(|_| self.may_train())
            && now >= since + self.timing.return_grace
        {
            self.stops();
            actions.push(Action::Stop(self.timing.stop_grace));
        }
        if self.link == Link::Welcomed && now >= self.next_beat && !matches!(self.phase, Phase::Left) {
            self.next_beat = now + self.timing.beat;
            let beat = ToLeader::Beat {
                clock: millis(now),
                step: self.step,
                restoring: self.restoring,
                committed: self.committed.clone(),
            };
            actions.push(Action::Send(beat));
        }
        // With a seat it is the leader's to give up, which knows the missing seats.
        let is_idle = matches!(self.phase, Phase::Surveying | Phase::Ready(_) | Phase::Stopping);
        if !is_idle || self.link == Link::Welcomed {
            (self.waiting, self.said_waiting) = (now, now);
        } else if now >= self.waiting + self.timing.wait {
            self.give_up(actions);
        } else if now >= self.said_waiting + SAY_WAITING {
            self.said_waiting = now;
            actions.push(Action::Waiting(vec![self.leader_seat]));
        }
        actions.push(Action::Wake(self.next_wake(now)));
    }

    fn give_up(&mut self, actions: &mut Vec<Action>) {
        let seats: Vec<String> = self.missing.iter().map(ToString::to_string).collect();
        let leader = || format!("the leader, {}", self.leader_seat);
        let missing = if seats.is_empty() { leader() } else { seats.join(", ") };
        let why = format!("waited for {} s for: {missing}", self.timing.wait.as_secs());
        let first = self.record.first.clone();
        let leave = Leave::GaveUp { why, no_common_step: false, first };
        match self.phase {
            Phase::Stopping => self.phase = Phase::Ending(leave),
            _ => self.leave(leave, actions),
        }
    }

    fn next_wake(&self, now: Duration) -> Duration {
        let mut next = now + self.timing.wait;
        if self.phase == Phase::Left {
            return next;
        }
        if self.link == Link::Welcomed {
            next = next.min(self.next_beat);
        }
        if self.may_train() {
            next = next.min(self.lease.unwrap_or(now));
            if let Some((since, _)) = self.lost {
                next = next.min(since + self.timing.return_grace);
            }
        }
        next.min(self.waiting + self.timing.wait).min(self.said_waiting + SAY_WAITING).max(now)
    }

    /// Sends where the seat is ours; else the leader learns it from the `Hello` or the `Offer` that follows.
    fn send(&self, message: ToLeader, actions: &mut Vec<Action>) {
        if self.link == Link::Welcomed {
            actions.push(Action::Send(message));
        }
    }

    fn tell_fall(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.link == Link::Welcomed
            && let Some((died, generation, failure)) = self.fall.clone()
        {
            let age = millis(now.saturating_sub(died));
            actions.push(Action::Send(ToLeader::Failed { generation, age, failure }));
        }
    }

    fn tree_empty(&mut self, now: Duration, offer: Offer, actions: &mut Vec<Action>) {
        (self.surveyed, self.aborting) = (Some(now), None);
        match self.phase.clone() {
            Phase::Surveying | Phase::Stopping | Phase::Ready(_) => {
                self.step = None;
                self.phase = Phase::Ready(offer.clone());
                self.send(ToLeader::Offer { after: self.newest, offer }, actions);
            }
            Phase::Ending(leave) => self.leave(leave, actions),
            Phase::Beside
            | Phase::Restoring(_)
            | Phase::Armed(_)
            | Phase::Training(_)
            | Phase::Finished(_)
            | Phase::Left => {}
        }
    }

    fn linked(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.link = Link::Up;
        let silent_for = self.lost.filter(|(_, silent)| *silent).map(|(since, _)| millis(now.saturating_sub(since)));
        actions.push(Action::Send(ToLeader::Hello(Hello {
            seat: self.seat,
            incarnation: self.incarnation,
            host: self.host.clone(),
            newest: self.newest,
            busy: self.busy(),
            former: self.leader.map(|leader| Former { leader, silent_for }),
            record: self.record.clone(),
        })));
    }

    fn unlinked(&mut self, now: Duration, silent: bool, actions: &mut Vec<Action>) {
        // A connection without a seat says nothing of the leader that gave it.
        if self.link == Link::Welcomed {
            self.lost = Some((now, silent));
        }
        self.link = Link::Down;
        match self.phase.clone() {
            // The leader leaves last: where it is gone, the end is known.
            Phase::Ending(Leave::Finished) | Phase::Left => {}
            _ => actions.push(Action::Dial),
        }
    }

    fn leave(&mut self, leave: Leave, actions: &mut Vec<Action>) {
        self.send(ToLeader::Leaving, actions);
        self.phase = Phase::Left;
        actions.extend([Action::Hangup, Action::Leave(leave)]);
    }
}

#[cfg(test)]
mod tests;

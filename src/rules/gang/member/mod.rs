//! The member: stops its trainer when the leader requests it, when the connection to the leader is lost, and when its lease
//! ends.
//!
//! The caller passes the events in the order of their arrival, and performs the actions in order. It calls with
//! [`Event::Tick`] no later than the time of the last [`Action::Wake`]. Each call checks the lease before anything else, so
//! the trainer of a frozen agent runs no step after the end of its lease.

mod events;
mod messages;
mod reports;
pub mod routes;
mod waiting;
mod without_leader;

use std::time::Duration;

use super::beat::Beat;
use super::message::{
    Failure, FirstFailure, FormerLeader, Hello, MOST_STEPS, Offer, Record, SaveAt, ToLeader, bounded_text, millis,
};
use super::settings::Settings;
use super::{Generation, Incarnation, Timing};
use crate::cluster::seat::Seat;
use waiting::WAITING_REPORT_INTERVAL;
use without_leader::StoreView;

pub use events::{Action, Event, Leave};

/// The state of this replica.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    /// The tree is not empty, or the survey is not complete.
    Surveying,
    /// An evaluator or a reducer: it is not part of the barrier, and the caller starts its trainer. It only ends with the job.
    Beside,
    /// The tree is empty.
    Ready(Offer),
    Restoring(Generation),
    Armed(Generation),
    Training(Generation),
    /// The trainer of this generation ended with 0. Its last files are being committed.
    Committing(Generation),
    /// The trainer is stopping or dead.
    Stopping,
    /// The trainer of this generation ended with 0, and its last files are committed.
    Finished(Generation),
    /// The job is over; the member leaves when the tree is empty.
    Ending(Leave),
    Left,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Link {
    /// No connection.
    Down,
    /// A connection without a seat yet.
    Up,
    /// The member has its seat on this connection.
    Welcomed,
}

/// The state machine of one member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member {
    seat: Seat,
    incarnation: Incarnation,
    host: String,
    boot: String,
    timing: Timing,
    phase: Phase,
    link: Link,
    newest: Generation,
    /// The time until which the trainer may run, by this clock.
    lease: Option<Duration>,
    next_beat: Duration,
    /// The leader's seat, for people.
    leader_seat: Seat,
    /// The leader of the last seat.
    leader: Option<Incarnation>,
    /// When the connection to that leader was lost, and whether it was silent.
    disconnected: Option<(Duration, bool)>,
    record: Record,
    /// The generation whose trainer hangs and got SIGABRT, or is about to end by itself. Until its tree is empty it may train.
    aborting: Option<Generation>,
    /// The trainer has closed its connections to the others before the halt.
    has_closed: bool,
    /// A failure that the leader may not have received: its time, its generation and the failure. It is sent on each new
    /// connection until the leader halts that generation.
    unconfirmed_failure: Option<(Duration, Generation, Failure)>,
    /// The time of the last survey; `None`: none was requested.
    last_survey: Option<Duration>,
    step: Option<u64>,
    /// The steps that were committed since the trainer's start, oldest first.
    committed: Vec<u64>,
    restoring: Option<(u64, u64)>,
    /// The time of the last progress of the restore.
    restore_moved: Duration,
    /// The trainer has saved a checkpoint of this node.
    has_own: bool,
    /// Where all save if a notice comes now, by the leader's last echo.
    next_save: Option<SaveAt>,
    /// The step at which this replica, the leader's, wants all to save, and the one that the leader has named to all.
    wanted_save: Option<u64>,
    save_step: Option<u64>,
    /// The decision after a notice: the step at which to save; `Some(None)`: at once.
    save_at: Option<Option<u64>>,
    /// The trainer does not run any more, and its last files are being committed.
    commits: bool,
    /// What this member has read of the store while it reached no leader.
    store: StoreView,
    /// The start of the wait for the leader or for other seats.
    waiting: Duration,
    /// The time of the last log line about missing members.
    last_waiting_report: Duration,
    missing: Vec<Seat>,
    /// The settings that the members must share.
    settings: Option<Box<Settings>>,
    /// The leader refuses this member since this time, because their settings contradict each other.
    contradiction: Option<(Duration, String)>,
}

impl Member {
    /// A member without a connection. `leader` is the leader's seat.
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
            boot: String::new(),
            timing,
            phase: if seat.is_required() { Phase::Surveying } else { Phase::Beside },
            link: Link::Down,
            newest: 0,
            lease: None,
            next_beat: now,
            leader_seat: leader,
            leader: None,
            disconnected: None,
            record: Record::default(),
            aborting: None,
            has_closed: false,
            unconfirmed_failure: None,
            last_survey: None,
            step: None,
            committed: Vec::new(),
            restoring: None,
            restore_moved: now,
            has_own: false,
            next_save: None,
            wanted_save: None,
            save_step: None,
            save_at: None,
            commits: false,
            store: StoreView::default(),
            waiting: now,
            last_waiting_report: now,
            missing: Vec::new(),
            settings: None,
            contradiction: None,
        };
        (member, vec![Action::Dial])
    }

    /// Sets the boot of the host's kernel.
    pub fn booted(&mut self, boot: String) {
        self.boot = boot;
    }

    /// Sets what the leader compares with its own settings.
    pub fn announce(&mut self, settings: Settings) {
        self.settings = Some(Box::new(settings));
    }

    /// The first failure of the last halt.
    pub fn first(&self) -> Option<&FirstFailure> {
        self.record.first.as_ref()
    }

    /// The newest generation that this member has seen.
    pub fn newest(&self) -> Generation {
        self.newest
    }

    /// Whether the trainer runs in a generation.
    pub fn is_training(&self) -> bool {
        matches!(self.phase, Phase::Training(_))
    }

    /// The state in one word, for the status.
    pub fn state(&self) -> &'static str {
        match self.phase {
            Phase::Surveying => "surveying",
            Phase::Beside => "beside",
            Phase::Ready(_) => "ready",
            Phase::Restoring(_) => "restoring",
            Phase::Armed(_) => "armed",
            Phase::Training(_) => "training",
            Phase::Committing(_) => "committing",
            Phase::Stopping => "stopping",
            Phase::Finished(_) => "finished",
            Phase::Ending(_) => "ending",
            Phase::Left => "left",
        }
    }

    fn busy(&self) -> Option<Generation> {
        match self.phase {
            Phase::Restoring(generation)
            | Phase::Armed(generation)
            | Phase::Training(generation)
            | Phase::Committing(generation) => Some(generation),
            Phase::Surveying
            | Phase::Beside
            | Phase::Ready(_)
            | Phase::Stopping
            | Phase::Finished(_)
            | Phase::Ending(_)
            | Phase::Left => self.aborting,
        }
    }

    /// Handles one event.
    pub fn step(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.check_lease(now, &mut actions);
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
            Event::Failed(failure) => self.failed(now, failure.bounded(), &mut actions),
            Event::ConnectionsClosed => self.has_closed = matches!(self.phase, Phase::Training(_)),
            Event::Succeeded => {
                if let Phase::Training(generation) = self.phase {
                    self.phase = Phase::Committing(generation);
                }
                self.begin_commit(now, &mut actions);
            }
            Event::Committing => self.begin_commit(now, &mut actions),
            Event::Finished => {
                self.commits = false;
                match self.phase.clone() {
                    Phase::Training(generation) | Phase::Committing(generation) => {
                        self.phase = Phase::Finished(generation);
                        self.send(ToLeader::Finished { generation }, &mut actions);
                    }
                    Phase::Ending(leave) => self.leave(leave, &mut actions),
                    _ => {}
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
                self.restore_moved = now;
                self.restoring = Some((done, all)).filter(|_| matches!(self.phase, Phase::Restoring(_)));
            }
            Event::Noticed(lead) => {
                let save_at = self.save_at(lead);
                self.send(ToLeader::Notice { lead: millis(lead), save_at }, &mut actions);
            }
            Event::Saved => {
                if !std::mem::replace(&mut self.has_own, true) {
                    // At once, because the leader may let the chief delete a step that this node has not committed yet.
                    self.next_beat = now;
                }
            }
            Event::Leaves(departure) => {
                self.send(ToLeader::Beat(Beat { leaves: Some(departure.bounded()), ..self.beat(now) }), &mut actions);
                self.send(ToLeader::Leaving, &mut actions);
                self.phase = Phase::Left;
                actions.push(Action::Hangup);
            }
            Event::ClaimRead(claim) => self.on_claim_read(claim, &mut actions),
            Event::Tick => {}
        }
        self.on_time(now, &mut actions);
        actions
    }

    /// After a notice with this much time: the step at which the trainer saves; `None`: at once. The first answer is final.
    pub fn save_at(&mut self, left: Duration) -> Option<u64> {
        let is_near = |next: &SaveAt| Duration::from_millis(next.within) <= left / 3;
        *self.save_at.get_or_insert_with(|| self.next_save.filter(is_near).map(|next| next.step))
    }

    /// Whether processes of the trainer may be training, so that they must be stopped in time.
    fn may_train(&self) -> bool {
        self.aborting.is_some() || matches!(self.phase, Phase::Training(_))
    }

    fn mark_stopping(&mut self) {
        self.aborting = None;
        if let Phase::Training(_) = self.phase {
            self.phase = Phase::Stopping;
        }
    }

    /// Kills the trainer if the lease has ended.
    fn check_lease(&mut self, now: Duration, actions: &mut Vec<Action>) {
        // Without a connection, the leader expects the end of the trainer earlier, even if this agent was frozen meanwhile.
        let closed = self.disconnected.map(|(since, _)| since + self.timing.return_grace + self.timing.stop_grace);
        if self.may_train() && (self.lease.is_none_or(|until| now >= until) || closed.is_some_and(|until| now >= until))
        {
            self.mark_stopping();
            actions.push(Action::Kill);
        }
    }

    fn tree_empty(&mut self, now: Duration, offer: Offer, actions: &mut Vec<Action>) {
        (self.last_survey, self.aborting, self.commits) = (Some(now), None, false);
        self.has_closed = false;
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
            | Phase::Committing(_)
            | Phase::Finished(_)
            | Phase::Left => {}
        }
    }

    fn linked(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.link = Link::Up;
        let silent_for =
            self.disconnected.filter(|(_, silent)| *silent).map(|(since, _)| millis(now.saturating_sub(since)));
        actions.push(Action::Send(ToLeader::Hello(Hello {
            seat: self.seat,
            incarnation: self.incarnation,
            host: self.host.clone(),
            boot: self.boot.clone(),
            newest: self.newest,
            busy: self.busy(),
            former: self.leader.map(|leader| FormerLeader { leader, silent_for }),
            record: self.record.clone(),
            settings: self.settings.clone(),
        })));
    }

    fn unlinked(&mut self, now: Duration, silent: bool, actions: &mut Vec<Action>) {
        // The end of a connection without a seat is not the end of the connection to the leader of the last seat.
        if self.link == Link::Welcomed {
            self.disconnected = Some((now, silent));
        }
        self.link = Link::Down;
        if self.phase != Phase::Left {
            actions.push(Action::Dial);
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

//! The orders to the background thread, and its channel for events to the supervisor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::edge::io::eventfd::EventFd;
use crate::rules::gang::Incarnation;
use crate::rules::gang::message::Choice;
use crate::rules::job::Event;
use crate::supervisor::status::page::Question;

/// Deadline used when a stop has none.
pub(in crate::supervisor) const NO_END: Duration = Duration::from_secs(365 * 86_400);

/// An order to the thread.
#[derive(Debug, Clone, Copy)]
pub(in crate::supervisor) enum Order {
    Restore,
    Refresh,
    FallBack,
    /// List the checkpoints that can be restored. The argument is the leader's incarnation, because all replicas may share
    /// one directory.
    Survey(Option<Incarnation>),
    /// Restore exactly this step.
    RestoreAgreed(Choice),
    /// All members of the gang have this step: keep it and newer ones.
    Keep(u64),
    /// The trainer was killed this long ago, perhaps in the middle of a save.
    MarkUnsure(Duration),
    Publish,
    /// The last commit, and its deadline on the thread's clock.
    Flush(Option<Duration>),
    /// The command failed: the last commit does not wait for the other processes of the node.
    SkipOthers,
    /// Sets the deadline of the commit in progress.
    SetCommitDeadline(Duration),
    /// Check for complete checkpoints now and often. `notice`: the end is near.
    CommitSoon {
        notice: bool,
    },
}

/// The thread's end of the channels.
#[derive(Debug, Clone)]
pub(in crate::supervisor) struct EventSender {
    pub(super) events: mpsc::Sender<Event>,
    pub(super) questions: mpsc::Sender<Question>,
    pub(super) eventfd: EventFd,
    pub(super) incarnation: Arc<AtomicU64>,
}

impl EventSender {
    /// Sends an event to the supervisor.
    pub(in crate::supervisor) fn send(&self, event: Event) {
        // There is no receiver after the end of the job.
        let _ = self.events.send(event);
        self.eventfd.notify();
    }

    /// Sends a question to the supervisor.
    pub(in crate::supervisor) fn ask(&self, question: Question) {
        // There is no receiver after the end of the job.
        let _ = self.questions.send(question);
        self.eventfd.notify();
    }

    /// Publishes this run's number in the store.
    pub(in crate::supervisor) fn incarnation(&self, number: u64) {
        self.incarnation.store(number, Ordering::Relaxed);
    }
}

//! What happens to a member, and what it asks of its caller.

use std::time::Duration;

use super::super::Generation;
use super::super::hang::TreeState;
use super::super::message::{Choice, Failure, FirstFailure, Offer, ToLeader, ToMember};
use super::super::seat::Seat;

/// What happened to this replica.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// The process tree is empty and this can be restored: at the start, and after each `Stop`, `Kill`, `End`, `Survey` and
    /// `Save`. A survey that runs when another is asked for begins anew.
    TreeEmpty(Offer),
    /// A connection to the leader is proven.
    Linked,
    /// The connection is gone: closed or reset by the other side, or `silent`.
    Unlinked {
        /// No byte came for too long.
        silent: bool,
    },
    /// A message of the leader.
    Received(ToMember),
    /// The agreed step is in place.
    Restored,
    /// It cannot be put in place, and why.
    NotRestored(String),
    /// The main child of the running generation died, or must not go on.
    Failed(Failure),
    /// It ended with 0, and what it left is committed.
    Finished,
    /// The trainer named this step.
    Stepped(u64),
    /// This member has committed this step.
    Committed(u64),
    /// So many bytes of so many are restored.
    Restoring(u64, u64),
    /// This replica's machine goes in so long. What it asks of the trainer is the caller's.
    Noticed(Duration),
    /// This agent ends for a reason of its own, after its last commit.
    Leaves,
    /// What the trainer's processes do: the answer to [`Action::ReportTree`], and before a `Failed` of a hang.
    TreeReported(TreeState),
    /// Time has passed.
    Tick,
}

/// Why a member leaves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Leave {
    /// The job has finished: 0.
    Finished,
    /// The gang gave up.
    GaveUp {
        /// Why.
        why: String,
        /// 204 rather than 203.
        no_common_step: bool,
        /// The first failure.
        first: Option<FirstFailure>,
    },
}

/// What the caller must do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Connect to the leader, and try until it works.
    Dial,
    /// Close the connection, or stop trying.
    Hangup,
    /// Send this on the connection.
    Send(ToLeader),
    /// Report with `TreeEmpty` what can be restored.
    Survey,
    /// Put this in place, exactly; answer with `Restored` or `NotRestored`.
    Restore(Choice),
    /// Start the trainer.
    Launch(Generation),
    /// Stop the trainer, or the restore: SIGTERM, after this time SIGKILL. Then report `TreeEmpty`.
    Stop(Duration),
    /// Let the trainer end by itself for so long, then stop it. Then report `TreeEmpty`.
    End(Duration),
    /// SIGKILL at once. Then report `TreeEmpty`.
    Kill,
    /// End the trainer as at a hang of its own: its stacks, SIGABRT, later SIGKILL. Then report `TreeEmpty`.
    Abort,
    /// Say with `TreeReported` what the trainer's processes do.
    ReportTree,
    /// Do what is done for a notice of one's own, with so much time; with `leave`, leave with 143 after the commit.
    Save {
        /// Until the deadline.
        lead: Duration,
        /// Whether to leave.
        leave: bool,
    },
    /// Delete nothing at or above this step.
    Keep(u64),
    /// The last generation ended because of this.
    FirstFailure(FirstFailure),
    /// The leader waits for these seats, or this member waits for the leader.
    Waiting(Vec<Seat>),
    /// Leave, once the tree is empty.
    Leave(Leave),
    /// Call with `Tick` at this time, or earlier.
    Wake(Duration),
}

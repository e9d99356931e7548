//! The events and the actions of a member.

use std::time::Duration;

use super::super::Generation;
use super::super::beat::Departure;
use super::super::claim::Claim;
use super::super::hang::TreeState;
use super::super::message::{Choice, Failure, FirstFailure, Offer, ToLeader, ToMember};
use crate::cluster::seat::Seat;

/// An event for the member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// The process tree is empty: at the start, and after each `Stop`, `Kill`, `End`, `Survey` and `Save`, with the checkpoints
    /// that can be restored. A new request for a survey restarts a running one.
    TreeEmpty(Offer),
    /// A connection to the leader is proven.
    Linked,
    /// The connection is closed.
    Unlinked {
        /// Closed because no byte arrived for too long, not by the other side.
        silent: bool,
    },
    /// A message of the leader.
    Received(ToMember),
    /// The agreed step is restored.
    Restored,
    /// The agreed step cannot be restored, with the reason.
    NotRestored(String),
    /// The main child of the running generation died, or has to be stopped.
    Failed(Failure),
    /// The trainer had connections to those of other replicas and has none any more; reported before a halt is received.
    ConnectionsClosed,
    /// The main child ended with 0. Its last files are not committed yet.
    Succeeded,
    /// The trainer does not run any more, and its last files are being committed.
    Committing,
    /// The main child ended with 0, and its last files are committed.
    Finished,
    /// The trainer has reported this step.
    Stepped(u64),
    /// The trainer has saved a checkpoint that this node's store does not have yet.
    Saved,
    /// This member has committed this step.
    Committed(u64),
    /// The restored bytes and their total.
    Restoring(u64, u64),
    /// This replica's machine goes away after this time. The caller stops the trainer.
    Noticed(Duration),
    /// This agent exits after its last commit, for this reason.
    Leaves(Departure),
    /// The newest claim in the store: the answer to [`Action::ReadClaim`]. `None`: there is no claim.
    ClaimRead(Option<Claim>),
    /// The activity of the trainer's processes: the answer to [`Action::ReportTree`], and before the `Failed` of a hang.
    TreeReported(TreeState),
    /// Time has passed.
    Tick,
}

/// Why a member leaves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Leave {
    /// The job has finished: exit with 0.
    Finished,
    /// The members' settings contradict each other, for this reason: exit with 125.
    Contradiction(String),
    /// The gang gave up.
    GaveUp {
        /// Why.
        why: String,
        /// Exit with 204, not with 203.
        no_common_step: bool,
        /// The first failure.
        first: Option<FirstFailure>,
    },
}

/// An action for the caller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(clippy::large_enum_variant, reason = "one at a time, and most of them are messages")]
pub enum Action {
    /// Connect to the leader, and retry until it succeeds.
    Dial,
    /// Close the connection, or stop trying.
    Hangup,
    /// Send this on the connection.
    Send(ToLeader),
    /// List the checkpoints that can be restored; answer with `TreeEmpty`.
    Survey,
    /// Restore exactly this; answer with `Restored` or `NotRestored`.
    Restore(Choice),
    /// Read the newest claim in the store, and answer with `ClaimRead`. Without a store, or if it does not answer, do nothing.
    ReadClaim,
    /// Start the trainer.
    Launch(Generation),
    /// Stop the trainer or the restore: SIGTERM, after this time SIGKILL. Then report `TreeEmpty`.
    Stop(Duration),
    /// The gang is halted, and the trainer has closed its connections: wait this long for its end, then send SIGKILL. Report
    /// its end with `Failed`, then `TreeEmpty`.
    AwaitEnd(Duration),
    /// The job has finished: wait this long for the trainer to end, then stop it. Then report `TreeEmpty`.
    End(Duration),
    /// Send SIGKILL at once. Then report `TreeEmpty`.
    Kill,
    /// End the trainer as after its own hang: log its stacks, SIGABRT, later SIGKILL. Then report `TreeEmpty`.
    Abort,
    /// Report the activity of the trainer's processes with `TreeReported`.
    ReportTree,
    /// Save as after a notice to this replica.
    Save {
        /// The time until the deadline.
        lead: Duration,
        /// Whether to exit with 143 after the commit.
        leave: bool,
    },
    /// Do not delete this step or newer ones.
    Keep(u64),
    /// Log the first failure of the last generation.
    FirstFailure(FirstFailure),
    /// The leader waits for these seats, or this member waits for the leader.
    Waiting(Vec<Seat>),
    /// Log this line.
    Log(String),
    /// Exit when the tree is empty.
    Leave(Leave),
    /// Call with `Tick` at this time or earlier.
    Wake(Duration),
}

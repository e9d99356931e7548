//! The configuration, the events and the actions of a leader.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::agreement::Mode;
use super::super::budget::Limits;
use super::super::claim::{Claim, JobState};
use super::super::message::{ToLeader, ToMember};
use super::super::settings::Settings;
use super::super::{Generation, Incarnation, Timing};
use crate::cluster::seat::Seat;

/// The caller's number of a link.
pub type Link = u64;

/// The reaction of the other members to a notice to one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnNotice {
    /// They save and wait for the replacement.
    Hold,
    /// They save and exit with 143: the platform restarts all of them.
    Leave,
}

/// The configuration of a leader.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Config {
    /// Every seat of the job.
    pub roster: BTreeSet<Seat>,
    /// The seat of the leader's own replica.
    pub own: Seat,
    /// The leader's agent process.
    pub incarnation: Incarnation,
    /// The settings that the members must share.
    pub settings: Settings,
    /// The times.
    pub timing: Timing,
    /// How the nodes keep their checkpoints.
    pub mode: Mode,
    /// Whether the job starts from the beginning although checkpoints exist.
    pub from_scratch: bool,
    /// Whether a member's commits outlive its machine.
    pub has_store: bool,
    /// The reaction to a notice.
    pub on_notice: OnNotice,
    /// The restart budget.
    pub limits: Limits,
    /// The gang hangs if no member's step advances for this long.
    pub hang: Option<Duration>,
    /// The newest claim in the store; `None`: there is no claim or no store, or it was not read.
    pub newest_claim: Option<Claim>,
    /// Whether the newest claim was read.
    pub has_read_claims: bool,
    /// Whether the gang of the newest claim has ended: none of its trainers runs.
    pub former_has_ended: bool,
    /// The platform's id of the job; empty if the platform gives none.
    pub job_id: String,
}

#[cfg(test)]
impl Config {
    /// A new job with a store, and checkpoints on each node.
    pub(in crate::gang) fn of(roster: impl IntoIterator<Item = Seat>, own: Seat, incarnation: Incarnation) -> Config {
        let roster = roster.into_iter().collect();
        Config {
            settings: Settings::new("1", &roster, Mode::Each),
            roster,
            own,
            incarnation,
            timing: Timing::default(),
            mode: Mode::Each,
            from_scratch: false,
            has_store: true,
            on_notice: OnNotice::Hold,
            limits: Limits::default(),
            hang: None,
            newest_claim: None,
            has_read_claims: true,
            former_has_ended: false,
            job_id: String::new(),
        }
    }
}

/// An event for the leader.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(clippy::large_enum_variant, reason = "one at a time, and most of them are messages")]
pub enum Event {
    /// A message on a proven link; the first is its `Hello`.
    Received(Link, ToLeader),
    /// A link was closed.
    Closed(Link),
    /// The store has this leader's claim on this generation.
    Claimed(Generation),
    /// The newest claim in the store belongs to another leader.
    ClaimedByOther(Claim),
    /// Time has passed.
    Tick,
}

/// An action for the caller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(clippy::large_enum_variant, reason = "one at a time, and most of them are messages")]
pub enum Action {
    /// Send this over the link.
    Send(Link, ToMember),
    /// Close the link after everything is sent.
    Close(Link),
    /// Claim a generation: create the object [`claim::name`](super::super::claim::name) if it does not exist, and retry until
    /// the store has answered. If the object was created, or exists with this leader's name because of an earlier try, answer
    /// with [`Event::Claimed`]. If it has another leader's name, read the following numbers, and answer with
    /// [`Event::ClaimedByOther`] and the newest claim. Without a store, answer with `Claimed` at once. A new request replaces
    /// the one before.
    Claim {
        /// The number.
        generation: Generation,
        /// The state of the job for the claim.
        job: JobState,
    },
    /// Create the object [`claim::common_name`](super::super::claim::common_name) of this generation, and retry until the store
    /// has answered. Without a store, do nothing.
    MarkCommon(Generation),
    /// Read the claim on this generation. If it belongs to another leader, read the following numbers as for
    /// [`Action::Claim`], and answer with [`Event::ClaimedByOther`]. If there is no claim or no store, do nothing. A failed read
    /// is not retried. A new request replaces the one before; no check is requested while a claim is pending.
    CheckForNewerClaim(Generation),
    /// The trainers of this generation start; for the log and the status.
    Started(Generation),
    /// Log this line.
    Log(String),
    /// Log this line as a warning: an operator has to act.
    Warn(String),
    /// Log these lines about a hang: the activity of the members' trainers.
    LogHang(Vec<String>),
    /// Every other member has left, has used up its time, or belongs to another leader: the leader's agent exits after its own
    /// member has left.
    Done,
    /// Call with `Tick` at this time or earlier.
    Wake(Duration),
}

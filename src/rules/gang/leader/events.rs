//! What a leader is told, what happens to it, and what it asks of its caller.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::agreement::Mode;
use super::super::budget::Limits;
use super::super::claim::{Claim, JobState};
use super::super::message::{ToLeader, ToMember};
use super::super::seat::{Incarnation, Seat};
use super::super::{Generation, Timing};

/// A link's number, as the caller counts them.
pub type Link = u64;

/// What the other members do after a notice to one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnNotice {
    /// They save and wait for the replacement.
    Hold,
    /// They save and leave with 143: the platform restarts all of them.
    Leave,
}

/// What the leader is told once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Config {
    /// Every seat of the job.
    pub roster: BTreeSet<Seat>,
    /// The seat of the leader's own replica.
    pub own: Seat,
    /// The leader's agent process.
    pub incarnation: Incarnation,
    /// The times.
    pub timing: Timing,
    /// How the nodes keep their checkpoints.
    pub mode: Mode,
    /// Whether the job begins anew although there are steps.
    pub from_scratch: bool,
    /// Whether what a member has committed outlives its machine.
    pub has_store: bool,
    /// After a notice.
    pub on_notice: OnNotice,
    /// The restart budget.
    pub limits: Limits,
    /// A hang: no member's step moves for this long.
    pub hang: Option<Duration>,
    /// The newest claim in the store; `None`: there is none, or no store, or it was not read.
    pub newest_claim: Option<Claim>,
    /// Whether it was read.
    pub has_read_claims: bool,
    /// Whether the gang of that claim has ended: none of its trainers runs.
    pub former_has_ended: bool,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(clippy::large_enum_variant, reason = "one at a time, and most of them are messages")]
pub enum Event {
    /// A message came over a proven link; the first is its `Hello`.
    Received(Link, ToLeader),
    /// A link is gone.
    Closed(Link),
    /// The store has this leader's claim on this generation.
    Claimed(Generation),
    /// The newest claim in the store is this one, of another leader.
    ClaimedByOther(Claim),
    /// Time has passed.
    Tick,
}

/// What the caller must do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this over the link.
    Send(Link, ToMember),
    /// Close the link once all is sent.
    Close(Link),
    /// Claim a generation: put the object [`claim::name`](super::super::claim::name) only where there is none, and try until
    /// the store has answered. Answer with [`Event::Claimed`] where it is put, or where it is there and names this leader:
    /// an earlier try has put it. Where it names another leader, read on from number to number, and answer with
    /// [`Event::ClaimedByOther`] and the newest. Without a store answer with `Claimed` at once. A new request replaces the one before.
    Claim {
        /// The number.
        generation: Generation,
        /// What the claim says of the job.
        job: JobState,
    },
    /// Put the object [`claim::common_name`](super::super::claim::common_name) of this generation, and try until the store has
    /// answered. Without a store do nothing.
    MarkCommon(Generation),
    /// Read the claim on this generation. Where there is one of another leader, read on as for [`Action::Claim`] and answer
    /// with [`Event::ClaimedByOther`]. Where there is none, or no store, do nothing; a read that fails is not tried again. A new
    /// request replaces the one before; no look is asked for while a claim has no answer.
    CheckForNewerClaim(Generation),
    /// The trainers of this generation start: for the log and the status.
    Started(Generation),
    /// Log this line.
    Log(String),
    /// The gang hangs: log these lines, which say what the trainers of the members do.
    LogHang(Vec<String>),
    /// Every member is gone, or had its time, or belongs to another leader: the leader's agent ends once its own member has
    /// left.
    Done,
    /// Call with `Tick` at this time, or earlier.
    Wake(Duration),
}

//! The state of the gang in `trainit status` and `/metrics`.

use serde::Serialize;

use super::Generation;
use crate::cluster::seat::Seat;

/// The maximum number of members shown: an answer has to fit into a socket's buffer.
pub const MOST_MEMBERS: usize = 200;

/// The gang, as seen by one of its replicas.
#[derive(Debug, Clone, Serialize)]
pub struct View {
    /// The newest generation.
    pub generation: Generation,
    /// This replica's seat.
    pub seat: Seat,
    /// The state of its member, in one word.
    pub state: &'static str,
    /// The members that have joined; `None`: this replica is not the leader.
    pub members: Option<Vec<MemberView>>,
    /// The missing required seats.
    pub waiting_for: Vec<Seat>,
}

/// The leader's part of the view.
#[derive(Debug, Clone, Default)]
pub struct LeaderView {
    /// The members that have joined, at most [`MOST_MEMBERS`].
    pub members: Vec<MemberView>,
}

/// One member.
#[derive(Debug, Clone, Serialize)]
pub struct MemberView {
    /// Its seat.
    pub seat: Seat,
    /// Its host, as it calls itself.
    pub host: String,
    /// Its state, in one word.
    pub state: &'static str,
    /// The step that its trainer reports.
    pub step: Option<u64>,
}

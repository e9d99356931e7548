//! What `trainit status` and `/metrics` show of the gang.

use serde::Serialize;

use super::Generation;
use super::seat::Seat;

/// More members than this are not shown: an answer has to fit a socket's buffer.
pub const MOST_MEMBERS: usize = 200;

/// The gang, as one of its replicas sees it.
#[derive(Debug, Clone, Serialize)]
pub struct View {
    /// The newest generation.
    pub generation: Generation,
    /// This replica's seat.
    pub seat: Seat,
    /// What its member does, in one word.
    pub state: &'static str,
    /// Every member that has come; `None`: only the leader knows them.
    pub members: Option<Vec<MemberView>>,
    /// Required seats that are waited for.
    pub waiting_for: Vec<Seat>,
}

/// What the leader knows of it.
#[derive(Debug, Clone, Default)]
pub struct LeaderView {
    /// Every member that has come, [`MOST_MEMBERS`] at most.
    pub members: Vec<MemberView>,
    /// Required seats that are waited for.
    pub missing: Vec<Seat>,
}

/// One member.
#[derive(Debug, Clone, Serialize)]
pub struct MemberView {
    /// Its seat.
    pub seat: Seat,
    /// Its host, as it calls itself.
    pub host: String,
    /// What it does, in one word.
    pub state: &'static str,
    /// The step that its trainer names.
    pub step: Option<u64>,
}

//! Requests for the state of a run: the status socket and HTTP.

pub(super) mod history;
pub(super) mod page;
pub(super) mod push;
pub(super) mod report;
pub(super) mod socket;

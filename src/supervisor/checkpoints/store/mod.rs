//! The store's side: attempts, commits, fencing, retention.

pub(crate) mod audit;
pub(crate) mod claim;
pub(crate) mod commits;
pub(crate) mod fence;
pub(crate) mod retention;
pub(crate) mod runs;

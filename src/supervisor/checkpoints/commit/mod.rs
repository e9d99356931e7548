//! Commits: the directory's files into the store.

pub(crate) mod archive;
pub(crate) mod dedup;
pub(crate) mod hard_links;
pub(crate) mod memory;
pub mod outcome;
pub(crate) mod publish;
pub(crate) mod send;
pub(crate) mod snapshot;
pub(crate) mod upload;

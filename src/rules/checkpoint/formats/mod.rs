//! The known formats and the rest of a directory: which files belong to which checkpoint, and whether it is complete.

pub mod ends;
pub(in crate::checkpoint) mod engine;
pub(in crate::checkpoint) mod exclude;
pub(in crate::checkpoint) mod layouts;
pub(in crate::checkpoint) mod readers;
pub(in crate::checkpoint) mod rest;
pub(in crate::checkpoint) mod units;
pub(in crate::checkpoint) mod verdict;

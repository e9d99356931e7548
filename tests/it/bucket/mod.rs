//! Stores in buckets, over real HTTP on loopback.

mod access;
pub mod commits;
mod credentials;
mod faults;
mod listings;
mod partly_hung;
mod pruning;
pub mod runs;
mod saved_over;
mod secrets;

//! The background thread's work for a run's checkpoints: it executes the supervisor's orders with the mirror of
//! [`checkpoints`](crate::supervisor::checkpoints), within limits, and reports the results.

mod flush;
mod gang;
mod order_queue;
mod places;
mod report;
mod run;
pub mod sibling;
mod wanted;
mod watchdog;

pub(super) use places::Places;
pub use wanted::{Checkpoints, Keep};

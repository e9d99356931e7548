//! The GPUs of a run, watched while the command runs.

pub(super) mod events;
pub mod watch;

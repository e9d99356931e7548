//! The processes of the job: start, signals, observation and explanation of failures.

pub(super) mod death_clues;
pub(super) mod error_files;
pub(super) mod flight_recorder;
pub(super) mod heartbeat;
pub(super) mod liveness;
pub(super) mod main_children;
pub(super) mod memory;
pub(super) mod not_launched;
pub(super) mod terminal_stop;
pub(super) mod tree_signals;

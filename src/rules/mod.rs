//! Rules decide. Plain data in, plain data out: no clock, no process, no file, no environment, nothing async.

pub mod awake;
pub mod checkpoint;
pub mod cluster;
pub mod duration;
pub mod env;
pub mod exit;
pub mod framework;
pub mod gpu;
pub mod job;
pub mod lines;
pub mod metric;
pub mod plain;
pub mod preempt;
pub mod program;
pub mod progress;
pub mod signal;
pub mod status;
pub mod when;

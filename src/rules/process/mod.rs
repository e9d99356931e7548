//! Processes as data: environment, signals, exit codes, and why a program cannot be executed.

pub mod active_time;
pub mod env;
pub mod exit;
pub mod program;
pub mod roles;
pub mod signal;

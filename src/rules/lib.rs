//! Rules decide. Plain data in, plain data out: no clock, no process, no file, no environment, nothing async.

pub mod cache;
pub mod checkpoint;
pub mod cluster;
pub mod gang;
pub mod gpu;
pub mod job;
pub mod life;
pub mod metric;
pub mod preempt;
pub mod process;
pub mod push;
pub mod simulate;
pub mod status;
pub mod store;
pub mod text;

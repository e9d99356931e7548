//! GPUs, with a fake of the NVML library behind the real interface.

pub mod command;
mod demands;
mod probe;
mod run;
mod watch;

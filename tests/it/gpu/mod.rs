//! GPUs, with a fake of the NVML library behind the real interface.

pub mod command;
mod demands;
mod run;
mod watch;

//! The machine, and the limits of this process on it.

pub mod cgroup;
pub mod dmi;
pub mod limits;

//! Edges touch the machine and the network; they decide nothing. Each knows one thing of the machine, and none knows
//! a setting or a policy.

pub mod cgroup;
pub mod clock;
pub mod descendants;
pub mod files;
pub mod limits;
pub mod process;
pub mod reaper;
pub mod run_dir;
pub mod signals;
pub mod stdio;
pub mod terminal;
pub mod wake;

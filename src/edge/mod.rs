//! Edges touch the machine and the network; they decide nothing. Each knows one thing of the machine, and none knows
//! a setting or a policy.

pub mod backlog;
pub mod beneath;
pub mod cgroup;
pub mod clock;
pub mod code_pages;
pub mod control;
pub mod deaths;
pub mod descendants;
pub mod dial;
pub mod fault;
pub mod files;
pub mod follow;
pub mod gpu;
pub mod heap;
pub mod http;
pub mod limits;
#[cfg(feature = "store")]
pub mod links;
pub mod machine;
pub mod metrics_file;
pub mod pipe;
#[cfg(feature = "store")]
pub mod places;
pub mod process;
pub mod reaper;
pub mod run_dir;
pub mod signals;
pub mod stdio;
#[cfg(feature = "store")]
pub mod store;
pub mod terminal;
pub mod threads;
pub mod wake;
pub mod walk;
pub mod writers;

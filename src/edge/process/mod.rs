//! Processes: started, signalled, reaped and looked at.

pub mod descendants;
pub mod exit_order;
pub mod facts;
pub mod open_files;
pub mod pidfd;
pub(crate) mod proc_listing;
pub mod program;
pub mod reaper;
pub mod signals;
pub mod sockets;
pub mod spawn;
pub mod terminal;
pub mod threads;

//! Edges use the machine and the network; they decide nothing. Each file handles one thing of the machine, and none
//! knows a setting or a policy.

pub mod clock;
pub mod fault;
pub mod fs;
pub mod gpu;
pub mod host;
pub mod io;
pub mod net;
pub mod process;
pub mod store;
pub mod transfer;

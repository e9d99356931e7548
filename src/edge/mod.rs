//! Edges touch the machine and the network; they decide nothing. Each knows one thing of the machine, and none knows
//! another, a setting or a policy.

pub mod clock;
pub mod metrics_file;
pub mod signals;
pub mod stdio;

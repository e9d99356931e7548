//! Edges touch the machine and the network; they decide nothing. Each knows one thing of the machine, and none knows
//! another, a setting or a policy.

pub mod beneath;
pub mod clock;
pub mod fault;
pub mod signals;
pub mod stdio;
pub mod store;
pub mod walk;
pub mod writers;

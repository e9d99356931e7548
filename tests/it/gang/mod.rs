//! The replicas of a job stop, agree and start together: several real trainits on loopback.

mod checkpoints;
mod first_failure;
mod foreign_connections;
mod generations;
mod hangs;
mod vertex;

//! The replicas of a job stop, agree and start together: several real trainits on loopback.

mod checkpoints;
mod foreign_connections;
mod generations;
mod hangs;
mod vertex;

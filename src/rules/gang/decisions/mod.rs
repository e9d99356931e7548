//! Decisions of the leader from the messages of the members: the checkpoint, the first failure, the restart, and the
//! suspicious replicas of a hang.

pub mod agreement;
pub mod budget;
pub mod first_failure;
pub mod hang;

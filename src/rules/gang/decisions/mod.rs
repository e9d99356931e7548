//! What the leader decides from the members' words: the checkpoint, the first failure, the restart, the odd ones of a hang.

pub mod agreement;
pub mod budget;
pub mod first_failure;
pub mod hang;

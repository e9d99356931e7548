//! The loop: hear, decide, do, tell.

pub mod commit;
pub mod mirror;
pub mod restore;
pub mod retention;

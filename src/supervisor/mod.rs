//! The loop: hear, decide, do, tell.

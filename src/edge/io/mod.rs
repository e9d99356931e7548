//! Descriptors that are read, written or polled.

pub mod backlog;
pub mod eventfd;
pub mod pipe;
pub mod progress_line;
pub mod stdio;

//! Threads and buffers for work on large files.

pub mod blocking;
pub(crate) mod buffer_pool;
pub(crate) mod large_pages;
pub(crate) mod ranges;
pub(crate) mod threads;

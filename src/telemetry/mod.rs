//! What others see of us: a view of what has happened, never a way to change it.

pub mod log;
pub mod verdict;
pub mod view;

//! What trainit reports: a view of what has happened, which never changes it.

pub mod log;
pub mod verdict;
pub mod view;

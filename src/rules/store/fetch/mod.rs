//! Training data that are fetched before the start: from where, what of it, and what is there already.

pub mod index;
pub mod plan;
pub mod source;

//! Training data that is fetched before the start: the source, the files to fetch, and the files that are in place.

pub mod index;
pub mod plan;
pub mod source;

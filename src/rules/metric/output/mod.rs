//! Measurements in the output of a trainer: patterns and the forms in which users write them.

pub(in crate::metric) mod dialect;
pub(in crate::metric) mod digits;
pub mod pattern;
pub(in crate::metric) mod sagemaker;
pub mod scrape;
pub mod searched;
pub(in crate::metric) mod tag_regex;

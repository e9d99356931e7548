//! Metrics from files of a trainer, and the only writer of the metrics file.

pub mod files;
pub(super) mod reporter;

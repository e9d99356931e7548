//! Metrics: one report as bytes, what a write does to the file, who reports, and measurements out of a trainer's output.

pub mod batch;
pub mod ledger;
pub mod line;
pub mod number;
pub mod pattern;
pub mod plan;
pub mod rank;
pub mod scrape;

//! Metrics: the hypertune file, `report-metric`, and what is read from an unmodified trainer.

pub mod file;
mod file_places;
mod followed;
mod patterns;
mod records;
pub mod report_metric;
mod report_metric_stdin;
mod scraped;
mod tracking;

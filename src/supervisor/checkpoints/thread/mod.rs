//! The background thread's work for a run's checkpoints: orders, limits, reports, the model.

pub(crate) mod flush;
pub(crate) mod gang;
pub(crate) mod model;
pub(crate) mod order_queue;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod sibling;
pub(crate) mod watchdog;

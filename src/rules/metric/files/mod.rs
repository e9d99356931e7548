//! Measurements in files that a trainer writes: JSON, tables, text, TensorBoard's event files.

pub(in crate::metric) mod csv;
pub(in crate::metric) mod document;
pub mod event;
pub mod names;
pub(in crate::metric) mod pairs;
pub mod records;
pub mod tfrecord;

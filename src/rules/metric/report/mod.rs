//! The metrics file: its lines, how they are written, and what its readers require.

pub mod batch;
pub mod contract;
pub mod line;
pub mod plan;
pub mod reported;

//! What was typed, set and configured, given meaning once; afterwards only read.
//!
//! [`defs`] is the list, [`layers`] says which value holds and where it came from, [`reader`] what it says; one file per
//! topic turns text into types. Deliberately absent: the machine (except the one configuration file, which `command`
//! reads and hands in).

pub mod checkpoint;
pub mod cluster;
mod config_file;
pub mod defs;
pub mod gpus;
pub mod idle;
pub mod layers;
pub mod left_out;
pub mod metrics;
pub mod model;
pub mod nearest;
pub mod platform;
pub mod reader;
pub mod run;
pub mod units;

pub use config_file::ConfigFile;
pub use layers::{Complaint, Given, Origin, Values};
pub use reader::Reader;

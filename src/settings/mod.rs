//! The settings: read once from flags, variables and the file, and immutable afterwards.
//!
//! [`defs`] is the list, [`layers`] finds each value and its origin, [`reader`] parses its text; one file for each
//! topic turns text into types. Deliberately absent: access to the machine (`command` reads the configuration file and
//! passes it in).

pub mod checkpoint;
pub mod cluster;
mod config_file;
pub mod defs;
pub mod fetch;
pub mod gang;
pub mod gpus;
pub mod layers;
pub mod metrics;
pub mod model;
pub mod platform;
pub mod reader;
pub mod run;
pub mod simulate;
pub mod suggest;
pub mod units;
pub mod unused;

pub use config_file::ConfigFile;
pub use layers::{Complaint, Given, Origin, Values};
pub use reader::Reader;

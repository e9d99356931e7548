//! The settings: read once from flags, variables and the file, and immutable afterwards.
//!
//! [`defs`] is the list, [`values`] finds each value with its origin and parses its text; one file for each topic turns
//! text into types. Deliberately absent: access to the machine (`command` reads the configuration file and passes it in).

pub mod checkpoint;
pub mod cluster;
pub mod defs;
pub mod fetch;
pub mod gang;
pub mod gpus;
pub mod metrics;
pub mod model;
pub mod run;
pub mod simulate;
pub mod values;

pub use values::config_file::ConfigFile;
pub use values::layers::{Complaint, Origin, Values};
pub use values::reader::Reader;

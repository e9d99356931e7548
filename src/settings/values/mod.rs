//! The value of each setting: from a flag, a variable, the file or the platform, and its text as a number, a time, a size.

pub mod config_file;
pub mod layers;
pub mod platform;
pub mod reader;
pub mod suggest;
pub mod units;
pub mod unused;

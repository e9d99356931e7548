//! Launchers that are not read: their variables cause a warning.

pub mod signs;
pub(in crate::cluster) mod unsupported;

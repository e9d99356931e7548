//! The rules of a store: its address, keys, manifests and archives, retention, the pace of uploads, and the plan of a fetch.

pub mod address;
pub mod archive;
pub mod fetch;
mod hostile;
pub mod manifest;
pub mod names;
pub mod pace;
pub mod plan;

pub use hostile::path as check_path;

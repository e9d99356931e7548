//! What a store holds: where it is, what its keys and manifests say, what is to be kept, how fast it is written, what is fetched.

pub mod address;
pub mod archive;
pub mod fetch;
mod hostile;
pub mod manifest;
pub mod names;
pub mod pace;
pub mod plan;

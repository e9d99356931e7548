//! Restores: a commit of the store into the directory.

pub(crate) mod agreed;
pub(crate) mod begin;
pub(crate) mod choose;
pub(crate) mod earlier;
pub(crate) mod fetch;
pub(crate) mod install;
pub(crate) mod local_files;
pub(crate) mod offer;
pub(crate) mod offered;
pub(crate) mod rollback;

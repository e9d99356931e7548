//! The checkpoints of a run: restored at the start, committed while training continues, and committed a last time at the end.
//! All of it runs on the background thread. The job machine decides what the events mean for the job.
//!
//! `mirror` joins the directory (`directory/`) and the store (`store/`). `commit/` copies to the store, `restore/` back.
//! The orders of a run come from `background/keep`.

pub mod commit;
pub mod config;
pub(crate) mod directory;
pub mod failure;
pub mod mirror;
pub(crate) mod progress;
pub(crate) mod restore;
pub(crate) mod store;

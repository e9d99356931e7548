//! One integration binary, one folder per topic. Everything here runs the real program.

#![allow(clippy::disallowed_methods, reason = "tests start processes and read clocks")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![allow(unreachable_pub, missing_docs, reason = "nothing here is an interface")]

mod support;

mod bucket;
mod checkpoint;
mod cluster;
mod commits;
mod files;
mod gang;
mod gpu;
mod init;
mod metrics;
mod project;
mod restarts;
mod status;

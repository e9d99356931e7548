//! One integration binary, one file per capability. Everything here runs the real program.

#![allow(clippy::disallowed_methods, reason = "tests start processes and read clocks")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![allow(unreachable_pub, missing_docs, reason = "nothing here is an interface")]

mod support;

mod checkpoint_faults;
mod checkpoint_lives;
mod checkpoint_restore;
mod checkpoint_schedules;
mod checkpoint_store;
mod checkpoint_trouble;
mod child_state;
mod cluster;
mod cluster_properties;
mod command_line;
mod documentation;
mod env_command;
mod exit_codes;
mod followed_metrics;
mod gpu_run;
mod gpu_watch;
mod gpus;
mod hang;
mod init;
mod init_hard;
mod init_signals;
mod inspect;
mod manifests;
mod metrics_file;
mod model;
mod nproc;
mod object_store_runs;
mod object_stores;
mod peers;
mod preemption;
mod report_metric;
mod restarts;
mod resume;
mod scraped_metrics;
mod shipping;
mod status;
mod terminal;
mod walls;

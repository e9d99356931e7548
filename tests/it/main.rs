//! One integration binary, one file per capability. Everything here runs the real program.
//! A build without stores (`--no-default-features`) leaves out what needs one, and is tried by `without_store`.

#![allow(clippy::disallowed_methods, reason = "tests start processes and read clocks")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![allow(unreachable_pub, missing_docs, reason = "nothing here is an interface")]

mod support;

#[cfg(feature = "store")]
mod archives;
mod checkpoint_beside_later;
#[cfg(feature = "store")]
mod checkpoint_by_hand;
#[cfg(feature = "store")]
mod checkpoint_cut_off;
#[cfg(feature = "store")]
mod checkpoint_elsewhere;
#[cfg(feature = "store")]
mod checkpoint_faults;
#[cfg(feature = "store")]
mod checkpoint_fence;
#[cfg(feature = "store")]
mod checkpoint_hashes;
mod checkpoint_last;
#[cfg(feature = "store")]
mod checkpoint_links;
#[cfg(feature = "store")]
mod checkpoint_lives;
#[cfg(feature = "store")]
mod checkpoint_odd_files;
#[cfg(feature = "store")]
mod checkpoint_parts;
#[cfg(feature = "store")]
mod checkpoint_prune;
#[cfg(feature = "store")]
mod checkpoint_push_stopped;
#[cfg(feature = "store")]
mod checkpoint_restore;
#[cfg(feature = "store")]
mod checkpoint_schedules;
#[cfg(feature = "store")]
mod checkpoint_shared;
#[cfg(feature = "store")]
mod checkpoint_store;
#[cfg(feature = "store")]
mod checkpoint_trouble;
#[cfg(feature = "store")]
mod checkpoint_words;
mod child_state;
mod cluster;
mod cluster_properties;
mod command_line;
#[cfg(feature = "store")]
mod documentation;
mod env_command;
mod exit_codes;
mod followed_metrics;
mod gpu_run;
mod gpu_watch;
mod gpus;
mod hang;
mod hung_file_systems;
mod init;
mod init_hard;
mod init_signals;
mod inspect;
#[cfg(feature = "store")]
mod launched_ranks;
#[cfg(feature = "store")]
mod limits;
#[cfg(feature = "store")]
mod manifests;
mod metrics_file;
#[cfg(feature = "store")]
mod model;
mod nproc;
#[cfg(feature = "store")]
mod object_store_runs;
#[cfg(feature = "store")]
mod object_stores;
#[cfg(feature = "store")]
mod partly_hung_stores;
mod peers;
mod preemption;
mod report_metric;
#[cfg(feature = "store")]
mod restarts;
#[cfg(feature = "store")]
mod resume;
mod scraped_metrics;
mod shipping;
#[cfg(feature = "store")]
mod spoilt_answers;
mod status;
#[cfg(feature = "status-page")]
mod status_page;
#[cfg(feature = "store")]
mod store_access;
#[cfg(feature = "store")]
mod store_credentials;
#[cfg(feature = "store")]
mod store_listings;
mod terminal;
mod unread;
mod walls;
#[cfg(not(feature = "store"))]
mod without_store;

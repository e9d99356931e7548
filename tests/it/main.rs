//! One integration binary, one file per capability. Everything here runs the real program.

#![allow(clippy::disallowed_methods, reason = "tests start processes and read clocks")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![allow(unreachable_pub, missing_docs, reason = "nothing here is an interface")]

mod support;

mod archives;
mod checkpoint_beside_later;
mod checkpoint_by_hand;
mod checkpoint_elsewhere;
mod checkpoint_faults;
mod checkpoint_fence;
mod checkpoint_hashes;
mod checkpoint_links;
mod checkpoint_lives;
mod checkpoint_odd_files;
mod checkpoint_prune;
mod checkpoint_push_stopped;
mod checkpoint_restore;
mod checkpoint_schedules;
mod checkpoint_shared;
mod checkpoint_snapshots;
mod checkpoint_store;
mod checkpoint_trouble;
mod checkpoint_words;
mod child_state;
mod cluster;
mod cluster_properties;
mod command_line;
mod documentation;
mod earlier_commits;
mod env_command;
mod exit_codes;
mod explained_ends;
mod followed_metrics;
mod foreign_links;
mod gang;
mod gpu_demands;
mod gpu_run;
mod gpu_watch;
mod gpus;
mod hang;
mod hung_file_systems;
mod init;
mod init_hard;
mod init_signals;
mod inspect;
mod launched_ranks;
mod limits;
mod manifests;
mod metrics_file;
mod model;
mod nproc;
mod object_store_runs;
mod object_stores;
mod partly_hung_stores;
mod peers;
mod preemption;
mod report_metric;
mod restarts;
mod resume;
mod scraped_metrics;
mod shipping;
mod spoilt_answers;
mod states_page;
mod status;
mod status_page;
mod stop_floods;
mod store_access;
mod store_credentials;
mod store_listings;
mod suspend;
mod terminal;
mod tree_stop;
mod unread;
mod walls;

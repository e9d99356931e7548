//! The commit protocol: kills, faults, several writers of one store, and earlier formats.

mod archives;
mod earlier_commits;
mod faults;
mod fence;
mod frozen;
mod model;
mod prune;
mod push;
mod push_stopped;
mod schedules;
mod spoilt_answers;

//! What a checkpoint directory holds, what of it is committed, and when: pure rules over a walk.
//!
//! 1. `exclude` drops what is never committed.
//! 2. `engine` finds the roots of the known formats (`layouts`, a table), their `units` and whether each is complete
//!    (`verdict` holds every unit to the same rules; `readers`: the five formats whose files must be read; `ends`: whether a
//!    file is cut short). Everything else is the `rest`.
//! 3. `tracker` follows both over time (`history`, `saves`): which of the `parts` is ready, what a commit takes (`snapshot`),
//!    what is rolled back after a death (`rollback`).
//!
//! Deliberately absent: how a byte is read, sent or deleted, and any clock.

pub mod ends;
mod engine;
mod exclude;
mod explain;
mod history;
mod layouts;
pub mod listing;
mod parts;
mod readers;
mod rest;
mod rollback;
mod saves;
mod snapshot;
#[cfg(test)]
mod tests;
mod tracker;
mod units;
mod verdict;
mod warnings;

pub use ends::json;
pub use engine::partition;
pub use exclude::Exclusions;
pub use explain::{Explanation, explain};
pub use history::{Committed, Habits, History, PartRecord};
pub use layouts::{Format, LAYOUTS, Layout, format_names};
pub use listing::{Entry, Kind, Listing, Peek};
pub use parts::{PartState, State};
pub use rollback::Rollback;
pub use snapshot::{Look, Plan, PlanFile, PlanPart, Resume, resume};
pub use tracker::{Facts, Tracker, Writer};
pub use units::{Options, Partition, Root, Scan, Unit, UnitState};
pub use warnings::Warning;

//! Decides which files of a checkpoint directory are committed, and when: pure rules over a listing.
//!
//! 1. `formats` drops excluded files (`exclude`) and finds the roots of the known formats (`layouts`, a table) and their
//!    `units` (`engine`). Everything else is the `rest`.
//! 2. `formats` decides whether each unit is complete: `verdict` applies the same rules to every unit. `readers` has the five
//!    formats whose files must be read. `ends` tells whether a file is cut short.
//! 3. `tracker` follows units and rest over time (`history`, `saves`). It tells which of the `parts` is ready, what a commit
//!    takes (`snapshot`), what is rolled back after a death (`rollback`), and the older checkpoints to go back to (`rewind`).
//!
//! Deliberately absent: how a byte is read, sent or deleted, and any clock.

mod explain;
mod formats;
mod history;
pub mod listing;
mod parts;
mod rest_part;
mod rewind;
mod rollback;
mod saves;
mod snapshot;
#[cfg(test)]
mod tests;
mod tracker;

pub use explain::{Explanation, explain};
pub use formats::ends;
pub use formats::engine::partition;
pub use formats::exclude::Exclusions;
pub use formats::layouts::{Format, LAYOUTS, format_names};
pub use formats::units::{Options, Root, Scan, Unit, UnitState};
pub use history::{Beside, Committed, PartRecord, SaveTiming};
pub use listing::{Entry, Kind, Listing, Peek};
pub use parts::{PartState, State};
pub use rewind::{Rewind, restorable, rewind};
pub use rollback::Rollback;
pub use snapshot::{Look, Plan, PlanFile, Resume, resume};
pub use tracker::{Earlier, Facts, Tracker, Writer};

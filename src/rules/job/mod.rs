//! The rules for one job: events in, actions out, time as data.
//!
//! Deliberately absent: processes, clocks, descriptors, and knowledge of clouds.

mod budget;
mod child;
pub mod clues;
mod event;
pub mod goodput;
mod hang;
mod machine;
mod novelty;
mod policy;
mod restart;
pub mod trainer_error;
pub mod tree_stop;
mod verdict;

pub use child::{ChildFacts, child_variables};
pub use clues::Kills;
pub use event::{Action, Event, Flushed, Mirrored, Resume, Target, Timer, Uptime};
pub use hang::{LivenessSample, Sample};
pub use machine::{COPY_AGAIN, Machine, STATES, Snapshot, State};
pub use novelty::Novelty;
pub use policy::{InGang, Policy, Processes, StoppedCode};
pub use tree_stop::Grace;
pub use verdict::{KILLED_FOR_MEMORY, Outcome, Reason};

//! The life of one replica's job, as rules: events in, actions out, time as data.
//!
//! Deliberately absent: processes, clocks, descriptors, and which cloud this is.

mod budget;
mod child;
mod event;
mod hang;
mod kills;
mod machine;
mod policy;
mod restart;
mod verdict;

pub use child::{ChildFacts, child_variables};
pub use event::{Action, Event, Flushed, Mirrored, Resume, Target, Timer, Uptime};
pub use hang::{Hang, Pulse, Sample};
pub use kills::Kills;
pub use machine::{COPY_AGAIN, Machine, STATES, State, Told};
pub use policy::{Policy, Processes, StoppedCode};
pub use verdict::{KILLED_FOR_MEMORY, Outcome, Reason};

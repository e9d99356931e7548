//! The library of the program. The rules decide, the edges do all I/O, and the supervisor passes events to the rules
//! and executes the resulting actions through the edges. See ARCHITECTURE.md.

pub mod cli;
pub mod command;
pub mod edge;
pub mod settings;
pub mod supervisor;
pub mod telemetry;
pub use trainit_rules as rules;

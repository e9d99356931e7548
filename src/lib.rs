//! The library of the program. Rules decide, edges touch, the supervisor carries facts down to the rules and orders out
//! to the edges. See ARCHITECTURE.md.

pub mod cli;
pub mod command;
pub mod edge;
pub mod settings;
pub mod supervisor;
pub mod telemetry;
pub use trainit_rules as rules;

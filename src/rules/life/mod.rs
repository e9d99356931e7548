//! The life of a job: what each run of trainit leaves about itself in the store, and what all of them tell together.
//!
//! [`run`] is one run's object, [`account`] counts what goes into it, [`report`] adds up all runs, and [`advice`] derives how
//! often to save. Deliberately absent: where the objects are, and how they are read and written.

pub mod account;
pub mod advice;
pub mod report;
pub mod run;
pub mod save_plan;
mod stall;
mod text;

//! The state of a running trainit: `trainit status`, the page, and the report.

mod command;
mod page;
mod push;
mod reported;
mod run_page;
mod runs;

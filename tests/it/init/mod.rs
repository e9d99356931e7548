//! trainit as an init: signals, the stop of the process tree, exit codes, the terminal, and limits of the machine.

mod child_state;
mod exit_codes;
mod explained_ends;
mod limits;
mod processes;
mod rare_cases;
pub mod signals;
mod stop_floods;
mod stop_order;
mod terminal;
mod tree_stop;
mod unread;

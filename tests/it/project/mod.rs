//! The project itself: command line, pages, manifests, and the walls between directories.

mod command_line;
mod documentation;
mod manifests;
mod planted_secrets;
mod printed_commands;
mod shipping;
mod states_page;
mod walls;

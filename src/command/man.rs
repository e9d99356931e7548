//! `trainit man [SUBCOMMAND]`: a manual page on standard output.

use super::refuse;
use crate::cli::Parsed;
use crate::cli::man::page;
use crate::edge::io::stdio;

/// Prints it; 125 for an unknown subcommand, 1 if standard output is closed.
pub fn main(parsed: &Parsed) -> u8 {
    let sub = parsed.operands.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    match page(&sub) {
        Some(text) => u8::from(stdio::print(&text).is_err()),
        None => refuse(&[format!("there is no manual page for {sub:?}; trainit --help lists the subcommands")]),
    }
}

//! `trainit completions SHELL`: a completion script on standard output.

use super::refuse;
use crate::cli::Parsed;
use crate::cli::completions::{SHELLS, script};
use crate::edge::io::stdio;

/// Prints it; 125 for an unsupported shell, 1 if standard output is closed.
pub fn main(parsed: &Parsed) -> u8 {
    let shell = parsed.operands.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    match script(&shell) {
        Some(text) => u8::from(stdio::print(&text).is_err()),
        None => refuse(&[format!("there are no completions for {shell:?}, only for {}", SHELLS.join(", "))]),
    }
}

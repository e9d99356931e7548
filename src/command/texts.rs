//! `trainit completions SHELL`, `trainit man [SUBCOMMAND]` and `trainit licenses`: texts on standard output.

use std::borrow::Cow;

use super::refuse;
use crate::cli::Parsed;
use crate::cli::completions::{SHELLS, script};
use crate::cli::man::page;
use crate::edge::io::stdio;

/// The built-in crates with their licences and texts. The build collects them (build/licenses.rs).
const LICENSES: &str = include_str!(concat!(env!("OUT_DIR"), "/licenses.txt"));

/// Prints the completion script; 125 for an unsupported shell, 1 if standard output is closed.
pub(super) fn completions(parsed: &Parsed) -> u8 {
    let shell = operand(parsed);
    print(script(&shell), || format!("there are no completions for {shell:?}, only for {}", SHELLS.join(", ")))
}

/// Prints the manual page; 125 for an unknown subcommand, 1 if standard output is closed.
pub(super) fn man(parsed: &Parsed) -> u8 {
    let sub = operand(parsed);
    print(page(&sub), || format!("there is no manual page for {sub:?}; trainit --help lists the subcommands"))
}

/// Prints the licences; 1 if standard output is closed.
pub(super) fn licenses() -> u8 {
    let own = concat!("trainit ", env!("CARGO_PKG_VERSION"), ", ", env!("CARGO_PKG_LICENSE"));
    let text = format!(
        "{own}\nThe following crates are built in, each under its own licence; the texts follow below, each once, by number.\n\n{LICENSES}"
    );
    u8::from(stdio::print(&text).is_err())
}

fn operand(parsed: &Parsed) -> Cow<'_, str> {
    parsed.operands.first().map(|word| word.to_string_lossy()).unwrap_or_default()
}

fn print(text: Option<String>, complaint: impl Fn() -> String) -> u8 {
    text.map_or_else(|| refuse(&[complaint()]), |text| u8::from(stdio::print(&text).is_err()))
}

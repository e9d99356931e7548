//! `trainit licenses`: the built-in crates with their licences and texts. The build collects them (build/licenses.rs).

use crate::edge::io::stdio;

const TEXT: &str = include_str!(concat!(env!("OUT_DIR"), "/licenses.txt"));

/// Prints it; 1 if standard output is closed.
pub fn main() -> u8 {
    let own = concat!("trainit ", env!("CARGO_PKG_VERSION"), ", ", env!("CARGO_PKG_LICENSE"));
    let text = format!(
        "{own}\nThe following crates are built in, each under its own licence; the texts follow below, each once, by number.\n\n{TEXT}"
    );
    u8::from(stdio::print(&text).is_err())
}

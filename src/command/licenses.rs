//! `trainit licenses`: what is compiled in, under which licence, and the texts. The build collects it (build/licenses.rs).

use crate::edge::stdio;

const TEXT: &str = include_str!(concat!(env!("OUT_DIR"), "/licenses.txt"));

/// Prints it; 1 where nobody listens.
pub fn main() -> u8 {
    let own = concat!("trainit ", env!("CARGO_PKG_VERSION"), ", ", env!("CARGO_PKG_LICENSE"));
    let text = format!(
        "{own}\nBuilt in are the following, each under its own licence; the texts stand below, each once, by number.\n\n{TEXT}"
    );
    u8::from(stdio::print(&text).is_err())
}

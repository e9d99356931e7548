//! One line of progress at the bottom of the terminal on standard error, drawn by indicatif and removed at the end. It is
//! hidden off a terminal, and where `TERM` is unset or `dumb`.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Drawings a second.
const RATE: u8 = 10;

const BYTES: &str = "[{bar:20}] {bytes} of {total_bytes} ({percent} %), {bytes_per_sec}, {eta} left";
const TEXT: &str = "{wide_msg}";

/// A bar for a transfer of bytes.
pub fn of_bytes() -> ProgressBar {
    line(BYTES)
}

/// A line of text.
pub fn of_text() -> ProgressBar {
    line(TEXT)
}

fn line(template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(RATE));
    let style = ProgressStyle::with_template(template).map(|style| style.progress_chars("##."));
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_valid() {
        for template in [BYTES, TEXT] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}

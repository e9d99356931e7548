//! The last line of a program's output, for a message about its end.

use super::quoted::shown;
use super::safe_text::printable;

/// The number of bytes that are kept.
const KEPT: usize = 2048;
/// The longest line in a message, in characters.
const LONGEST: usize = 200;

/// The end of an output.
#[derive(Debug, Default)]
pub struct LastLine(Vec<u8>);

impl LastLine {
    /// Adds output.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.0.extend(&bytes[bytes.len().saturating_sub(KEPT)..]);
        let more = self.0.len().saturating_sub(KEPT);
        self.0.drain(..more);
    }

    /// The last line that is not blank, without what may be a secret. A progress bar's carriage return ends a line, too.
    pub fn text(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.0);
        let line = text.split(['\n', '\r']).rev().map(str::trim).find(|line| !line.is_empty())?;
        let words: Vec<_> = line.split_whitespace().map(shown).collect();
        let line = printable(&words.join(" "));
        Some(match line.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}...", &line[..end]),
            None => line,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(pieces: &[&str]) -> Option<String> {
        let mut line = LastLine::default();
        pieces.iter().for_each(|piece| line.feed(piece.as_bytes()));
        line.text()
    }

    #[test]
    fn the_last_line_that_is_not_blank_is_kept_however_the_output_is_cut() {
        assert_eq!(
            last(&["Traceback\n  File\nValue", "Error: no data\n", "\n  \n"]).as_deref(),
            Some("ValueError: no data")
        );
        assert_eq!(last(&["10%\r", "20%\r"]).as_deref(), Some("20%"));
        assert_eq!(last(&["\n"]), None);
        let long = last(&[&"x ".repeat(5_000)]).expect("a line");
        assert!(long.len() < 250 && long.ends_with("..."), "{long}");
    }

    #[test]
    fn secrets_and_control_characters_are_not_shown() {
        let line =
            last(&["cannot read s3://me:secret@b/x?sig=abc with hf_AbCdEfGh1234567890\x1b[2J\n"]).expect("a line");
        assert!(!line.contains("secret") && !line.contains("sig=") && !line.contains('\x1b'), "{line}");
    }
}

//! The error that a trainer has written to the file of `TORCHELASTIC_ERROR_FILE`, in the form of PyTorch's `record`.

use serde_json::Value;

use crate::text::quoted::has_secret_place;
use crate::text::safe_text::printable;

/// The variable with the file's path.
pub const VARIABLE: &str = "TORCHELASTIC_ERROR_FILE";
/// More characters are cut.
const LONGEST: usize = 300;

/// The error in one line, as a clause for the verdict: `ValueError: no such layer`. `None` if the text is none.
pub fn clue(text: &str) -> Option<String> {
    let document: Value = serde_json::from_str(text).ok()?;
    let message = document.get("message")?;
    let message = message.get("message").unwrap_or(message).as_str()?;
    let mut lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next()?;
    // A message begins with the error, a traceback ends with it.
    let line = if first.starts_with("Traceback ") { lines.next_back().unwrap_or(first) } else { first };
    let kind = line.split(':').next().unwrap_or_default();
    let shown = if has_secret_place(line) { kind } else { line };
    Some(format!("its error: {}", printable(&shown.chars().take(LONGEST).collect::<String>())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_error_is_found_in_each_form() {
        let said = |message: &str| clue(&format!("{{\"message\": {message}}}"));
        let error = Some("its error: ValueError: no such layer".to_owned());
        assert_eq!(said(r#"{"message": "ValueError: no such layer\nmore", "extraInfo": {}}"#), error);
        assert_eq!(said(r#""Traceback (most recent call last):\n  File x\nValueError: no such layer\n""#), error);
        assert_eq!(said(r#""ValueError: no such layer""#), error);
        for text in ["", "{", "{}", "[]", r#"{"message": 7}"#, r#"{"message": " "}"#] {
            assert_eq!(clue(text), None, "{text}");
        }
    }

    #[test]
    fn a_long_error_is_cut_and_a_secret_is_left_out() {
        let long = clue(&format!("{{\"message\": \"{}\"}}", "x".repeat(5000))).expect("an error");
        assert!(long.len() <= LONGEST + 20, "{}", long.len());
        let secret = clue(r#"{"message": "IOError: https://user:hidden@host/x"}"#);
        assert_eq!(secret.as_deref(), Some("its error: IOError"));
    }
}

//! JSON as Python writes it, which knows `NaN`, `Infinity` and `-Infinity`.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::bytes::Regex;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::containers::Verdict;
use super::structure::constant;
use crate::checkpoint::listing::{Entry, Peek};

/// Longer files are judged by their last bytes: reading them at each look would take too long.
pub(in super::super) const LIMIT: u64 = 16 << 20;

/// Reads what Python's `json` writes. `NaN` and `Infinity` are read as 0: no caller needs their value.
pub fn python_json<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    static STRING_OR_WORD: LazyLock<Regex> = LazyLock::new(|| constant(r#""(?:[^"\\]|\\.)*"|NaN|Infinity"#));
    let mut plain = Cow::Borrowed(text);
    for found in STRING_OR_WORD.find_iter(text).filter(|found| !found.as_bytes().starts_with(b"\"")) {
        // As long as the word, so that places in errors are right.
        let word = &mut plain.to_mut()[found.range()];
        word.fill(b' ');
        word[0] = b'0';
    }
    serde_json::from_slice(&plain)
}

/// The same from a file of the listing; `None` where it cannot be read, is too long, or is none such.
pub(in super::super) fn read<T: DeserializeOwned>(peek: &dyn Peek, file: &Entry) -> Option<T> {
    python_json(&content(peek, file)?).ok()
}

fn content(peek: &dyn Peek, file: &Entry) -> Option<Vec<u8>> {
    if file.size > LIMIT { None } else { peek.read(&file.path, 0, file.size as usize) }
}

/// JSON to the end. Of what is too long, or no one value (a line after the other), only the last byte is looked at.
pub(in super::super) fn json(peek: &dyn Peek, file: &Entry) -> Verdict {
    let cut = || Err("its JSON is cut short".to_owned());
    if file.size <= LIMIT {
        match python_json::<IgnoredAny>(&content(peek, file).ok_or("it cannot be read")?) {
            Ok(_) => return Ok(()),
            Err(error) if error.is_eof() => return cut(),
            Err(_) => {}
        }
    }
    let tail = peek.read(&file.path, file.size.saturating_sub(64), 64).ok_or("it cannot be read")?;
    let last = tail.iter().rev().find(|byte| !byte.is_ascii_whitespace());
    if matches!(last, Some(b'}' | b']')) { Ok(()) } else { cut() }
}

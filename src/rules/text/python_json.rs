//! JSON as Python writes it, which knows `NaN`, `Infinity` and `-Infinity`.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::bytes::Regex;
use serde::de::DeserializeOwned;

/// Reads what Python's `json` writes. `NaN` and `Infinity` are read as 0: no caller needs their value.
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    static STRING_OR_WORD: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#"(?s-u)"(?:[^"\\]|\\.)*"|NaN|Infinity"#).expect("a constant expression"));
    let mut plain = Cow::Borrowed(text);
    for found in STRING_OR_WORD.find_iter(text).filter(|found| !found.as_bytes().starts_with(b"\"")) {
        // The replacement has the word's length, so that positions in errors are right.
        let word = &mut plain.to_mut()[found.range()];
        word.fill(b' ');
        word[0] = b'0';
    }
    serde_json::from_slice(&plain)
}

//! Reads and checks JSON files of a listing.

use serde::de::{DeserializeOwned, IgnoredAny};

use super::containers::Verdict;
use crate::checkpoint::listing::{Entry, Peek};
use crate::text::python_json;

/// The longest file whose values are read, in bytes.
pub(in crate::checkpoint) const LIMIT: u64 = 16 << 20;

/// The value in a JSON file. `None` if the file cannot be read, is too long or is not such a value.
pub(in crate::checkpoint) fn read<T: DeserializeOwned>(peek: &dyn Peek, file: &Entry) -> Option<T> {
    python_json::from_slice(&content(peek, file)?).ok()
}

/// Longer files, in bytes, are judged by their last byte.
const WALKED: u64 = 1 << 30;
/// Bytes read at a time.
const WINDOW: usize = 256 << 10;
/// Longest first line of JSON with one value on each line, in bytes.
const LONGEST_LINE: usize = 64 << 10;

/// Whether the file is JSON with one value on each line, as logs are, and has more than one line.
pub(in crate::checkpoint) fn has_lines(peek: &dyn Peek, file: &Entry) -> bool {
    let head = peek.read(&file.path, 0, LONGEST_LINE).unwrap_or_default();
    let Some(end) = head.iter().position(|byte| *byte == b'\n') else { return false };
    let (line, next) = head.split_at(end);
    next.iter().any(|byte| !byte.is_ascii_whitespace()) && python_json::from_slice::<IgnoredAny>(line).is_ok()
}

fn content(peek: &dyn Peek, file: &Entry) -> Option<Vec<u8>> {
    if file.size > LIMIT { None } else { peek.read(&file.path, 0, file.size as usize) }
}

/// Checks that every string, list and object of the file is closed at its end. Very long files are judged by their last
/// byte.
pub(in crate::checkpoint) fn json(peek: &dyn Peek, file: &Entry) -> Verdict {
    let cut = || Err("its JSON is cut short".to_owned());
    if file.size <= LIMIT {
        match python_json::from_slice::<IgnoredAny>(&content(peek, file).ok_or("it cannot be read")?) {
            Ok(_) => return Ok(()),
            Err(error) if error.is_eof() => return cut(),
            Err(_) => {}
        }
    }
    let tail = peek.read(&file.path, file.size.saturating_sub(64), 64).ok_or("it cannot be read")?;
    let last = tail.iter().rev().find(|byte| !byte.is_ascii_whitespace());
    let is_whole = matches!(last, Some(b'}' | b']')) && (file.size > WALKED || is_closed(peek, file)?);
    if is_whole { Ok(()) } else { cut() }
}

/// Whether the file ends outside every string, list and object.
fn is_closed(peek: &dyn Peek, file: &Entry) -> Result<bool, String> {
    let (mut depth, mut is_string, mut is_escaped, mut at) = (0_i64, false, false, 0);
    while at < file.size {
        let window =
            peek.read(&file.path, at, WINDOW).filter(|window| !window.is_empty()).ok_or("it cannot be read")?;
        for byte in &window {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' if is_string => is_escaped = true,
                b'"' => is_string = !is_string,
                b'{' | b'[' if !is_string => depth += 1,
                b'}' | b']' if !is_string => depth -= 1,
                _ => {}
            }
        }
        at += window.len() as u64;
    }
    Ok(depth == 0 && !is_string)
}

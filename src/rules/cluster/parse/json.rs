//! Reads foreign JSON: at most 1 MiB, at most 64 levels deep. The last of two equal keys wins, as in Python. Only the
//! members that are needed are parsed; the others keep their original text.
//!
//! Deliberately absent: quoting the whole document in errors. A `job` member may hold secrets, so only a piece of the
//! members that are read is shown.

use std::collections::HashMap;

use serde::de::IgnoredAny;

use crate::cluster::spec::{ClusterError, quote};
use crate::text::python_json;

/// Larger documents are refused. A reader of files may stop one byte after this.
pub const MAX_BYTES: usize = 1 << 20;
/// Deeper documents are refused.
const MAX_DEPTH: usize = 64;

/// The contents of these members may be quoted in errors.
const READ_MEMBERS: [&str; 2] = ["cluster", "task"];

/// The whitespace between tokens of JSON.
const BLANKS: [char; 4] = [' ', '\t', '\n', '\r'];

/// An object's members in their original order and text.
#[derive(Debug, Default)]
pub struct Members(Vec<Member>);

#[derive(Debug)]
struct Member {
    name: String,
    written: String,
    value: String,
}

impl Members {
    /// The raw text of a member's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|member| member.name == name).map(|member| member.value.as_str())
    }

    /// Names and raw values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|member| (member.name.as_str(), member.value.as_str()))
    }

    /// Names in their original text with quotes, and raw values, in order.
    pub fn written(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|member| (member.written.as_str(), member.value.as_str()))
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads a document that must be an object. Errors: `invalid_json`, `not_an_object`.
pub fn object(variable: &str, text: &str) -> Result<Members, ClusterError> {
    check(variable, text)?;
    match kind(text) {
        "an object" => {}
        other => {
            let message = format!("expected a JSON object, found {other}; correct or remove it");
            return Err(ClusterError::new("not_an_object", variable, message));
        }
    }
    Ok(members(text).unwrap_or_default())
}

/// Checks that the document is JSON as Python reads it, within the limits. Errors: `invalid_json`.
pub fn check(variable: &str, text: &str) -> Result<(), ClusterError> {
    let invalid = |message: String| Err(ClusterError::new("invalid_json", variable, message));
    if text.len() > MAX_BYTES {
        return invalid(format!("larger than {MAX_BYTES} bytes, which no cluster needs; check its content"));
    }
    if depth(text) > MAX_DEPTH {
        return invalid(format!("nested deeper than {MAX_DEPTH} levels, which no cluster needs"));
    }
    match python_json::from_slice::<IgnoredAny>(text.as_bytes()) {
        Ok(_) => Ok(()),
        Err(error) => Err(broken(variable, text, &error)),
    }
}

/// The members of a value that was checked before; `None` if it is not an object.
pub fn members(raw: &str) -> Option<Members> {
    if kind(raw) != "an object" {
        return None;
    }
    let mut found: Vec<Member> = Vec::new();
    let mut seen = HashMap::new();
    let (mut depth, mut start) = (0, 0);
    structure(raw, |byte, at| {
        match byte {
            b'{' | b'[' => depth += 1,
            b',' => {}
            _ => depth -= 1,
        }
        if let (b',', 1) | (_, 0) = (byte, depth)
            && let Some(member) = member(&raw[start..at])
        {
            match seen.get(&member.name) {
                Some(first) => found[*first] = member,
                None => {
                    seen.insert(member.name.clone(), found.len());
                    found.push(member);
                }
            }
        }
        if depth == 1 && matches!(byte, b'{' | b',') {
            start = at + 1;
        }
    });
    Some(Members(found))
}

/// `"name" : value`; `None` between the brackets of an empty object.
fn member(text: &str) -> Option<Member> {
    let text = text.trim_matches(BLANKS);
    let mut escaped = true;
    let end = text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    let (written, rest) = text.split_at(end + 1);
    // A name with half of a surrogate pair has no form in Rust, and is none of the names that are read.
    let name = serde_json::from_str(written).unwrap_or_else(|_| written.to_owned());
    let value = rest.trim_start_matches(BLANKS).strip_prefix(':')?.trim_start_matches(BLANKS);
    Some(Member { name, written: written.to_owned(), value: value.to_owned() })
}

/// The parsed form of a value that was checked before; `None` for numbers and escapes without a form in Rust.
pub fn value(raw: &str) -> Option<serde_json::Value> {
    serde_json::from_str(raw).ok()
}

/// The type of a value, in words.
pub fn kind(raw: &str) -> &'static str {
    match raw.trim_start_matches(BLANKS).bytes().next() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "true or false",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// The deepest nesting. Brackets in strings do not count.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0usize);
    structure(text, |byte, _| match byte {
        b'{' | b'[' => {
            depth += 1;
            deepest = deepest.max(depth);
        }
        b',' => {}
        _ => depth = depth.saturating_sub(1),
    });
    deepest
}

/// Calls for every bracket and comma outside strings, with its offset.
fn structure(text: &str, mut each: impl FnMut(u8, usize)) {
    let (mut in_string, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' | b'}' | b']' | b',' if !in_string => each(byte, at),
            _ => {}
        }
    }
}

fn broken(variable: &str, text: &str, error: &serde_json::Error) -> ClusterError {
    let line_start: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    let mut at = (line_start + error.column().saturating_sub(1)).min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let found = match showable(text, at) {
        0 => String::new(),
        chars => match text[at..].chars().take(chars).collect::<String>() {
            piece if piece.trim().is_empty() => ", at its end".to_owned(),
            piece => format!(", at {}", quote(&piece)),
        },
    };
    let hint = if text.trim_start().starts_with("{'") {
        "this looks like Python's repr: write it with json.dumps"
    } else {
        "write it with a JSON library"
    };
    let message = format!("not JSON: line {} column {}{found}; {hint}", error.line(), error.column());
    ClusterError::new("invalid_json", variable, message)
}

/// The number of characters from `at` that may be shown: many within members that are read, few before the first
/// member, none within other members.
fn showable(text: &str, at: usize) -> usize {
    let before = &text[..at];
    let mut depth = 0usize;
    let mut last_at_top = 0;
    structure(before, |byte, offset| {
        match byte {
            b'{' | b'[' => depth += 1,
            b',' => {}
            _ => depth = depth.saturating_sub(1),
        }
        if depth == 1 && matches!(byte, b'{' | b',') {
            last_at_top = offset + 1;
        }
    });
    let member = before.get(last_at_top..).unwrap_or_default();
    let key = member.trim_start_matches(BLANKS).strip_prefix('"').and_then(|k| k.split_once('"'));
    match key {
        Some((key, _)) if READ_MEMBERS.contains(&key) => 40,
        Some(_) => 0,
        None => 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> &'static str {
        object("X", text).map_or_else(|e| e.code, |_| "")
    }

    #[test]
    fn the_last_of_two_equal_keys_wins() {
        let members = object("X", r#"{"a":1,"b":2,"a":3}"#).expect("an object");
        assert_eq!((members.get("a"), members.get("b")), (Some("3"), Some("2")));
        assert_eq!(members.iter().count(), 2);
    }

    #[test]
    fn sixty_four_levels_are_read_and_sixty_five_are_not() {
        let nested = |levels: usize| format!("{{\"a\":{}1{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1));
        assert_eq!(code(&nested(64)), "");
        assert_eq!(code(&nested(65)), "invalid_json");
        assert_eq!(code(&"[".repeat(500_000)), "invalid_json");
    }

    #[test]
    fn brackets_in_strings_do_not_nest() {
        assert_eq!(code(&format!("{{\"a\":\"{}\\\"{}\"}}", "[".repeat(100), "{".repeat(100))), "");
    }

    #[test]
    fn more_than_a_mebibyte_is_refused() {
        assert_eq!(code(&format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_BYTES))), "invalid_json");
    }

    #[test]
    fn a_value_that_is_not_an_object_is_reported_with_its_type() {
        for (text, kind) in [("[]", "an array"), ("null", "null"), (" \"x\"", "a string"), ("1", "a number")] {
            let error = object("X", text).expect_err(text);
            assert!(error.code == "not_an_object" && error.message.contains(kind), "{error}");
        }
        let error = object("/opt/ml/input/config/resourceconfig.json", "[]").expect_err("an array");
        assert!(!error.message.contains("unset"), "it may be a file: {error}");
    }

    #[test]
    fn an_error_within_job_shows_nothing_of_it() {
        for text in [
            r#"{"job":{"password" "hunter2"},"cluster":{}}"#,
            r#"{"cluster":{"worker":["a:1"]},"job":"hunter2" "hunter2"}"#,
            r#"{"job":hunter2}"#,
            r#"{"task":1,"job":hunter2}"#,
        ] {
            let error = object("X", text).expect_err(text);
            assert!(error.code == "invalid_json" && !error.message.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn an_error_within_the_cluster_shows_the_place() {
        let error = object("X", r#"{"cluster":{"worker":['a:1']}}"#).expect_err("single quotes");
        assert!(error.message.contains("'a:1'"), "{error}");
        let error = object("X", "{'cluster': 1}").expect_err("repr");
        assert!(error.message.contains("json.dumps"), "{error}");
    }

    #[test]
    fn a_value_that_only_python_reads_keeps_its_text() {
        let text = r#"{ "job" : [NaN, -Infinity, {"x": Infinity}] ,"\ud800":1, "a\"}":{}, "c\u006custer": {"b" :2} }"#;
        let members = object("X", text).expect("an object");
        let written: Vec<_> = members.written().collect();
        let expected = [
            (r#""job""#, r#"[NaN, -Infinity, {"x": Infinity}]"#),
            (r#""\ud800""#, "1"),
            (r#""a\"}""#, "{}"),
            (r#""c\u006custer""#, r#"{"b" :2}"#),
        ];
        assert_eq!(written, expected);
        assert_eq!(members.get("cluster"), Some(r#"{"b" :2}"#));
        assert_eq!(code(r#"{"job": nan}"#), "invalid_json");
        assert!(object("X", "{ }").expect("an object").is_empty());
    }

    #[test]
    fn numbers_too_large_for_any_type_keep_their_text() {
        let members = object("X", r#"{"job":1e999,"s":"\ud800"}"#).expect("an object");
        assert_eq!(members.get("job"), Some("1e999"));
    }
}

//! Reads many reports from text, one for each line: `tag value [step]`, or a JSON object with `tag`, `value` (number or
//! string), `step` and `checkpoint_path`. An example: `{"tag": "loss", "value": 0.3, "step": 10}`.
//!
//! An invalid line is reported, and does not affect the other lines.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::metric::foreign_text::number::{parse_any_step, parse_float, parse_step};
use crate::metric::report::line::Report;
use crate::text::safe_text::counted;

/// The limit for mistakes that are listed; the rest are counted.
const MISTAKES_SHOWN: usize = 10;

/// The limit for the length of a line.
pub const LONGEST_LINE_BYTES: usize = 1 << 20;

/// Reads every line. Blank lines are skipped. `tag` is the tag of objects without one. Returns the reports and one text
/// for each invalid line, with its number. Line numbers start at `before` + 1.
pub fn parse(text: &[u8], tag: &str, before: usize) -> (Vec<Report>, Vec<String>) {
    let mut reports = Vec::new();
    let mut mistakes = Vec::new();
    let mut unnamed = 0;
    for (at, line) in text.split(|b| *b == b'\n').enumerate() {
        match one(line, tag) {
            Ok(Some(report)) => reports.push(report),
            Ok(None) => {}
            Err(message) if mistakes.len() < MISTAKES_SHOWN => {
                mistakes.push(format!("line {}: {message}", before + at + 1))
            }
            Err(_) => unnamed += 1,
        }
    }
    if unnamed > 0 {
        let are = if unnamed == 1 { "is" } else { "are" };
        mistakes.push(format!("{} {are} wrong", counted(unnamed, "more line")));
    }
    (reports, mistakes)
}

/// Reads one line; `None` if it is blank.
fn one(line: &[u8], tag: &str) -> Result<Option<Report>, String> {
    if line.len() > LONGEST_LINE_BYTES {
        return Err("longer than 1 MiB".to_owned());
    }
    let line =
        std::str::from_utf8(line).map_err(|_| "not UTF-8; expected `tag value [step]` or a JSON object".to_owned())?;
    let line = line.trim();
    if line.is_empty() {
        return Ok(None);
    }
    if line.starts_with('{') {
        return object(line, tag).map(Some);
    }
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (tag, value, step) = match fields[..] {
        [tag, value] => (tag, value, ""),
        [tag, value, step] => (tag, value, step),
        _ => {
            let found = counted(fields.len(), "field");
            return Err(format!("{found}; expected `tag value [step]` or a JSON object"));
        }
    };
    Report::parse(tag, value, step, "").map(Some).map_err(|wrong| wrong.to_string())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Object<'a> {
    #[serde(borrow)]
    tag: Option<Cow<'a, str>>,
    /// Kept as text: a JSON library does not always round floats to the nearest, and cannot hold a large step.
    #[serde(borrow)]
    value: &'a RawValue,
    #[serde(borrow)]
    step: Option<&'a RawValue>,
    #[serde(borrow)]
    checkpoint_path: Option<Cow<'a, str>>,
}

fn object(line: &str, tag: &str) -> Result<Report, String> {
    let text = with_constants_quoted(line);
    let object: Object<'_> = serde_json::from_str(&text)
        .map_err(|e| format!("not a JSON object with tag, value, step and checkpoint_path: {e}"))?;
    let value = match scalar(object.value.get()) {
        Some(value) => parse_float(&value),
        None => None,
    };
    let value = value.ok_or_else(|| format!("the value {} is not a number", object.value))?;
    let step = match object.step.map(|raw| (raw.get(), scalar(raw.get()))) {
        None => Some("0".to_owned()),
        Some((raw, Some(text))) if raw.starts_with('"') => parse_step(&text),
        // A float is truncated, as the library does.
        Some((_, Some(text))) => parse_any_step(&text),
        Some((_, None)) => None,
    };
    let step = step.ok_or_else(|| {
        format!("the step {} is not a whole number", object.step.map(RawValue::get).unwrap_or_default())
    })?;
    let tag = object.tag.as_deref().filter(|t| !t.is_empty()).unwrap_or(tag);
    Report::new(tag, value, step, object.checkpoint_path.as_deref().unwrap_or_default())
        .map_err(|wrong| wrong.to_string())
}

/// The text of a JSON string or number; `None` for any other value.
pub(in crate::metric) fn scalar(raw: &str) -> Option<Cow<'_, str>> {
    match raw.as_bytes().first()? {
        b'"' => serde_json::from_str(raw).ok().map(Cow::Owned),
        b'-' | b'0'..=b'9' => Some(Cow::Borrowed(raw)),
        _ => None,
    }
}

/// Python's `json.dumps` writes bare `NaN`, `Infinity` and `-Infinity`, which are not JSON. This puts them in quotes.
pub(in crate::metric) fn with_constants_quoted(line: &str) -> Cow<'_, str> {
    if !line.contains("NaN") && !line.contains("Infinity") {
        return Cow::Borrowed(line);
    }
    let mut quoted = String::with_capacity(line.len() + 8);
    let mut rest = line;
    let mut in_string = false;
    while let Some(c) = rest.chars().next() {
        let constant = ["NaN", "Infinity", "-Infinity"].into_iter().find(|word| !in_string && rest.starts_with(word));
        let taken = match constant {
            Some(word) => {
                quoted.extend(["\"", word, "\""]);
                word.len()
            }
            None => {
                // An escape is two characters, so `\"` does not end the string.
                let taken =
                    if in_string && c == '\\' { rest.chars().take(2).map(char::len_utf8).sum() } else { c.len_utf8() };
                in_string ^= c == '"';
                quoted.push_str(&rest[..taken]);
                taken
            }
        };
        rest = &rest[taken..];
    }
    Cow::Owned(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn report(tag: &str, value: f64, step: &str, checkpoint_path: &str) -> Report {
        Report::new(tag, value, step.to_owned(), checkpoint_path).expect("a good report")
    }

    #[track_caller]
    fn reads(text: &str, expected: Report) {
        assert_eq!(parse(text.as_bytes(), "standard", 0), (vec![expected], vec![]), "{text}");
    }

    #[track_caller]
    fn refuses(text: &str, because: &str) {
        let (reports, mistakes) = parse(text.as_bytes(), "", 0);
        assert!(mistakes.len() == 1 && mistakes[0].contains(because), "{text}: {mistakes:?}");
        assert_eq!(reports, [], "{text}");
    }

    #[test]
    fn both_forms_may_be_mixed_and_blank_lines_are_skipped() {
        let text = "loss 0.5 3\r\n\n{\"tag\": \"acc\", \"value\": 0.25}\n  \nloss\t-1e-5";
        let expected = vec![report("loss", 0.5, "3", ""), report("acc", 0.25, "0", ""), report("loss", -1e-5, "0", "")];
        assert_eq!(parse(text.as_bytes(), "", 0), (expected, vec![]));
    }

    #[test]
    fn empty_text_has_no_report() {
        assert_eq!(parse(b"\n \n", "", 0), (vec![], vec![]));
    }

    #[test]
    fn an_object_may_have_numbers_or_strings() {
        reads(r#"{"value": "1e-5", "step": "007"}"#, report("standard", 1e-5, "7", ""));
        reads(r#"{"value": 1e400, "tag": "", "step": null}"#, report("standard", f64::INFINITY, "0", ""));
        reads(r#"{"value": 1, "step": 9223372036854775808}"#, report("standard", 1.0, "9223372036854775808", ""));
        reads(r#"{"value": 1, "step": 3.9, "checkpoint_path": "a\"b"}"#, report("standard", 1.0, "3", "a\"b"));
        reads(r#"{"value": 1, "step": 1e3, "checkpoint_path": null}"#, report("standard", 1.0, "1000", ""));
        reads(r#"{"tag": "é\u00e9", "value": 2}"#, report("éé", 2.0, "0", ""));
    }

    #[test]
    fn a_json_number_is_rounded_to_the_nearest_float() {
        reads(r#"{"value": 9007199254740993.0000001}"#, report("standard", 9007199254740994.0, "0", ""));
        reads(r#"{"value": 122.416294033786585}"#, report("standard", 122.41629403378658, "0", ""));
    }

    #[test]
    fn pythons_bare_constants_are_values() {
        reads(r#"{"tag": "NaN \"NaN", "value": -Infinity}"#, report("NaN \"NaN", f64::NEG_INFINITY, "0", ""));
        let (nan, mistakes) = parse(br#"{"value": NaN}"#, "t", 0);
        assert!(nan[0].value.is_nan() && mistakes.is_empty());
    }

    #[test]
    fn the_mistakes_beyond_the_tenth_are_counted() {
        let last = |lines: usize| parse("x\n".repeat(lines).as_bytes(), "", 0).1.pop();
        assert_eq!(last(11).as_deref(), Some("1 more line is wrong"));
        assert_eq!(last(12).as_deref(), Some("2 more lines are wrong"));
    }

    #[test]
    fn an_invalid_line_is_refused_with_the_reason() {
        refuses("loss", "1 field;");
        refuses("loss 1 2 3", "4 fields");
        refuses("loss abc", "\"abc\" is not a number");
        refuses("loss 1 1.5", "\"1.5\" is not a whole number");
        refuses("timestamp 1", "choose another tag");
        refuses(r#"{"tag": "a"}"#, "value");
        refuses(r#"{"value": true}"#, "the value true is not a number");
        refuses(r#"{"value": "0x10"}"#, "is not a number");
        refuses(r#"{"value": 1, "step": "1e3"}"#, "is not a whole number");
        refuses(r#"{"value": 1, "step": NaN}"#, "is not a whole number");
        refuses(r#"{"value": 1, "step": [1]}"#, "is not a whole number");
        refuses(r#"{"value": 1, "global_step": 1}"#, "global_step");
        refuses(r#"{"tag": "a", "value": 1"#, "not a JSON object");
        refuses(r#"{"tag": "global_step", "value": 1}"#, "choose another tag");
        refuses(&format!("loss {}", "1".repeat(LONGEST_LINE_BYTES)), "longer than 1 MiB");
        let (good, mistakes) = parse(b"a 1\n\xff 1\nb 2\n", "", 40);
        assert!(mistakes[0].starts_with("line 42: not UTF-8"), "{mistakes:?}");
        assert_eq!(good, [report("a", 1.0, "0", ""), report("b", 2.0, "0", "")]);
    }

    #[test]
    fn every_mistake_is_named_up_to_a_limit() {
        let (_, mistakes) = parse("a x\n".repeat(25).as_bytes(), "", 0);
        assert_eq!(mistakes.len(), MISTAKES_SHOWN + 1);
        assert!(mistakes[9].starts_with("line 10:") && mistakes[10].starts_with("15 more"), "{mistakes:?}");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>(), text in "[{}\"\\\\:,a-zN0-9\\n -]*") {
            let _ = (parse(&bytes, "", 0), parse(text.as_bytes(), "", 0), with_constants_quoted(&text));
        }
    }
}

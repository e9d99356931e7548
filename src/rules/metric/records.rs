//! Measurements in the lines of a file that a trainer writes for machines: a JSON object, or `name=value` here and there.
//! `step` or `global_step` is the step of all that the line says. Examples:
//! `{"loss": 0.3, "acc": "0.9", "step": 10}`, `{"tag": "loss", "value": 0.3, "step": 10}`, `step=10 loss=0.3, acc = 0.9`.
//!
//! Deliberately absent: nested objects and lists, which are no measurements, and what names no metric (`timestamp`, `trial`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::batch::{scalar, with_constants_quoted};
use super::number::{parse_float, parse_step, whole};
use super::pattern::Found;

/// A longer line is no record.
pub const LONGEST_LINE_BYTES: usize = 1 << 20;

/// What says the step of a line.
const STEPS: [&str; 3] = ["step", "global_step", "_step"];

/// What every line of the hypertune file has, and logs of others: no metric.
const NO_METRICS: [&str; 5] = ["timestamp", "trial", "checkpoint_path", "_timestamp", "_runtime"];

/// Cuts a file into lines; its bytes come in pieces of any size.
#[derive(Debug, Default)]
pub struct Lines {
    rest: Vec<u8>,
    /// The line is too long to be a record.
    too_long: bool,
}

impl Lines {
    /// Takes the next bytes and tells of each line that they finish, its end aside.
    pub fn feed(&mut self, mut bytes: &[u8], mut tell: impl FnMut(&[u8])) {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            self.hold(&bytes[..end]);
            bytes = &bytes[end + 1..];
            self.finish(&mut tell);
        }
        self.hold(bytes);
    }

    /// There will be no more of this line.
    pub fn finish(&mut self, mut tell: impl FnMut(&[u8])) {
        let line = self.rest.strip_suffix(b"\r").unwrap_or(&self.rest);
        if !self.too_long && !line.is_empty() {
            tell(line);
        }
        self.rest.clear();
        self.too_long = false;
    }

    fn hold(&mut self, bytes: &[u8]) {
        self.too_long |= self.rest.len() + bytes.len() > LONGEST_LINE_BYTES;
        if self.too_long {
            self.rest = Vec::new();
        } else {
            self.rest.extend_from_slice(bytes);
        }
    }
}

/// Every measurement of a line. Errors: what was begun as a JSON object and is none.
pub fn read(line: &[u8]) -> Result<Vec<Found>, String> {
    let Ok(line) = std::str::from_utf8(line) else { return Ok(Vec::new()) };
    let line = line.trim();
    let mut pairs: Vec<(Cow<'_, str>, Cow<'_, str>)> = Vec::new();
    if line.starts_with('{') {
        let quoted = with_constants_quoted(line);
        let object: BTreeMap<Cow<'_, str>, &RawValue> =
            serde_json::from_str(&quoted).map_err(|error| format!("no JSON object: {error}"))?;
        for (name, raw) in object {
            if let Some(text) = scalar(raw.get()) {
                pairs.push((name, text.into_owned().into()));
            }
        }
        if let (Some(tag), Some(value)) = (text_of(&pairs, "tag"), text_of(&pairs, "value")) {
            let step = STEPS.into_iter().find_map(|name| Some((name.into(), text_of(&pairs, name)?)));
            pairs = [(tag, value)].into_iter().chain(step).collect();
        }
    } else {
        pairs.extend(assignments(line));
    }
    let step = STEPS.into_iter().find_map(|name| text_of(&pairs, name)).and_then(|text| {
        let text = text.trim();
        // Some log 3.0.
        parse_step(text).filter(|_| !text.is_empty()).or_else(|| whole(parse_float(text)?))
    });
    let is_metric = |name: &str| !name.is_empty() && !STEPS.contains(&name) && !NO_METRICS.contains(&name);
    let found = pairs.into_iter().filter(|(name, _)| is_metric(name)).filter_map(|(name, value)| {
        Some(Found { tag: Some(name.into_owned()), value: parse_float(&value)?, step: step.clone(), time: None })
    });
    Ok(found.collect())
}

fn text_of<'a>(pairs: &[(Cow<'_, str>, Cow<'a, str>)], name: &str) -> Option<Cow<'a, str>> {
    pairs.iter().find(|(other, _)| other == name).map(|(_, text)| text.clone())
}

/// Each `name=value` or `name = value`; white space, commas and semicolons separate.
fn assignments(line: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    let is_between = |c: char| c.is_whitespace() || c == ',' || c == ';';
    line.match_indices('=').filter_map(move |(at, _)| {
        let name = line[..at].trim_end().rsplit(is_between).next()?;
        let value = line[at + 1..].trim_start().split(is_between).next()?;
        (!name.contains('=')).then(|| (name.into(), value.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(line: &str) -> Vec<(String, f64, Option<String>)> {
        let found = read(line.as_bytes()).expect(line);
        found.into_iter().map(|f| (f.tag.unwrap_or_default(), f.value, f.step)).collect()
    }

    fn of(tag: &str, value: f64, step: &str) -> (String, f64, Option<String>) {
        (tag.to_owned(), value, (!step.is_empty()).then(|| step.to_owned()))
    }

    #[test]
    fn a_line_of_nothing_but_its_end_is_none() {
        let mut lines = Lines::default();
        lines.feed(b"\r\n\na=1\r\n\r", |line| assert_eq!(line, b"a=1"));
        lines.finish(|line| panic!("{line:?}"));
    }

    #[test]
    fn an_object_says_each_of_its_numbers_with_its_step() {
        assert_eq!(all(r#"{"loss": 0.25, "acc": "0.5", "step": 10}"#), [of("acc", 0.5, "10"), of("loss", 0.25, "10")]);
        assert_eq!(all(r#"{"tag": "loss", "value": 1e-5, "step": "007"}"#), [of("loss", 1e-5, "7")]);
        assert_eq!(all(r#"{"loss": NaN, "_step": 3.0}"#).len(), 1);
        assert_eq!(all(r#"{"value": 1, "tag": null}"#), [of("value", 1.0, "")]);
        assert_eq!(all(r#"{"a": {"b": 1}, "c": [1], "d": true, "e": null, "f": "x", "g": 1}"#), [of("g", 1.0, "")]);
    }

    #[test]
    fn a_line_of_the_hypertune_file_is_understood() {
        let line =
            r#"{"checkpoint_path": "", "global_step": "3", "loss": "0.5", "timestamp": 1700000000.5, "trial": "0"}"#;
        assert_eq!(all(line), [of("loss", 0.5, "3")]);
    }

    #[test]
    fn assignments_are_found_between_other_words() {
        assert_eq!(all("epoch 1: loss=0.5, acc = 0.75; step=12\r"), [of("loss", 0.5, "12"), of("acc", 0.75, "12")]);
        assert_eq!(all("Validation-accuracy=0.9 lr=1e-05"), [of("Validation-accuracy", 0.9, ""), of("lr", 1e-5, "")]);
        assert_eq!(all("a==1 =2 x= y=z path=/a=b"), []);
        assert_eq!(all("nothing here"), []);
    }

    #[test]
    fn what_was_begun_as_an_object_and_is_none_is_an_error() {
        assert!(read(b"{\"loss\": 0.").is_err_and(|error| error.contains("no JSON object")));
        assert_eq!(read(b"\xff loss=1"), Ok(vec![]));
    }

    #[test]
    fn lines_come_out_whole_however_they_are_cut() {
        for size in [1, 2, 3, 100] {
            let mut lines = Lines::default();
            let mut all = Vec::new();
            b"one\ntwo\r\n\nthree".chunks(size).for_each(|piece| lines.feed(piece, |line| all.push(line.to_vec())));
            assert_eq!(all, [b"one", b"two"]);
            lines.finish(|line| all.push(line.to_vec()));
            assert_eq!(all.last().map(Vec::as_slice), Some(&b"three"[..]));
        }
    }

    #[test]
    fn a_line_without_end_takes_no_memory_and_hides_no_other() {
        let mut lines = Lines::default();
        let mut all = Vec::new();
        for _ in 0..40 {
            lines.feed(&[b'x'; 100_000], |line| all.push(line.to_vec()));
            assert!(lines.rest.capacity() <= 2 * LONGEST_LINE_BYTES);
        }
        lines.feed(b"\nnext\n", |line| all.push(line.to_vec()));
        assert_eq!(all, [b"next"]);
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(bytes in any::<Vec<u8>>(), text in "[{}\"a=, :0-9.N-]{0,30}") {
            let _ = (read(&bytes), read(text.as_bytes()));
        }
    }
}

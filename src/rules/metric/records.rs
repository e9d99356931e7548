//! Measurements in the lines of a file that a trainer writes for machines: a JSON object, or `name=value` here and there.
//! `step` or `global_step` is the step of all that the line says. Examples:
//! `{"loss": 0.3, "acc": "0.9", "step": 10}`, `{"tag": "loss", "value": 0.3, "step": 10}`, `step=10 loss=0.3, acc = 0.9`.
//!
//! Deliberately absent: nested objects and lists, which are no measurements, and what names no metric (`timestamp`, `trial`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::batch::{scalar, with_constants_quoted};
use super::line::shown;
use super::number::{parse_any_step, parse_float};
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
    /// Of a line that is too long to be a record only so much that this is seen.
    rest: Vec<u8>,
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
        if !line.is_empty() {
            tell(line);
        }
        self.rest.clear();
    }

    fn hold(&mut self, bytes: &[u8]) {
        let room = LONGEST_LINE_BYTES + 1 - self.rest.len();
        self.rest.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// What is left out, such as `a line`, and why.
pub type LeftOut = (&'static str, String);

/// Every measurement of a line, and what of it cannot be read.
pub fn read(line: &[u8]) -> (Vec<Found>, Option<LeftOut>) {
    let mut left_out = None;
    let found = measurements(line, &mut left_out).unwrap_or_else(|what| {
        left_out = Some(what);
        Vec::new()
    });
    (found, left_out)
}

/// Errors: what is wrong with the line as a whole.
fn measurements(line: &[u8], left_out: &mut Option<LeftOut>) -> Result<Vec<Found>, LeftOut> {
    if line.len() > LONGEST_LINE_BYTES {
        return Err((
            "a long line",
            "more than 1 MiB are no record; have the trainer write its metrics in lines of their own".into(),
        ));
    }
    let line = std::str::from_utf8(line).map_err(|_| {
        ("a line in another encoding", "it is not UTF-8; have the trainer write the file in UTF-8".to_owned())
    })?;
    // Some begin a file with a byte order mark.
    let line = line.trim_start_matches('\u{feff}').trim();
    let mut pairs: Vec<(Cow<'_, str>, Cow<'_, str>)> = Vec::new();
    if line.starts_with('{') {
        let quoted = with_constants_quoted(line);
        let object: BTreeMap<Cow<'_, str>, &RawValue> =
            serde_json::from_str(&quoted).map_err(|error| ("a line", format!("no JSON object: {error}")))?;
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
    let step = STEPS.into_iter().find_map(|name| text_of(&pairs, name));
    if let Some(step) = step.as_deref().filter(|step| is_list(step)) {
        return Err((
            "a line",
            format!("its step {:?} is no number; have the trainer write it without commas", shown(step)),
        ));
    }
    let step = step.and_then(|text| parse_any_step(&text));
    let is_metric = |name: &str| !name.is_empty() && !STEPS.contains(&name) && !NO_METRICS.contains(&name);
    let found = pairs.into_iter().filter(|(name, _)| is_metric(name)).filter_map(|(name, value)| {
        if is_list(&value) {
            let why = format!("{name}={} is no number; have the trainer write it without commas", shown(&value));
            left_out.get_or_insert(("a value in a line", why));
        }
        Some(Found { tag: Some(name.into_owned()), value: parse_float(&value)?, step: step.clone(), time: None })
    });
    Ok(found.collect())
}

fn text_of<'a>(pairs: &[(Cow<'_, str>, Cow<'a, str>)], name: &str) -> Option<Cow<'a, str>> {
    pairs.iter().find(|(other, _)| other == name).map(|(_, text)| text.clone())
}

/// `1,234.5`, `0,5` or `1,2`: whatever it is, its first part is not the value.
fn is_list(value: &str) -> bool {
    value.contains(',') && value.bytes().all(|b| b.is_ascii_digit() || b"+-.,eE_".contains(&b))
}

/// Each `name=value` or `name = value`; white space, semicolons and commas separate, but for a comma before a digit.
fn assignments(line: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    let is_between = |c: char| c.is_whitespace() || c == ',' || c == ';';
    line.match_indices('=').filter_map(move |(at, _)| {
        let name = line[..at].trim_end().rsplit(is_between).next()?;
        let rest = line[at + 1..].trim_start();
        let value = rest.split(is_between).next()?;
        let word = rest.split(|c: char| c.is_whitespace() || c == ';').next()?;
        let goes_on =
            word[value.len()..].strip_prefix(',').is_some_and(|more| more.starts_with(|c: char| c.is_ascii_digit()));
        let value = if goes_on && !word.contains('=') { word.trim_end_matches(',') } else { value };
        (!name.contains('=')).then(|| (name.into(), value.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(line: &str) -> Vec<(String, f64, Option<String>)> {
        let (found, left_out) = read(line.as_bytes());
        assert_eq!(left_out, None, "{line}");
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
        assert!(why(b"{\"loss\": 0.").contains("no JSON object"));
    }

    /// Of a line of which nothing is read.
    #[track_caller]
    fn why(line: &[u8]) -> String {
        let (found, left_out) = read(line);
        assert_eq!(found, []);
        left_out.expect("something is left out").1
    }

    #[test]
    fn a_line_that_cannot_be_read_is_told_of() {
        assert!(why(b"\xff loss=1").contains("not UTF-8"));
        let mut lines = Lines::default();
        let mut told = Vec::new();
        lines.feed(&[&vec![b'x'; 2 * LONGEST_LINE_BYTES][..], b" loss=1\nloss=2\n"].concat(), |line| {
            told.push(read(line))
        });
        assert!(told[0].0.is_empty() && told[0].1.as_ref().is_some_and(|(_, why)| why.contains("1 MiB")));
        assert_eq!((told[1].0.len(), &told[1].1), (1, &None));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_record() {
        assert_eq!(all("\u{feff}{\"loss\": 0.5}"), [of("loss", 0.5, "")]);
        assert_eq!(all("\u{feff}loss=0.5"), [of("loss", 0.5, "")]);
    }

    #[test]
    fn a_number_with_commas_is_not_read_by_its_first_part() {
        for value in ["1,234.5", "1,234,567", "0,5", "-1,5,"] {
            let (found, left_out) = read(format!("acc=0.5 loss={value} f1=0.25").as_bytes());
            assert_eq!(found.len(), 2, "{value}: {found:?}");
            assert!(
                left_out.is_some_and(|(what, why)| what == "a value in a line" && why.contains("loss=")),
                "{value}"
            );
        }
        assert!(why(b"step=1,000 loss=0.5").contains("step"));
        assert!(why(b"{\"loss\": \"1,234.5\"}").contains("loss"));
        assert_eq!(all("a=1,b=2,5shot=3"), [of("a", 1.0, ""), of("b", 2.0, ""), of("5shot", 3.0, "")]);
        assert_eq!(all("size=1,234.5MB loss=1"), [of("loss", 1.0, "")]);
    }

    #[test]
    fn a_step_is_one_in_any_notation() {
        for step in ["100", "1e2", "100.0", "100.9"] {
            assert_eq!(all(&format!("loss=1 step={step}")), [of("loss", 1.0, "100")]);
            assert_eq!(all(&format!("{{\"loss\": 1, \"step\": \"{step}\"}}")), [of("loss", 1.0, "100")]);
        }
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
        assert!(all.len() == 2 && all[0].len() == LONGEST_LINE_BYTES + 1 && all[1] == b"next");
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(bytes in any::<Vec<u8>>(), text in "[{}\"a=, :0-9.N-]{0,30}") {
            let _ = (read(&bytes), read(text.as_bytes()));
        }
    }
}

//! Reads measurements in a file that a trainer writes: JSON objects, a table with a header ([`crate::metric::files::csv`]), or text
//! with names and values ([`crate::metric::files::pairs`]). Examples: `{"loss": 0.3, "acc": "0.9", "step": 10}`, `{"tag": "loss",
//! "value": 0.3, "step": 10}`, `step=10 loss=0.3, acc = 0.9`, `Epoch 3/10 - loss: 0.3`.
//!
//! A number after one of the names of steps is the step of the whole line. A line without a step gets the step of the
//! last line that had one. Deliberately absent: nested objects and lists, which are not measurements, and names that
//! are not metrics (`timestamp`, `trial`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;

use crate::metric::files::csv::{self, Csv};
use crate::metric::files::pairs::{Pair, pairs};
use crate::metric::foreign_text::text::{clean, is_end, is_plain};
use crate::metric::foreign_text::value::{step, value};
use crate::metric::output::pattern::{Found, Pattern};
use crate::metric::report::batch::{scalar, with_constants_quoted};
use crate::metric::report::line::shown;

/// Longer lines are skipped.
pub const LONGEST_LINE_BYTES: usize = 1 << 20;

/// The names of the step if the user gives none; the first one in a line counts.
pub const STEPS: [&str; 3] = ["step", "global_step", "_step"];

/// Names that are not metrics, in the lines of the metrics file and in other logs.
const NOT_METRICS: [&str; 5] = ["timestamp", "trial", "checkpoint_path", "_timestamp", "_runtime"];

/// The limits for remembered names and for remarks.
const MOST_NAMES: usize = 1000;
const MOST_REMARKS: usize = 20;

/// Longer names are not remembered.
const LONGEST_NAME_BYTES: usize = 1 << 10;

/// Cuts a file into lines. The bytes come in pieces of any size.
#[derive(Debug, Default)]
pub struct Lines {
    /// The incomplete last line. A line that is too long is kept only up to a little more than the limit.
    incomplete: Vec<u8>,
}

impl Lines {
    /// Adds the next bytes, and reports each complete line without its end.
    pub fn feed(&mut self, mut bytes: &[u8], mut report: impl FnMut(&[u8])) {
        while let Some(end) = bytes.iter().position(|b| is_end(*b)) {
            self.append(&bytes[..end]);
            bytes = &bytes[end + 1..];
            self.finish(&mut report);
        }
        self.append(bytes);
    }

    /// The last line has ended.
    pub fn finish(&mut self, mut report: impl FnMut(&[u8])) {
        if !self.incomplete.is_empty() {
            report(&self.incomplete);
        }
        self.incomplete.clear();
    }

    fn append(&mut self, bytes: &[u8]) {
        let room = LONGEST_LINE_BYTES + 1 - self.incomplete.len();
        self.incomplete.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// The number of lines that could be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines that are not blank.
    pub lines: u64,
    /// Lines with a measurement.
    pub understood: u64,
}

/// Reads the lines of one file.
#[derive(Debug)]
pub struct Reader {
    /// The name of the file in remarks.
    shown: String,
    /// The names of steps, and patterns for them in text.
    steps: Vec<String>,
    finders: Vec<Pattern>,
    /// Tags that were selected.
    selected: Vec<String>,
    csv: Csv,
    /// The last step of a line.
    step: Option<String>,
    /// Names that had a number before.
    numbers: BTreeSet<String>,
    /// The kinds of remarks that were made.
    measurements: BTreeSet<String>,
    counts: Counts,
}

/// A name and its value in a line.
struct Entry<'a> {
    name: Cow<'a, str>,
    value: Cow<'a, str>,
    is_assigned: bool,
}

impl<'a> Entry<'a> {
    fn new(name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Entry<'a> {
        Entry { name: name.into(), value: value.into(), is_assigned: false }
    }
}

impl Reader {
    /// A reader for a file whose name in remarks is `shown`. `step` is the name of the step; without it, the names are
    /// [`STEPS`]. The tags of `selected` are expected.
    pub fn new(shown: String, step: Option<&str>, selected: Vec<String>) -> Reader {
        let steps: Vec<String> = step.map_or(STEPS.map(str::to_owned).to_vec(), |name| vec![name.to_owned()]);
        let finders = steps.iter().filter_map(|name| Pattern::step(name).ok()).collect();
        Reader {
            shown,
            steps,
            finders,
            selected,
            csv: Csv::default(),
            step: None,
            numbers: BTreeSet::new(),
            measurements: BTreeSet::new(),
            counts: Counts::default(),
        }
    }

    /// The number of lines that could be read so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Reads a line from before the run. It has no measurement, but may be the header of later lines.
    pub fn skip(&mut self, line: &[u8]) {
        if let Ok(line) = std::str::from_utf8(line) {
            self.csv.read(line);
        }
    }

    /// Another file follows, or the same file was rewritten.
    pub fn start_again(&mut self) {
        self.step = None;
        self.csv.start_again();
    }

    /// All measurements of a line, and remarks about what cannot be read, one for each kind.
    pub fn read(&mut self, line: &[u8]) -> (Vec<Found>, Vec<String>) {
        let (mut found, mut remarks) = (Vec::new(), Vec::new());
        if line.len() > LONGEST_LINE_BYTES {
            let why = "it has more than 1 MiB; let the trainer write its metrics on lines of their own";
            self.remark("long", &mut remarks, |shown| format!("a long line of {shown} is skipped: {why}"));
            self.counts.lines += 1;
        } else if is_plain(line) {
            self.read_plain(line, &mut found, &mut remarks);
        } else {
            if std::str::from_utf8(line).is_err() {
                let what = "each invalid UTF-8 byte is read as ?; let the trainer write the file in UTF-8";
                let of = "a line in another encoding";
                self.remark("encoding", &mut remarks, |shown| format!("{of} is in {shown}: {what}"));
            }
            let mut plain = Vec::new();
            clean(line, &mut plain);
            plain.split(|b| is_end(*b)).for_each(|line| self.read_plain(line, &mut found, &mut remarks));
        }
        (found, remarks)
    }

    fn read_plain(&mut self, line: &[u8], found: &mut Vec<Found>, remarks: &mut Vec<String>) {
        // Some programs begin a file with a byte order mark.
        let line = std::str::from_utf8(line).unwrap_or_default().trim_start_matches('\u{feff}').trim();
        if line.is_empty() {
            return;
        }
        self.counts.lines += 1;
        let before = found.len();
        match self.entries(line, remarks) {
            Ok((entries, is_text)) => {
                if let Err(why) = self.measure(is_text.then_some(line), entries, found, remarks) {
                    self.remark("line", remarks, |shown| format!("a line of {shown} is skipped: {why}"));
                }
            }
            Err(why) => self.remark("line", remarks, |shown| format!("a line of {shown} is skipped: {why}")),
        }
        self.counts.understood += u64::from(found.len() > before);
    }

    /// The entries of a line by name, and whether the line is text. Errors: the mistake in the line as a whole.
    fn entries<'a>(&mut self, line: &'a str, remarks: &mut Vec<String>) -> Result<(Vec<Entry<'a>>, bool), String> {
        // `{'loss': 0.5}` is a dict in Python's form. An incomplete one must not be read as complete.
        let is_pythons = line.starts_with("{'") && line.ends_with('}');
        if line.starts_with('{') && !is_pythons {
            let quoted = with_constants_quoted(line);
            let object: BTreeMap<Cow<'_, str>, &RawValue> =
                serde_json::from_str(&quoted).map_err(|error| format!("not a JSON object: {error}"))?;
            let texts =
                object.into_iter().filter_map(|(name, raw)| Some((name.into_owned(), scalar(raw.get())?.into_owned())));
            return Ok((texts.map(|(name, text)| Entry::new(name, text)).collect(), false));
        }
        match self.csv.read(line) {
            csv::Line::Row(row) => {
                return Ok((row.into_iter().map(|(name, text)| Entry::new(name, text)).collect(), false));
            }
            csv::Line::Header | csv::Line::Known => return Ok((Vec::new(), false)),
            csv::Line::Names => return Ok((Vec::new(), true)),
            csv::Line::Ragged { fields, names } if pairs(line).is_empty() => {
                return Err(format!(
                    "it has {fields} fields, but the header has {names} names; write one header for all rows"
                ));
            }
            csv::Line::Ragged { .. } | csv::Line::Other => {}
        }
        let all = pairs(line);
        let differs = |pair: &Pair<'_>| all.iter().any(|other| other.name == pair.name && other.value != pair.value);
        let (twice, once): (Vec<Pair<'_>>, Vec<Pair<'_>>) = all.iter().partition(|pair| differs(pair));
        if let Some(pair) = twice.first() {
            let (name, why) = (shown(pair.name), "it is unknown which one is meant");
            let way_out = "give each its own name, or select one with --metric";
            self.remark(pair.name, remarks, |shown| {
                format!(
                    "{name:?} is twice in a line of {shown} with different values, and is omitted: {why}; {way_out}"
                )
            });
        }
        let mut seen = BTreeSet::new();
        let once = once.into_iter().filter(|pair| seen.insert(pair.name));
        let entry = |pair: Pair<'a>| Entry { is_assigned: pair.is_assigned, ..Entry::new(pair.name, pair.value) };
        Ok((once.map(entry).collect(), true))
    }

    /// Errors: the mistake in the line as a whole.
    fn measure(
        &mut self,
        text: Option<&str>,
        mut entries: Vec<Entry<'_>>,
        found: &mut Vec<Found>,
        remarks: &mut Vec<String>,
    ) -> Result<(), String> {
        if let (Some(tag), Some(value)) = (text_of(&entries, "tag"), text_of(&entries, "value")) {
            let (tag, value) = (tag.to_owned(), value.to_owned());
            entries.retain(|entry| self.is_step(&entry.name));
            entries.push(Entry::new(tag, value));
        }
        let given = self.steps.iter().find_map(|name| text_of(&entries, name));
        // In text a step may follow its name without a sign. The first one is the step of the line.
        let in_text = text.and_then(|text| self.finders.iter().find_map(|finder| finder.step_in(text.as_bytes())));
        let line_step = match (in_text, given) {
            (None, Some(given)) => step(given),
            (in_text, _) => in_text,
        };
        if let (None, Some(given)) = (&line_step, given.filter(|given| begins_as_number(given))) {
            let (given, way_out) = (shown(given), "let the trainer write it without commas");
            return Err(format!("its step {given:?} is not a number; {way_out}"));
        }
        self.step = line_step.or(self.step.take());
        for Entry { name, value: text, is_assigned } in entries {
            if name.is_empty() || self.is_step(&name) || is_one_of(&NOT_METRICS, &name) {
                continue;
            }
            let Some(value) = value(&text) else {
                self.no_number(&name, &text, is_assigned, remarks);
                continue;
            };
            if self.numbers.len() < MOST_NAMES
                && name.len() <= LONGEST_NAME_BYTES
                && !self.numbers.contains(name.as_ref())
            {
                self.numbers.insert(name.clone().into_owned());
            }
            found.push(Found { tag: Some(name.into_owned()), value, step: self.step.clone(), time: None });
        }
        Ok(())
    }

    fn is_step(&self, name: &str) -> bool {
        is_one_of(&STEPS, name) || self.steps.iter().any(|step| step.eq_ignore_ascii_case(name))
    }

    /// A remark for text after a name that should be a number.
    fn no_number(&mut self, name: &str, text: &str, is_assigned: bool, remarks: &mut Vec<String>) {
        let is_metric = self.numbers.contains(name) || self.selected.iter().any(|selected| selected == name);
        let is_list = text.contains(',') && text.bytes().all(|b| b.is_ascii_digit() || b"+-.,eE_".contains(&b));
        let kind = match is_metric || is_list {
            true => name,
            false if is_assigned => "=",
            false => return,
        };
        let (pair, way_out) = (format!("{}={}", shown(name), shown(text)), "let the trainer write it as a number");
        self.remark(kind, remarks, |shown| {
            format!(
                "a value in a line of {shown} is skipped, and so are similar ones: {pair} is not a number; {way_out}"
            )
        });
    }

    fn remark(&mut self, kind: &str, remarks: &mut Vec<String>, text: impl FnOnce(&str) -> String) {
        if self.measurements.len() < MOST_REMARKS && self.measurements.insert(shown(kind)) {
            remarks.push(text(&self.shown));
        }
    }
}

fn is_one_of(names: &[&str], name: &str) -> bool {
    names.iter().any(|other| other.eq_ignore_ascii_case(name))
}

fn text_of<'a>(entries: &'a [Entry<'_>], name: &str) -> Option<&'a str> {
    entries.iter().find(|entry| entry.name.eq_ignore_ascii_case(name)).map(|entry| entry.value.as_ref())
}

fn begins_as_number(text: &str) -> bool {
    text.trim_start().trim_start_matches(['+', '-']).starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests;

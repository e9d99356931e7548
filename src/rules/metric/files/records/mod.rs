//! Reads measurements in a file that a trainer writes: JSON objects, on one line or several ([`crate::metric::files::document`]), a
//! table with a header ([`crate::metric::files::csv`]), or text with names and values ([`crate::metric::files::pairs`]). Examples:
//! `{"loss": 0.3, "acc": "0.9", "step": 10}`, `{"tag": "loss", "value": 0.3, "step": 10}`, `step=10 loss=0.3, acc = 0.9`,
//! `Epoch 3/10 - loss: 0.3`.
//!
//! A whole number after one of the names of steps is the step of the whole line. A line without a step gets the step of
//! the last line that had one. Deliberately absent: nested objects and lists, which are not measurements, and names that
//! are not metrics (`timestamp`, `trial`).

mod lines;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;

use crate::metric::files::csv::{self, Csv};
use crate::metric::files::document::{Document, State};
use crate::metric::files::pairs::{Pair, has_pair, pairs};
use crate::metric::foreign_text::text::{clean, is_end, is_plain};
use crate::metric::foreign_text::value::{step, value, whole_step};
use crate::metric::output::pattern::{Found, Pattern};
use crate::metric::report::batch::{scalar, with_constants_quoted};
use crate::metric::report::line::shown;

pub use lines::{Counts, Lines};

/// Longer lines are skipped.
pub const LONGEST_LINE_BYTES: usize = 1 << 20;

/// The names of the step if the user gives none; the first one in a line counts.
pub const STEPS: [&str; 3] = ["global_step", "step", "_step"];

/// A record with a number called `value` may have the metric's name in one of these; the first one counts.
const NAMES: [&str; 4] = ["tag", "name", "metric", "key"];

/// Names that are not metrics, in the lines of the metrics file and in other logs.
const NOT_METRICS: [&str; 5] = ["timestamp", "trial", "checkpoint_path", "_timestamp", "_runtime"];

/// The limits for remembered names and for remarks.
const MOST_NAMES: usize = 1000;
const MOST_REMARKS: usize = 20;

/// Longer names are not remembered.
const LONGEST_NAME_BYTES: usize = 1 << 10;

/// Reads the lines of one file.
#[derive(Debug)]
pub struct Reader {
    /// The name of the file in remarks.
    shown: String,
    /// The names of steps, and patterns for them in text.
    steps: Vec<String>,
    finders: Vec<Pattern>,
    /// The user gave the name of the step, so a fraction in a field of this name is truncated.
    is_step_chosen: bool,
    /// Tags that were selected.
    selected: Vec<String>,
    csv: Csv,
    /// An object of which not all lines were read.
    document: Option<Document>,
    /// The last step of a line.
    step: Option<String>,
    /// Names that had a number before, each with the word before its first one in text.
    numbers: BTreeMap<String, String>,
    /// The kinds of remarks that were made.
    remarked: BTreeSet<String>,
    counts: Counts,
}

/// A name and its value in a record.
#[derive(Debug)]
struct Entry<'a> {
    name: Cow<'a, str>,
    value: Cow<'a, str>,
    number: Option<f64>,
    /// The value is text, even if it looks like a number.
    is_text: bool,
    /// The pair of a line of text.
    pair: Option<Pair<'a>>,
}

impl<'a> Entry<'a> {
    fn field(name: impl Into<Cow<'a, str>>, text: impl Into<Cow<'a, str>>) -> Entry<'a> {
        let value = text.into();
        let number = self::value(&value);
        Entry { name: name.into(), value, number, is_text: number.is_none(), pair: None }
    }

    fn pair(pair: Pair<'a>) -> Entry<'a> {
        let (name, value, number) = (pair.name.into(), pair.text.into(), pair.number);
        Entry { name, value, number, is_text: pair.is_assigned && number.is_none(), pair: Some(pair) }
    }
}

/// The measurements and the remarks of a call.
#[derive(Debug, Default)]
struct Output {
    found: Vec<Found>,
    remarks: Vec<String>,
}

impl Reader {
    /// A reader for a file whose name in remarks is `shown`. `step` is the name of the step; without it, the names are
    /// [`STEPS`]. The tags of `selected` are expected.
    pub fn new(shown: String, step: Option<&str>, selected: Vec<String>) -> Reader {
        let is_step_chosen = step.is_some();
        let steps: Vec<String> = step.map_or(STEPS.map(str::to_owned).to_vec(), |name| vec![name.to_owned()]);
        let finders = steps.iter().filter_map(|name| Pattern::step(name, is_step_chosen).ok()).collect();
        Reader {
            shown,
            steps,
            finders,
            is_step_chosen,
            selected,
            csv: Csv::default(),
            document: None,
            step: None,
            numbers: BTreeMap::new(),
            remarked: BTreeSet::new(),
            counts: Counts::default(),
        }
    }

    /// The number of lines that could be read so far. An object counts as one line.
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
        self.document = None;
        self.csv.start_again();
    }

    /// All measurements of a line, and remarks about what cannot be read, one for each kind.
    pub fn read(&mut self, line: &[u8]) -> (Vec<Found>, Vec<String>) {
        let mut out = Output::default();
        if line.len() > LONGEST_LINE_BYTES {
            let why = "it has more than 1 MiB; let the trainer write its metrics on lines of their own";
            self.remark("long", &mut out, |shown| format!("a long line of {shown} is skipped: {why}"));
            self.counts.lines += 1;
        } else if is_plain(line) {
            self.read_plain(line, &mut out);
        } else {
            if std::str::from_utf8(line).is_err() {
                let what = "each invalid UTF-8 byte is read as ?; let the trainer write the file in UTF-8";
                let of = "a line in another encoding";
                self.remark("encoding", &mut out, |shown| format!("{of} is in {shown}: {what}"));
            }
            let mut plain = Vec::new();
            clean(line, &mut plain);
            plain.split(|b| is_end(*b)).for_each(|line| self.read_plain(line, &mut out));
        }
        (out.found, out.remarks)
    }

    /// The file has ended, perhaps only for now: reads what waits for more lines.
    pub fn finish(&mut self) -> (Vec<Found>, Vec<String>) {
        let mut out = Output::default();
        if let Some(row) = self.csv.finish() {
            self.measure(None, fields(row), &mut out);
        }
        match self.document.take() {
            // An attempt that was killed leaves an incomplete line.
            Some(document) if document.lines() == 1 => self.counts.lines += 1,
            Some(document) => self.read_document(document, &mut out),
            None => {}
        }
        (out.found, out.remarks)
    }

    fn read_plain(&mut self, line: &[u8], out: &mut Output) {
        // Some programs begin a file with a byte order mark.
        let line = std::str::from_utf8(line).unwrap_or_default().trim_start_matches('\u{feff}');
        if line.trim().is_empty() {
            return;
        }
        if let Some(mut document) = self.document.take() {
            match document.add(line) {
                State::Open => {
                    self.document = Some(document);
                    return;
                }
                State::Closed => return self.read_document(document, out),
                State::Foreign => self.read_document(document, out),
            }
        }
        let line = line.trim();
        match Document::begin(line) {
            Some((document, State::Open)) => self.document = Some(document),
            Some((document, _)) => self.read_document(document, out),
            None => self.read_line(line, out),
        }
    }

    /// Reads an object that has ended.
    fn read_document(&mut self, document: Document, out: &mut Output) {
        let lines = document.lines();
        let read = document.into_text().map_err(str::to_owned).and_then(|text| {
            // `{'loss': 0.5}` is a dict in Python's form.
            if text.trim_start_matches('{').trim_start().starts_with('\'') {
                self.read_pairs(&text, out);
                return Ok(());
            }
            let quoted = with_constants_quoted(&text);
            let object: BTreeMap<Cow<'_, str>, &RawValue> =
                serde_json::from_str(&quoted).map_err(|error| error.to_string())?;
            let entry = |(name, raw): (Cow<'_, str>, &RawValue)| {
                let text = scalar(raw.get())?.into_owned();
                Some(Entry { is_text: raw.get().starts_with('"'), ..Entry::field(name.into_owned(), text) })
            };
            self.measure(None, object.into_iter().filter_map(entry).collect(), out);
            Ok(())
        });
        if let Err(why) = read {
            self.counts.lines += 1;
            self.remark("object", out, |shown| match lines {
                1 => format!("a line of {shown} is skipped, because it is not a JSON object: {why}"),
                lines => format!(
                    "an object of {lines} lines in {shown} is skipped, and no part of it is reported, because it is not a \
                     JSON object: {why}; let the trainer write each object on one line"
                ),
            });
        }
    }

    fn read_line(&mut self, line: &str, out: &mut Output) {
        match self.csv.read(line) {
            csv::Line::Rows(rows) => rows.into_iter().for_each(|row| self.measure(None, fields(row), out)),
            csv::Line::Header | csv::Line::Names => self.counts.lines += 1,
            csv::Line::Held => {}
            csv::Line::Ragged { fields, names } if !has_pair(line) => {
                self.counts.lines += 1;
                self.remark("row", out, |shown| {
                    format!(
                        "a line of {shown} is skipped: it has {fields} fields, but the header has {names} names; write one \
                         header for all rows"
                    )
                });
            }
            csv::Line::Ragged { .. } | csv::Line::Other => self.read_pairs(line, out),
        }
    }

    /// Reads the names and numbers of a text.
    fn read_pairs(&mut self, text: &str, out: &mut Output) {
        let all = pairs(text);
        let differs = |pair: &Pair<'_>| {
            all.iter().any(|other| other.name == pair.name && other.number.is_some() && other.text != pair.text)
        };
        let (twice, once): (Vec<Pair<'_>>, Vec<Pair<'_>>) = all.iter().partition(|pair| differs(pair));
        if let Some(pair) = twice.iter().find(|pair| pair.number.is_some()) {
            let (name, why) = (shown(pair.name), "it is unknown which one is meant");
            let way_out = "give each its own name, or select one with --metric";
            self.remark(pair.name, out, |shown| {
                format!(
                    "{name:?} is twice in a line of {shown} with different values, and is omitted: {why}; {way_out}"
                )
            });
        }
        let mut seen = BTreeSet::new();
        let entries = once.into_iter().filter(|pair| seen.insert(pair.name)).map(Entry::pair).collect();
        self.measure(Some(text), entries, out);
    }

    /// Takes the measurements of a record. `text`: the whole record, if it is text.
    fn measure(&mut self, text: Option<&str>, mut entries: Vec<Entry<'_>>, out: &mut Output) {
        self.counts.lines += 1;
        if let Some(name) = name_member(&entries) {
            entries.retain(|entry| self.is_step(&entry.name) || entry.name.eq_ignore_ascii_case("value"));
            let value = entries.iter_mut().find(|entry| entry.name.eq_ignore_ascii_case("value"));
            value.into_iter().for_each(|entry| entry.name = name.clone().into());
        }
        let given =
            self.steps.iter().find_map(|name| entries.iter().find(|entry| entry.name.eq_ignore_ascii_case(name)));
        let line_step = match (text, given) {
            // In text a step may follow its name without a sign. The first one is the step of the line.
            (Some(text), _) => self.finders.iter().find_map(|finder| finder.step_in(text.as_bytes())),
            (None, Some(field)) if self.is_step_chosen => step(&field.value),
            (None, given) => given.and_then(|field| whole_step(&field.value)),
        };
        if let (None, Some(given)) = (&line_step, given.filter(|given| given.number.is_none()))
            && begins_as_number(&given.value)
            && given.value.contains(',')
        {
            let (given, way_out) = (shown(&given.value), "let the trainer write it without commas");
            return self.remark("step", out, |shown| {
                format!("a line of {shown} is skipped: its step {given:?} is not a number; {way_out}")
            });
        }
        self.step = line_step.or(self.step.take());
        let before = out.found.len();
        for entry in entries {
            if entry.name.is_empty() || self.is_step(&entry.name) || is_one_of(&NOT_METRICS, &entry.name) {
                continue;
            }
            let Some(value) = entry.number else {
                self.no_number(&entry, out);
                continue;
            };
            self.note(&entry, out);
            out.found.push(Found { tag: Some(entry.name.into_owned()), value, step: self.step.clone(), time: None });
        }
        self.counts.understood += u64::from(out.found.len() > before);
    }

    fn is_step(&self, name: &str) -> bool {
        is_one_of(&STEPS, name) || self.steps.iter().any(|step| step.eq_ignore_ascii_case(name))
    }

    /// Remembers a name that had a number. A remark says if it seems to be the name of two metrics: `train loss: 0.5` and
    /// `val loss: 0.4` are both `loss`.
    fn note(&mut self, entry: &Entry<'_>, out: &mut Output) {
        let label = entry.pair.map_or("", |pair| pair.label);
        let Some(first) = self.numbers.get(entry.name.as_ref()) else {
            if self.numbers.len() < MOST_NAMES && entry.name.len() <= LONGEST_NAME_BYTES {
                self.numbers.insert(entry.name.clone().into_owned(), label.to_owned());
            }
            return;
        };
        if entry.pair.is_none() || first == label {
            return;
        }
        let called = |label: &str| shown(format!("{label} {}", entry.name).trim());
        let (one, other, name) = (called(first), called(label), shown(&entry.name));
        self.remark(&format!("two {name}"), out, |shown| {
            format!(
                "{one:?} and {other:?} of {shown} have one name, {name:?}, so their values are mixed if these are two metrics; \
                 give each its own name, or select one with --metric"
            )
        });
    }

    /// A remark for text after a name that should be a number.
    fn no_number(&mut self, entry: &Entry<'_>, out: &mut Output) {
        let (name, text) = (entry.name.as_ref(), entry.value.as_ref());
        let is_metric = self.numbers.contains_key(name) || self.selected.iter().any(|selected| selected == name);
        let is_almost = match entry.pair {
            Some(_) => begins_as_number(text) && !is_time(text),
            None => text.contains([',', '/']) && text.bytes().all(|b| b.is_ascii_digit() || b"+-.,/eE_".contains(&b)),
        };
        let kind = match is_metric || is_almost {
            true => name,
            false if entry.pair.is_some_and(|pair| pair.is_assigned) => "=",
            false => return,
        };
        let (pair, way_out) = (format!("{}={}", shown(name), shown(text)), "let the trainer write it as a number");
        self.remark(kind, out, |shown| {
            format!(
                "a value in a line of {shown} is skipped, and so are similar ones: {pair} is not a number; {way_out}"
            )
        });
    }

    fn remark(&mut self, kind: &str, out: &mut Output, text: impl FnOnce(&str) -> String) {
        if self.remarked.len() < MOST_REMARKS && self.remarked.insert(shown(kind)) {
            out.remarks.push(text(&self.shown));
        }
    }
}

fn fields(row: csv::Row) -> Vec<Entry<'static>> {
    row.into_iter().map(|(name, text)| Entry::field(name, text)).collect()
}

/// The text of the member that names the metric of a record with a number called `value`.
fn name_member(entries: &[Entry<'_>]) -> Option<String> {
    let member = |name: &str| entries.iter().find(|entry| entry.name.eq_ignore_ascii_case(name));
    member("value").filter(|value| value.number.is_some())?;
    let name = NAMES.iter().find_map(|name| member(name).filter(|entry| entry.is_text && !entry.value.is_empty()));
    name.map(|entry| entry.value.clone().into_owned())
}

/// Whether the text is a time, a duration or a date: `12:30`, `2024-01-01`.
fn is_time(text: &str) -> bool {
    text.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with([':', '-'])
}

fn is_one_of(names: &[&str], name: &str) -> bool {
    names.iter().any(|other| other.eq_ignore_ascii_case(name))
}

fn begins_as_number(text: &str) -> bool {
    text.trim_start().trim_start_matches(['+', '-']).starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests;

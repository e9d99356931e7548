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
    /// A reader for a file that remarks call `shown`. `step` is the name of the step; without it, the names are
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reader() -> Reader {
        Reader::new("log".to_owned(), None, Vec::new())
    }

    fn measurements(found: Vec<Found>) -> Vec<(String, f64, String)> {
        found.into_iter().map(|f| (f.tag.unwrap_or_default(), f.value, f.step.unwrap_or_default())).collect()
    }

    /// The measurements in these lines, which must cause no remarks.
    #[track_caller]
    fn all(text: &str) -> Vec<(String, f64, String)> {
        all_by(&mut reader(), text)
    }

    #[track_caller]
    fn all_by(reader: &mut Reader, text: &str) -> Vec<(String, f64, String)> {
        let mut all = Vec::new();
        for line in text.lines() {
            let (found, remarks) = reader.read(line.as_bytes());
            assert_eq!(remarks, [""; 0], "{line}");
            all.extend(measurements(found));
        }
        all
    }

    fn of(tag: &str, value: f64, step: &str) -> (String, f64, String) {
        (tag.to_owned(), value, step.to_owned())
    }

    /// The only remark about a line.
    #[track_caller]
    fn why(line: &[u8]) -> String {
        let (_, mut remarks) = reader().read(line);
        assert_eq!(remarks.len(), 1, "{remarks:?}");
        remarks.remove(0)
    }

    #[test]
    fn an_empty_line_has_no_measurement() {
        let mut lines = Lines::default();
        lines.feed(b"\r\n\na=1\r\n\r", |line| assert_eq!(line, b"a=1"));
        lines.finish(|line| panic!("{line:?}"));
    }

    #[test]
    fn every_number_of_an_object_is_measured_with_its_step() {
        assert_eq!(all(r#"{"loss": 0.25, "acc": "0.5", "step": 10}"#), [of("acc", 0.5, "10"), of("loss", 0.25, "10")]);
        assert_eq!(all(r#"{"tag": "loss", "value": 1e-5, "step": "007"}"#), [of("loss", 1e-5, "7")]);
        assert_eq!(all(r#"{"loss": NaN, "_step": 3.0}"#).len(), 1);
        assert_eq!(all(r#"{"value": 1, "tag": null}"#), [of("value", 1.0, "")]);
        assert_eq!(all(r#"{"a": {"b": 1}, "c": [1], "d": true, "e": null, "f": "x", "g": 1}"#), [of("g", 1.0, "")]);
    }

    #[test]
    fn a_dict_in_pythons_form_is_read() {
        let line = "{'loss': 2.5, 'lr': np.float64(4.5e-05), 'name': 'a b', 'step': 7}";
        assert_eq!(all(line), [of("loss", 2.5, "7"), of("lr", 4.5e-5, "7")]);
        assert!(why(b"{'loss': 2.").contains("not a JSON object"));
        let mut by_epoch = Reader::new("log".into(), Some("epoch"), Vec::new());
        assert_eq!(all_by(&mut by_epoch, "{'loss': 2.5, 'epoch': 1.5}"), [of("loss", 2.5, "1")]);
    }

    #[test]
    fn a_line_of_the_metrics_file_is_read() {
        let line =
            r#"{"checkpoint_path": "", "global_step": "3", "loss": "0.5", "timestamp": 1700000000.5, "trial": "0"}"#;
        assert_eq!(all(line), [of("loss", 0.5, "3")]);
    }

    #[test]
    fn assignments_are_found_between_other_words() {
        assert_eq!(all("epoch 1: loss=0.5, acc = 0.75; step=12\r"), [of("loss", 0.5, "12"), of("acc", 0.75, "12")]);
        assert_eq!(all("Validation-accuracy=0.9 lr=1e-05"), [of("Validation-accuracy", 0.9, ""), of("lr", 1e-5, "")]);
        assert_eq!(all("a==1 =2 nothing here"), []);
    }

    #[test]
    fn the_lines_of_a_progress_bar_are_read() {
        let bar = "Epoch 0:  50%|##  | 5/10 [00:01<00:01, 5.0it/s, step=5, loss=0.500, acc=70.0%]";
        assert_eq!(all(bar), [of("loss", 0.5, "5"), of("acc", 70.0, "5")]);
        let log = "[07/21 10:24:07 x.events]:  eta: 0:09:09  iter: 239  total_loss: 3.5  time: 0.5s  lr: 0.00014";
        let mut by_iter = Reader::new("log".into(), Some("iter"), Vec::new());
        let expected = [of("total_loss", 3.5, "239"), of("time", 0.5, "239"), of("lr", 0.00014, "239")];
        assert_eq!(all_by(&mut by_iter, log), expected);
        let mut by_iteration = Reader::new("log".into(), Some("iteration"), Vec::new());
        let log = " iteration       10/     100 | elapsed time per iteration (ms): 812.3 | lm loss: 9.812233E+00 |";
        assert_eq!(all_by(&mut by_iteration, log), [of("loss", 9.812233, "10")]);
    }

    #[test]
    fn a_percentage_is_no_step() {
        let mut by_epoch = Reader::new("log".into(), Some("epoch"), Vec::new());
        let bar = "Epoch:  40%|####      | 2/5 [00:01<00:01, 5.0it/s, epoch=2, loss=0.500]";
        assert_eq!(all_by(&mut by_epoch, bar), [of("loss", 0.5, "2")]);
        let untold = "Epoch:  60%|######    | 3/5 [00:01<00:01, 5.0it/s, loss=0.250]";
        assert_eq!(all_by(&mut by_epoch, untold), [of("loss", 0.25, "2")]);
    }

    #[test]
    fn a_step_that_is_said_once_holds_until_the_next() {
        let mut by_epoch = Reader::new("log".into(), Some("epoch"), Vec::new());
        let text = "Epoch 1/2\n10/10 - loss: 0.5\nEpoch 2/2\n10/10 - loss: 0.25 - val_loss: 0.125";
        assert_eq!(
            all_by(&mut by_epoch, text),
            [of("loss", 0.5, "1"), of("loss", 0.25, "2"), of("val_loss", 0.125, "2")]
        );
        let rows = "Epoch,step,loss\n0,5,0.5\n1,10,0.25";
        by_epoch.start_again();
        assert_eq!(all_by(&mut by_epoch, rows), [of("loss", 0.5, "0"), of("loss", 0.25, "1")]);
        assert_eq!(
            all("[step 3] loss=1\nloss=2 Step 10/100, x=1"),
            [of("loss", 1.0, "3"), of("loss", 2.0, "10"), of("x", 1.0, "10")]
        );
    }

    #[test]
    fn a_table_has_its_names_in_the_first_line_and_may_have_empty_cells() {
        let text = "epoch,step,train_loss,val_acc\n0,10,0.5,\n1,20,,0.95\n";
        let expected =
            [of("epoch", 0.0, "10"), of("train_loss", 0.5, "10"), of("epoch", 1.0, "20"), of("val_acc", 0.95, "20")];
        assert_eq!(all(text), expected);
        let mut appended = reader();
        appended.skip(b"step,loss");
        assert_eq!(all_by(&mut appended, "5,0.5"), [of("loss", 0.5, "5")]);
        assert!(appended.read(b"6,0.5,7").1[0].contains("3 fields, but the header has 2 names"));
        assert_eq!(appended.counts(), Counts { lines: 2, understood: 1 });
    }

    #[test]
    fn an_incomplete_object_is_an_error() {
        assert!(why(b"{\"loss\": 0.").contains("not a JSON object"));
    }

    #[test]
    fn a_line_that_cannot_be_read_causes_a_remark() {
        assert!(why(b"\xff loss=1").contains("invalid UTF-8"));
        let (mut lines, mut reader, mut read) = (Lines::default(), reader(), Vec::new());
        lines.feed(&[&vec![b'x'; 2 * LONGEST_LINE_BYTES][..], b" loss=1\nloss=2\n"].concat(), |line| {
            read.push(reader.read(line))
        });
        assert!(read[0].0.is_empty() && read[0].1[0].contains("1 MiB"), "{:?}", read[0].1);
        assert_eq!((read[1].0.len(), read[1].1.len()), (1, 0));
    }

    #[test]
    fn a_byte_order_mark_is_ignored() {
        assert_eq!(all("\u{feff}{\"loss\": 0.5}"), [of("loss", 0.5, "")]);
        assert_eq!(all("\u{feff}loss=0.5"), [of("loss", 0.5, "")]);
    }

    #[test]
    fn a_number_with_commas_is_not_cut_at_the_first() {
        for value in ["1,234.5", "1,234,567", "0,5", "-1,5,"] {
            let (found, remarks) = reader().read(format!("acc=0.5 loss={value} f1=0.25").as_bytes());
            assert_eq!(found.len(), 2, "{value}: {found:?}");
            assert!(remarks.len() == 1 && remarks[0].contains("loss="), "{value}: {remarks:?}");
        }
        assert!(why(b"step=1,000 loss=0.5").contains("step"));
        assert!(why(b"{\"loss\": \"1,234.5\"}").contains("loss"));
        assert_eq!(all("a=1,b=2,5shot=3"), [of("a", 1.0, ""), of("b", 2.0, ""), of("5shot", 3.0, "")]);
    }

    #[test]
    fn a_value_that_is_not_a_number_causes_one_remark_and_one_for_each_name_that_had_a_number() {
        let mut reader = Reader::new("log".into(), None, vec!["f1".to_owned()]);
        let mut remarks = |line: &str| reader.read(line.as_bytes()).1;
        assert!(remarks("loss=0.5 optimizer=adam")[0].contains("optimizer=adam is not a number"));
        assert_eq!(remarks("device=cuda name: x, {'mode': 'train'}"), [""; 0]);
        assert!(remarks("loss: n/a")[0].contains("loss=n/a"));
        assert!(remarks("{\"f1\": \"none\", \"phase\": \"train\"}")[0].contains("f1=none"), "the tag was selected");
        assert_eq!(remarks("loss=n/a f1: none"), [""; 0]);
    }

    #[test]
    fn a_name_with_two_values_in_a_line_is_omitted() {
        let (found, remarks) = reader().read(b"train loss: 0.5, val loss: 0.25, acc: 1");
        assert_eq!(measurements(found), [of("acc", 1.0, "")]);
        assert!(remarks[0].contains("\"loss\" is twice"), "{remarks:?}");
        assert_eq!(all("loss=1 loss=1"), [of("loss", 1.0, "")]);
    }

    #[test]
    fn a_step_is_read_in_any_notation() {
        for step in ["100", "1e2", "100.0", "100.9"] {
            assert_eq!(all(&format!("loss=1 step={step}")), [of("loss", 1.0, "100")]);
            assert_eq!(all(&format!("{{\"loss\": 1, \"step\": \"{step}\"}}")), [of("loss", 1.0, "100")]);
        }
    }

    #[test]
    fn lines_are_complete_for_any_pieces() {
        for size in [1, 2, 3, 100] {
            let mut lines = Lines::default();
            let mut all = Vec::new();
            b"one\ntwo\rtoo\r\n\nthree"
                .chunks(size)
                .for_each(|piece| lines.feed(piece, |line| all.push(line.to_vec())));
            assert_eq!(all, [&b"one"[..], b"two", b"too"]);
            lines.finish(|line| all.push(line.to_vec()));
            assert_eq!(all.last().map(Vec::as_slice), Some(&b"three"[..]));
        }
    }

    #[test]
    fn an_endless_line_takes_no_memory_and_hides_no_other_line() {
        let mut lines = Lines::default();
        let mut all = Vec::new();
        for _ in 0..40 {
            lines.feed(&[b'x'; 100_000], |line| all.push(line.to_vec()));
            assert!(lines.incomplete.capacity() <= 2 * LONGEST_LINE_BYTES);
        }
        lines.feed(b"\nnext\n", |line| all.push(line.to_vec()));
        assert!(all.len() == 2 && all[0].len() == LONGEST_LINE_BYTES + 1 && all[1] == b"next");
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(bytes in any::<Vec<u8>>(), text in "[{}'\"a=, :0-9.N\u{1b}-]{0,30}") {
            let mut reader = reader();
            let _ = (reader.read(&bytes), reader.read(text.as_bytes()), reader.read(&bytes));
        }
    }
}

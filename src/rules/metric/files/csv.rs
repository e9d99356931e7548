//! Reads a file of comma-separated values with a header, as a CSV logger writes it: one line of names, then a row of
//! numbers for each step. An example: `epoch,step,train_loss` and then `0,10,0.5`.
//!
//! A line of two or more names, none of them a number, is a header if the next two lines are rows: with the same number
//! of fields, with a number among them, and without names of their own (`loss=0.5`). The first row is held until the
//! second confirms it, or the file ends and has no other line. A later line of names that shares a name with the header is a new header,
//! because a restart writes it again. Commas, semicolons and tabs are separators. A field may be in `"`. Deliberately
//! absent: fields that contain line ends.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::metric::files::pairs::has_pair;
use crate::metric::foreign_text::value::value;

/// Longer text is a sentence, not a name.
const LONGEST_NAME_CHARS: usize = 100;

/// The contents of a field without a value.
const EMPTY_VALUES: &[&str] = &["", "NA", "N/A", "None", "null", "-"];

/// The limit for remembered rows, which are not reported again when the file is rewritten.
const MOST_ROWS: usize = 100_000;

/// The state for one file.
#[derive(Debug, Default)]
pub(in crate::metric) struct Csv {
    /// The previous line, which may be a header.
    candidate: Option<Header>,
    /// The lines read since the beginning of the file.
    lines: u64,
    /// The first row under the candidate.
    held: Option<Row>,
    header: Option<Header>,
    /// The rows that were reported, as hashes, in order.
    reported: Vec<u64>,
    /// Set if the file was rewritten: the number of those rows that were repeated so far.
    repeated: Option<usize>,
}

/// The fields with values, by name.
pub(in crate::metric) type Row = Vec<(String, String)>;

/// The type of a line.
#[derive(Debug, PartialEq)]
pub(in crate::metric) enum Line {
    /// Names.
    Header,
    /// Perhaps the first row of a table.
    Held,
    /// The line is a row, and confirms the held one, which comes first. Rows that were reported before the file was
    /// rewritten are absent.
    Rows(Vec<Row>),
    /// The number of fields differs from the number of names.
    Ragged {
        /// The number of fields.
        fields: usize,
        /// The number of names.
        names: usize,
    },
    /// Perhaps a header: most of its fields are names without a value.
    Names,
    /// Neither a header nor a row.
    Other,
}

#[derive(Debug)]
struct Header {
    separator: char,
    /// In the order of the fields; empty for a field without a name.
    names: Vec<String>,
}

impl Csv {
    /// Reads the next line.
    pub(in crate::metric) fn read(&mut self, line: &str) -> Line {
        self.lines += 1;
        let new = Header::of(line);
        if let Some(header) = &self.header
            && new.as_ref().is_some_and(|new| new.shares_with(header))
        {
            self.header = new;
            return Line::Header;
        }
        let held = self.held.take();
        // A header that is repeated confirms the row between, too.
        if let (Some(row), Some(candidate)) = (&held, &self.candidate)
            && new.as_ref().is_some_and(|new| new.shares_with(candidate))
        {
            let is_known = self.is_repeated(row);
            self.header = new;
            return Line::Rows(held.into_iter().filter(|_| !is_known).collect());
        }
        if let Some(header) = self.header.as_ref().or(self.candidate.as_ref()) {
            let fields = fields(line, header.separator);
            let is_row = fields.len() == header.names.len() && !fields.iter().any(|field| has_pair(field));
            if is_row && (self.header.is_some() || fields.iter().any(|field| value(field).is_some())) {
                let row = header.row(fields);
                if self.header.is_none() && held.is_none() {
                    self.held = Some(row);
                    return Line::Held;
                }
                self.header = self.header.take().or(self.candidate.take());
                return Line::Rows(held.into_iter().chain([row]).filter(|row| !self.is_repeated(row)).collect());
            }
            if !is_row && fields.len() != header.names.len() && self.header.is_some() && fields.len() > 1 {
                return Line::Ragged { fields: fields.len(), names: header.names.len() };
            }
        }
        self.candidate = new;
        if self.candidate.as_ref().is_some_and(Header::is_of_names) { Line::Names } else { Line::Other }
    }

    /// The file has ended, perhaps only for now: the row that is held, which is the only one of its table.
    pub(in crate::metric) fn finish(&mut self) -> Option<Row> {
        // Without a second row, only a file that has nothing else is a table.
        if self.lines != 2 {
            return None;
        }
        let row = self.held.take()?;
        self.header = self.candidate.take();
        (!self.is_repeated(&row)).then_some(row)
    }

    /// The file is rewritten, perhaps with the same rows.
    pub(in crate::metric) fn start_again(&mut self) {
        (self.candidate, self.held, self.header, self.lines) = (None, None, None, 0);
        self.repeated = Some(0);
    }

    /// Whether this row repeats the row at the same position before the file was rewritten. New columns are ignored.
    fn is_repeated(&mut self, row: &[(String, String)]) -> bool {
        let mut hasher = DefaultHasher::new();
        let mut sorted: Vec<_> = row.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        sorted.sort_unstable();
        sorted.hash(&mut hasher);
        let row = hasher.finish();
        if let Some(at) = self.repeated {
            if self.reported.get(at) == Some(&row) {
                self.repeated = Some(at + 1);
                return true;
            }
            self.reported.truncate(at);
            self.repeated = None;
        }
        if self.reported.len() < MOST_ROWS {
            self.reported.push(row);
        }
        false
    }
}

impl Header {
    /// The line as a header, if it may be one. A leading `#` is ignored.
    fn of(line: &str) -> Option<Header> {
        let line = line.trim_start_matches('\u{feff}').trim_start().trim_start_matches('#');
        ['\t', ';', ','].into_iter().find_map(|separator| {
            let names: Vec<String> = fields(line, separator).into_iter().map(Cow::into_owned).collect();
            let given: Vec<&String> = names.iter().filter(|name| !name.is_empty()).collect();
            let mut sorted = given.clone();
            sorted.sort_unstable();
            sorted.dedup();
            let is_header = names.len() > 1
                && !given.is_empty()
                && given.iter().all(|name| is_name(name))
                && sorted.len() == given.len();
            is_header.then_some(Header { separator, names })
        })
    }

    /// Whether most names have no value: `metrics/mAP_0.5:0.95` among other names is a name, too.
    fn is_of_names(&self) -> bool {
        let with_values = self.names.iter().filter(|name| has_pair(name)).count();
        with_values * 2 < self.names.len()
    }

    fn shares_with(&self, other: &Header) -> bool {
        self.names.iter().any(|name| !name.is_empty() && other.names.contains(name))
    }

    fn row(&self, fields: Vec<Cow<'_, str>>) -> Row {
        let pairs = self.names.iter().cloned().zip(fields);
        let with_values = pairs.filter(|(name, field)| !name.is_empty() && !EMPTY_VALUES.contains(&field.as_ref()));
        with_values.map(|(name, field)| (name, field.into_owned())).collect()
    }
}

fn is_name(text: &str) -> bool {
    text.contains(char::is_alphabetic)
        && !text.contains(['=', '{', '}'])
        && !text.contains(": ")
        && text.chars().nth(LONGEST_NAME_CHARS).is_none()
        && value(text).is_none()
}

/// The fields of a line, without surrounding white space and quotes.
fn fields(line: &str, separator: char) -> Vec<Cow<'_, str>> {
    let mut fields = Vec::new();
    let mut rest = Some(line);
    while let Some(text) = rest {
        let (field, after) = match text.trim_start_matches(' ').strip_prefix('"') {
            Some(quoted) => {
                let (field, behind) = unquoted(quoted);
                (field, behind.split_once(separator).map(|(_, after)| after))
            }
            None => match text.split_once(separator) {
                Some((field, after)) => (Cow::Borrowed(field.trim()), Some(after)),
                None => (Cow::Borrowed(text.trim()), None),
            },
        };
        fields.push(field);
        rest = after;
    }
    fields
}

/// The field up to its closing quote, and the text after it. Two quotes mean one quote in the field.
fn unquoted(quoted: &str) -> (Cow<'_, str>, &str) {
    let mut at = 0;
    loop {
        match quoted[at..].find('"') {
            None => return (quoted.trim().replace("\"\"", "\"").into(), ""),
            Some(quote) if quoted[at + quote + 1..].starts_with('"') => at += quote + 2,
            Some(quote) => {
                let (field, behind) = quoted.split_at(at + quote);
                return (field.trim().replace("\"\"", "\"").into(), &behind[1..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The type of each line, in short form; the end of the file is one more if it completes a row.
    fn read(csv: &mut Csv, text: &str) -> Vec<String> {
        let row = |row: Row| row.iter().map(|(name, text)| format!("{name}={text}")).collect::<Vec<_>>().join(" ");
        let short = |line: Line| match line {
            Line::Header => "header".to_owned(),
            Line::Held => "held".to_owned(),
            Line::Names => "names".to_owned(),
            Line::Other => "other".to_owned(),
            Line::Ragged { fields, names } => format!("{fields} of {names}"),
            Line::Rows(rows) if rows.is_empty() => "known".to_owned(),
            Line::Rows(rows) => rows.into_iter().map(row).collect::<Vec<_>>().join(" | "),
        };
        let mut read: Vec<String> = text.lines().map(|line| short(csv.read(line))).collect();
        read.extend(csv.finish().map(row));
        read
    }

    #[track_caller]
    fn reads(text: &str, expected: &[&str]) {
        assert_eq!(read(&mut Csv::default(), text), expected, "{text}");
    }

    #[test]
    fn a_header_gives_the_fields_of_each_row_their_names() {
        reads("epoch,step,loss\n0,10,0.5\n1,20,\n", &["names", "held", "epoch=0 step=10 loss=0.5 | epoch=1 step=20"]);
        reads("epoch,loss\n0,1\n1,NA\n2,nan", &["names", "held", "epoch=0 loss=1 | epoch=1", "epoch=2 loss=nan"]);
        reads("\u{feff}epoch;loss\n0;0.5", &["names", "held", "epoch=0 loss=0.5"]);
        reads("epoch\ttrain loss\n0\tnan", &["names", "held", "epoch=0 train loss=nan"]);
        reads(
            "  epoch,   metrics/precision(B)\n   1,     0.25",
            &["names", "held", "epoch=1 metrics/precision(B)=0.25"],
        );
        let yolo =
            "   epoch,      train/box_loss,     metrics/mAP_0.5, metrics/mAP_0.5:0.95\n       0,   0.1,   0.2,   0.3";
        let row = "epoch=0 train/box_loss=0.1 metrics/mAP_0.5=0.2 metrics/mAP_0.5:0.95=0.3";
        reads(yolo, &["names", "held", row]);
        reads(",loss\n0,0.5", &["names", "held", "loss=0.5"]);
        reads("# epoch,loss\n1,0.5", &["names", "held", "epoch=1 loss=0.5"]);
    }

    #[test]
    fn fields_may_be_in_quotes() {
        reads("\"epoch\", \"a \"\"b\"\", c\"\n\"1\",\"0.5\"", &["names", "held", "epoch=1 a \"b\", c=0.5"]);
        reads("a,b\n1,\"open", &["names", "held", "a=1 b=open"]);
    }

    #[test]
    fn a_repeated_header_may_have_other_names() {
        reads("epoch,loss\n0,0.5\nepoch,loss\n0,0.25", &["names", "held", "epoch=0 loss=0.5", "epoch=0 loss=0.25"]);
        reads(
            "epoch,loss\n0,1\n1,1\nepoch,acc,loss\n1,2,3",
            &["names", "held", "epoch=0 loss=1 | epoch=1 loss=1", "header", "epoch=1 acc=2 loss=3"],
        );
        reads("step,x\n0,a\n1,b\nc,d", &["names", "held", "step=0 x=a | step=1 x=b", "step=c x=d"]);
    }

    #[test]
    fn text_without_a_table_has_no_rows() {
        let lines = "Loading data, please wait\nready, steady\nloss=0.5, acc=0.7\n1,2";
        reads(lines, &["names", "names", "other", "other"]);
        reads("loss: 0.5, acc: 0.7\n1,2\n3,4", &["other"; 3]);
        reads("train:0.5,test:0.25\nround, train:0.5, test:0.25", &["other"; 2]);
        reads("a,a\n1,2", &["other"; 2]);
        reads("epoch\n1", &["other"; 2]);
        reads("Loading model, tokenizer\nloss=0.5, 12.3s\nloss=0.4, 12.1s", &["names", "other", "other"]);
        reads("Loading data, please wait\n3, 12.5s\nloss=0.5\n4, 11s", &["names", "held", "other", "other"]);
        reads("loss=0.5\nLoading data, please wait\n3, 12.5", &["other", "names", "held"]);
    }

    #[test]
    fn a_row_of_another_length_is_reported() {
        reads("a,b\n1,2\n1,2\n1,2,3\nepoch done\n", &["names", "held", "a=1 b=2 | a=1 b=2", "3 of 2", "other"]);
    }

    #[test]
    fn repeated_rows_of_a_rewritten_file_are_recognised_even_with_a_new_column() {
        let mut csv = Csv::default();
        read(&mut csv, "step,loss\n1,0.5\n2,0.25");
        csv.start_again();
        let repeated = read(&mut csv, "step,acc,loss\n1,,0.5\n2,,0.25\n3,0.9,0.125\n1,,0.5");
        assert_eq!(repeated, ["names", "held", "known", "step=3 acc=0.9 loss=0.125", "step=1 loss=0.5"]);
        csv.start_again();
        assert_eq!(
            read(&mut csv, "step,loss\n1,0.75\n2,0.25"),
            ["names", "held", "step=1 loss=0.75 | step=2 loss=0.25"]
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(lines in prop::collection::vec("[a-c0-9,;\t\" #.]{0,12}", 0..8)) {
            let mut csv = Csv::default();
            for line in &lines {
                if let Line::Rows(rows) = csv.read(line) {
                    prop_assert!(rows.iter().flatten().all(|(name, text)| !name.is_empty() && !text.is_empty()));
                }
            }
        }
    }
}

//! Reads a file of comma-separated values with a header, as a CSV logger writes it: one line of names, then a row of
//! numbers for each step. An example: `epoch,step,train_loss` and then `0,10,0.5`.
//!
//! A line of two or more names, none of them a number, is a header if the next line is a row: with the same number of
//! fields, and with a number among them. A later line of names that shares a name with the header is a new header,
//! because a restart writes it again. Commas, semicolons and tabs are separators. A field may be in `"`. Deliberately
//! absent: fields that contain line ends.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::metric::files::pairs::pairs;
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
    header: Option<Header>,
    /// The rows that were reported, as hashes, in order.
    reported: Vec<u64>,
    /// Set if the file was rewritten: the number of those rows that were repeated so far.
    repeated: Option<usize>,
}

/// The type of a line.
#[derive(Debug, PartialEq)]
pub(in crate::metric) enum Line<'a> {
    /// Names.
    Header,
    /// The fields with values, by name.
    Row(Vec<(String, Cow<'a, str>)>),
    /// A row that was reported before the file was rewritten.
    Known,
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
    pub(in crate::metric) fn read<'a>(&mut self, line: &'a str) -> Line<'a> {
        let new = Header::of(line);
        if let Some(header) = &self.header
            && new.as_ref().is_some_and(|new| new.shares_with(header))
        {
            self.header = new;
            return Line::Header;
        }
        if let Some(header) = self.header.as_ref().or(self.candidate.as_ref()) {
            let fields = fields(line, header.separator);
            if fields.len() == header.names.len() {
                if self.header.is_some() || fields.iter().any(|field| value(field).is_some()) {
                    let row = header.row(fields);
                    self.header = self.header.take().or(self.candidate.take());
                    return if self.is_repeated(&row) { Line::Known } else { Line::Row(row) };
                }
            } else if self.header.is_some() && fields.len() > 1 {
                return Line::Ragged { fields: fields.len(), names: header.names.len() };
            }
        }
        self.candidate = new;
        if self.candidate.as_ref().is_some_and(Header::is_of_names) { Line::Names } else { Line::Other }
    }

    /// The file is rewritten, perhaps with the same rows.
    pub(in crate::metric) fn start_again(&mut self) {
        (self.candidate, self.header) = (None, None);
        self.repeated = Some(0);
    }

    /// Whether this row repeats the row at the same position before the file was rewritten. New columns are ignored.
    fn is_repeated(&mut self, row: &[(String, Cow<'_, str>)]) -> bool {
        let mut hasher = DefaultHasher::new();
        let mut sorted: Vec<_> = row.iter().map(|(name, text)| (name.as_str(), text.as_ref())).collect();
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
        let with_values = self.names.iter().filter(|name| !pairs(name).is_empty()).count();
        with_values * 2 < self.names.len()
    }

    fn shares_with(&self, other: &Header) -> bool {
        self.names.iter().any(|name| !name.is_empty() && other.names.contains(name))
    }

    fn row<'a>(&self, fields: Vec<Cow<'a, str>>) -> Vec<(String, Cow<'a, str>)> {
        let pairs = self.names.iter().cloned().zip(fields);
        pairs.filter(|(name, field)| !name.is_empty() && !EMPTY_VALUES.contains(&field.as_ref())).collect()
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

    /// The type of each line, in short form.
    fn read(csv: &mut Csv, text: &str) -> Vec<String> {
        let short = |line: Line<'_>| match line {
            Line::Header => "header".to_owned(),
            Line::Known => "known".to_owned(),
            Line::Names => "names".to_owned(),
            Line::Other => "other".to_owned(),
            Line::Ragged { fields, names } => format!("{fields} of {names}"),
            Line::Row(row) => row.iter().map(|(name, text)| format!("{name}={text}")).collect::<Vec<_>>().join(" "),
        };
        text.lines().map(|line| short(csv.read(line))).collect()
    }

    #[track_caller]
    fn reads(text: &str, expected: &[&str]) {
        assert_eq!(read(&mut Csv::default(), text), expected, "{text}");
    }

    #[test]
    fn a_header_gives_the_fields_of_each_row_their_names() {
        reads("epoch,step,loss\n0,10,0.5\n1,20,\n", &["names", "epoch=0 step=10 loss=0.5", "epoch=1 step=20"]);
        reads("epoch,loss\n0,1\n1,NA\n2,nan", &["names", "epoch=0 loss=1", "epoch=1", "epoch=2 loss=nan"]);
        reads("\u{feff}epoch;loss\n0;0.5", &["names", "epoch=0 loss=0.5"]);
        reads("epoch\ttrain loss\n0\tnan", &["names", "epoch=0 train loss=nan"]);
        reads("  epoch,   metrics/precision(B)\n   1,     0.25", &["names", "epoch=1 metrics/precision(B)=0.25"]);
        let yolo =
            "   epoch,      train/box_loss,     metrics/mAP_0.5, metrics/mAP_0.5:0.95\n       0,   0.1,   0.2,   0.3";
        let row = "epoch=0 train/box_loss=0.1 metrics/mAP_0.5=0.2 metrics/mAP_0.5:0.95=0.3";
        reads(yolo, &["names", row]);
        reads(",loss\n0,0.5", &["names", "loss=0.5"]);
        reads("# epoch,loss\n1,0.5", &["names", "epoch=1 loss=0.5"]);
    }

    #[test]
    fn fields_may_be_in_quotes() {
        reads("\"epoch\", \"a \"\"b\"\", c\"\n\"1\",\"0.5\"", &["names", "epoch=1 a \"b\", c=0.5"]);
        reads("a,b\n1,\"open", &["names", "a=1 b=open"]);
    }

    #[test]
    fn a_repeated_header_may_have_other_names() {
        reads("epoch,loss\n0,0.5\nepoch,loss\n0,0.25", &["names", "epoch=0 loss=0.5", "header", "epoch=0 loss=0.25"]);
        reads("epoch,loss\n0,1\nepoch,acc,loss\n1,2,3", &["names", "epoch=0 loss=1", "header", "epoch=1 acc=2 loss=3"]);
        reads("epoch,phase\n0,train\nbest,last", &["names", "epoch=0 phase=train", "epoch=best phase=last"]);
    }

    #[test]
    fn text_without_a_table_has_no_rows() {
        let lines = "Loading data, please wait\nready, steady\nloss=0.5, acc=0.7\n1,2";
        reads(lines, &["names", "names", "other", "other"]);
        reads("loss: 0.5, acc: 0.7\n1,2\n3,4", &["other"; 3]);
        reads("train:0.5,test:0.25\nround, train:0.5, test:0.25", &["other"; 2]);
        reads("a,a\n1,2", &["other"; 2]);
        reads("epoch\n1", &["other"; 2]);
    }

    #[test]
    fn a_row_of_another_length_is_reported() {
        reads("a,b,c\n1,2,3\n1,2\nepoch done\n", &["names", "a=1 b=2 c=3", "2 of 3", "other"]);
    }

    #[test]
    fn repeated_rows_of_a_rewritten_file_are_recognised_even_with_a_new_column() {
        let mut csv = Csv::default();
        read(&mut csv, "step,loss\n1,0.5\n2,0.25");
        csv.start_again();
        let repeated = read(&mut csv, "step,acc,loss\n1,,0.5\n2,,0.25\n3,0.9,0.125\n1,,0.5");
        assert_eq!(repeated, ["names", "known", "known", "step=3 acc=0.9 loss=0.125", "step=1 loss=0.5"]);
        csv.start_again();
        assert_eq!(read(&mut csv, "step,loss\n1,0.75\n2,0.25"), ["names", "step=1 loss=0.75", "step=2 loss=0.25"]);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(lines in prop::collection::vec("[a-c0-9,;\t\" #.]{0,12}", 0..8)) {
            let mut csv = Csv::default();
            for line in &lines {
                if let Line::Row(row) = csv.read(line) {
                    prop_assert!(row.iter().all(|(name, text)| !name.is_empty() && !text.is_empty()));
                }
            }
        }
    }
}

//! Writes one report as a line of the metrics file, byte for byte like cloudml-hypertune 0.1.0.dev6. An example:
//! `{"accuracy": "0.93", "checkpoint_path": "", "global_step": "100", "timestamp": 1700000000.5, "trial": "0"}`
//!
//! A JSON library would escape differently (raw UTF-8, raw 0x7f). Deliberately absent: the path of the file.

use std::fmt::Write as _;

use thiserror::Error;

use crate::metric::foreign_text::number::{parse_float, parse_step, repr};

/// The tag of a report without one.
pub const DEFAULT_TAG: &str = "training/hptuning/metric";

/// The other keys of every line.
pub(in crate::metric) const KEYS: [&str; 4] = ["checkpoint_path", "global_step", "timestamp", "trial"];

/// A valid measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    tag: String,
    pub(in crate::metric) value: f64,
    pub(in crate::metric) step: String,
    checkpoint_path: String,
}

/// Why a report is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Wrong {
    /// The value is not a float.
    #[error(
        "the value {0:?} is not a number, so it cannot be reported; expected a number in the form of Python's float(), such as 0.93 or 1e-5"
    )]
    Value(String),
    /// The step is not an integer.
    #[error("the step {0:?} is not a whole number, so the metric cannot be reported; expected one such as 100")]
    Step(String),
    /// The tag would replace another key of the line.
    #[error(
        "the tag {0:?} is a key of every line in the metrics file, and a reader would lose the metric; choose another tag"
    )]
    Reserved(String),
}

impl Report {
    /// Reads value and step like Python. An empty tag means the default one. Errors: the invalid part.
    pub fn parse(tag: &str, value: &str, step: &str, checkpoint_path: &str) -> Result<Report, Wrong> {
        let value = parse_float(value).ok_or_else(|| Wrong::Value(shown(value)))?;
        let step = parse_step(step).ok_or_else(|| Wrong::Step(shown(step)))?;
        Report::new(tag, value, step, checkpoint_path)
    }

    /// A report from a value and a step (decimal text) that are valid numbers.
    pub fn new(tag: &str, value: f64, step: String, checkpoint_path: &str) -> Result<Report, Wrong> {
        let tag = if tag.is_empty() { DEFAULT_TAG } else { tag };
        match KEYS.contains(&tag) {
            true => Err(Wrong::Reserved(tag.to_owned())),
            false => Ok(Report { tag: tag.to_owned(), value, step, checkpoint_path: checkpoint_path.to_owned() }),
        }
    }

    /// Warnings for what the tuning service is likely to refuse, although the library would write it. One line each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.tag.chars().any(char::is_whitespace) {
            warnings.push(format!(
                "the tag {:?} has white space, which a metricId of a study must not have; it is written unchanged",
                shown(&self.tag)
            ));
        }
        warnings.extend(non_finite_warning(self.value));
        warnings.extend(refused_step_warning(&self.step));
        warnings
    }

    /// Appends the line with its newline. `timestamp` is in seconds since 1970 (see [`crate::metric::foreign_text::number::timestamp`]).
    pub fn write(&self, timestamp: f64, trial: &str, into: &mut Vec<u8>) {
        let mut fields = [
            (self.tag.as_str(), quoted(&repr(self.value))),
            ("checkpoint_path", quoted(&self.checkpoint_path)),
            ("global_step", quoted(&self.step)),
            ("timestamp", repr(timestamp)),
            ("trial", quoted(trial)),
        ];
        fields.sort_by_key(|(key, _)| *key);
        let mut separator = "{";
        for (key, value) in fields {
            for part in [separator, &quoted(key), ": ", &value] {
                into.extend_from_slice(part.as_bytes());
            }
            separator = ", ";
        }
        into.extend_from_slice(b"}\n");
    }
}

/// The warning for a value that is not finite.
pub(in crate::metric) fn non_finite_warning(value: f64) -> Option<String> {
    (!value.is_finite()).then(|| {
        format!(
            "the value is {}, so the training may have diverged, and a tuning service may mark the trial INFEASIBLE; it is \
             written as cloudml-hypertune would write it, without further warnings",
            repr(value)
        )
    })
}

/// The warning for a step (decimal text) that the tuning service is likely to refuse.
pub(in crate::metric) fn refused_step_warning(step: &str) -> Option<String> {
    let what = match step.parse::<i64>() {
        _ if step.starts_with('-') => "negative",
        Ok(_) => return None,
        Err(_) => "beyond 64 bits",
    };
    Some(format!("the step {} is {what}, which a tuning service refuses; it is written unchanged", shown(step)))
}

/// A JSON string in the form of Python's `json.dumps`: ASCII only, lower-case hex, surrogate pairs.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{c}' => quoted.push_str("\\f"),
            '\u{8}' => quoted.push_str("\\b"),
            ' '..='~' => quoted.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a String cannot fail.
                    let _ = write!(quoted, "\\u{unit:04x}");
                }
            }
        }
    }
    quoted.push('"');
    quoted
}

/// At most 60 characters of foreign text.
pub(in crate::metric) fn shown(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(tag: &str, value: &str, step: &str, checkpoint_path: &str, trial: &str) -> String {
        let mut bytes = Vec::new();
        Report::parse(tag, value, step, checkpoint_path).expect("a good report").write(
            1_700_000_000.5,
            trial,
            &mut bytes,
        );
        String::from_utf8(bytes).expect("ASCII")
    }

    #[test]
    fn a_line_is_equal_to_the_librarys() {
        assert_eq!(
            line("training/hptuning/metric", "0.5", "3", "gs://b/ckpt", "0"),
            "{\"checkpoint_path\": \"gs://b/ckpt\", \"global_step\": \"3\", \"timestamp\": 1700000000.5, \
             \"training/hptuning/metric\": \"0.5\", \"trial\": \"0\"}\n"
        );
    }

    #[test]
    fn the_tag_is_sorted_by_code_points() {
        for (tag, place) in [("Accuracy", 0), ("accuracy", 0), ("loss", 2), ("trial_acc", 4), ("val_loss", 4), ("é", 4)]
        {
            let text = line(tag, "1", "", "", "");
            let before = text.split(&quoted(tag)).next().expect("the part before the tag").matches("\": ").count();
            assert_eq!(before, place, "{text}");
        }
    }

    #[test]
    fn an_empty_tag_is_the_default_one() {
        assert!(line("", "1", "", "", "0").contains("\"training/hptuning/metric\": \"1.0\""));
    }

    #[test]
    fn a_tag_that_is_a_key_of_the_line_is_refused() {
        for tag in KEYS {
            assert_eq!(Report::parse(tag, "1", "", ""), Err(Wrong::Reserved(tag.to_owned())));
        }
    }

    #[test]
    fn characters_are_escaped_as_python_escapes_them() {
        assert_eq!(
            quoted("\"\\\n\r\t\u{c}\u{8}\u{1f}/\u{7f}é\u{2028}😀~ "),
            r#""\"\\\n\r\t\f\b\u001f/\u007f\u00e9\u2028\ud83d\ude00~ ""#
        );
    }

    #[test]
    fn values_that_a_tuning_service_refuses_cause_warnings() {
        let warnings = |tag: &str, step: &str| Report::parse(tag, "1", step, "").expect("a good report").warnings();
        assert!(warnings("a b", "1")[0].contains("white space"));
        assert!(warnings("a", "-1")[0].contains("negative"));
        assert!(warnings("a", "9223372036854775808")[0].contains("64 bits"));
        let odd = |value: &str| Report::parse("a", value, "1", "").expect("a good report").warnings();
        assert!(
            odd("nan")[0].contains("the value is nan") && odd("-inf")[0].contains("-inf") && odd("1e308").is_empty()
        );
        assert_eq!(warnings("a/b", "9223372036854775807"), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn every_line_is_one_line_of_ascii_and_parses_back(
            tag in "\\PC*|[\\x00-\\x7f]*", value in any::<f64>(), step in any::<i64>(), path in "\\PC*", trial in "\\PC*",
        ) {
            prop_assume!(!KEYS.contains(&tag.as_str()));
            let report = Report::new(&tag, value, step.to_string(), &path).expect("a good report");
            let mut bytes = Vec::new();
            report.write(1.5, &trial, &mut bytes);
            prop_assert!(bytes.is_ascii());
            prop_assert_eq!(bytes.iter().position(|b| *b == b'\n'), Some(bytes.len() - 1));
            let back: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
            prop_assert_eq!(back.as_object().map(serde_json::Map::len), Some(5));
            let of = |key: &str| back[key].as_str().map(str::to_owned);
            prop_assert_eq!(of(&report.tag), Some(repr(value)));
            prop_assert_eq!(of("global_step"), Some(step.to_string()));
            prop_assert_eq!(of("checkpoint_path"), Some(path));
            prop_assert_eq!(of("trial"), Some(trial));
        }
    }
}

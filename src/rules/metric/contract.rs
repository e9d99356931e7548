//! What a hyperparameter tuner expects of a trial, as far as it can be seen from here: a report of the metric that it waits
//! for (`CLOUD_ML_HP_METRIC_TAG`), in the trial's metrics file, at steps that only grow. Otherwise the trial may become
//! INFEASIBLE, and nobody says why.
//!
//! Deliberately absent: any effect but a warning. How a service reads the file is not documented.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::line::KEYS;
use crate::rules::plain::named;

/// A warning for a run none of whose metrics has the tag that the tuner waits for.
pub fn tag_differs(expected: Option<&str>, tags: &[&str]) -> Option<String> {
    let expected = expected.filter(|tag| !tag.is_empty() && !tags.is_empty() && !tags.contains(tag))?;
    Some(format!(
        "the tuner waits for the metric {expected:?} (CLOUD_ML_HP_METRIC_TAG), and only {} will be reported: the trial may \
         become INFEASIBLE; rename one of them",
        tags.join(", ")
    ))
}

/// A warning for steps that go back.
pub fn steps_go_back(tag: &str, from: impl std::fmt::Display, to: impl std::fmt::Display) -> String {
    format!(
        "the steps of metric {tag:?} go back, from {from} to {to}: a tuning service may ignore what comes again, or call the \
         trial INFEASIBLE"
    )
}

/// What to do where a metric was looked for in vain.
const COMPARE: &str = "compare --metric, --tensorboard-tag or --metric-file with what the trainer writes";

/// So many that came are named.
const NAMED: usize = 10;

/// A warning for a run that finished, of what it was to collect and did not: anything at all, or the tags of `missing`;
/// with those that `came` instead.
pub fn never_came<'a>(came: impl IntoIterator<Item = &'a str>, missing: &[&str]) -> Option<String> {
    match (named(came.into_iter().map(str::to_owned), NAMED), missing) {
        (None, _) => Some(format!("nothing that was looked for came, so no metric of this run is reported; {COMPARE}")),
        (_, []) => None,
        (Some(came), tags) => {
            Some(format!("no value of {} came, so the metrics file has none; {came} came; {COMPARE}", tags.join(", ")))
        }
    }
}

/// A trial that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    /// Its id.
    pub id: &'a str,
    /// The tag that the tuner waits for, where it is known and nothing was said of it yet.
    pub tag: Option<&'a str>,
    /// The metrics file's name.
    pub path: &'a str,
    /// Whether trainit looked for metrics; if not, the trainer reports by itself, and nobody has watched its steps.
    pub collects: bool,
}

impl Trial<'_> {
    /// Warnings for what the metrics file holds at the end, or its last lines.
    pub fn at_end(&self, file: &[u8]) -> Vec<String> {
        let tags = self.tags(file);
        if tags.is_empty() {
            let advice = match self.collects {
                true => ["nothing that was looked for came; ", COMPARE],
                false => ["let the trainer report one, ", "call trainit report-metric, or name one with run --metric"],
            };
            return vec![format!(
                "trial {} ended without one report in {}, so it may become INFEASIBLE: {}",
                self.id,
                self.path,
                advice.concat()
            )];
        }
        let mut warnings = Vec::new();
        if let Some(tag) = self.tag.filter(|tag| !tag.is_empty() && !tags.contains_key(*tag)) {
            let there: Vec<&str> = tags.keys().map(String::as_str).collect();
            warnings.push(format!(
                "the tuner waits for the metric {tag:?} (CLOUD_ML_HP_METRIC_TAG), and {} has only {}: the trial may become \
                 INFEASIBLE; report one under that name",
                self.path,
                there.join(", ")
            ));
        }
        let backwards = tags.iter().filter(|_| !self.collects).filter_map(|(tag, steps)| {
            let pair = steps.windows(2).find(|pair| pair[0] > pair[1])?;
            Some(steps_go_back(tag, pair[0], pair[1]))
        });
        warnings.extend(backwards);
        warnings
    }

    /// The steps of each tag of this trial, in the order of the file. What is no report is nothing.
    fn tags(&self, file: &[u8]) -> BTreeMap<String, Vec<i128>> {
        let mut tags: BTreeMap<String, Vec<i128>> = BTreeMap::new();
        for line in file.split(|b| *b == b'\n') {
            let Ok(line) = serde_json::from_slice::<Map<String, Value>>(line) else { continue };
            if line.get("trial").and_then(Value::as_str) != Some(self.id) {
                continue;
            }
            let step = line.get("global_step").and_then(Value::as_str).and_then(|step| step.parse::<i128>().ok());
            for (tag, value) in &line {
                if value.is_string() && !KEYS.contains(&tag.as_str()) {
                    tags.entry(tag.clone()).or_default().extend(step);
                }
            }
        }
        tags
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::metric::line::Report;

    fn file(reports: &[(&str, i64, &str)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (tag, step, trial) in reports {
            let report = Report::new(tag, 0.5, step.to_string(), "").expect("a report");
            report.write(1.7e9, trial, &mut bytes);
        }
        bytes
    }

    fn warnings(tag: Option<&str>, collects: bool, file: &[u8]) -> Vec<String> {
        Trial { id: "7", tag, path: "/m", collects }.at_end(file)
    }

    #[test]
    fn a_tag_that_the_tuner_does_not_wait_for_is_warned_of_beforehand() {
        let differs = |tag, tags: &[&str]| tag_differs(tag, tags);
        assert!(differs(Some("acc"), &["loss", "f1"]).is_some_and(|w| w.contains("\"acc\"") && w.contains("loss, f1")));
        assert_eq!(differs(Some("acc"), &["loss", "acc"]).or(differs(None, &["loss"])), None);
        assert_eq!(differs(Some(""), &["loss"]).or(differs(Some("acc"), &[])), None);
    }

    #[test]
    fn what_was_looked_for_and_never_came_is_named() {
        let never = |came: &[&str], missing: &[&str]| never_came(came.iter().copied(), missing);
        assert!(never(&[], &["acc"]).is_some_and(|w| w.starts_with("nothing that was looked for came")));
        let warning = never(&["accuracy", "loss"], &["acc", "f1"]).expect("a warning");
        assert!(
            warning.starts_with("no value of acc, f1 came") && warning.contains("; accuracy, loss came; "),
            "{warning}"
        );
        let many = never(&["m"; NAMED + 1], &["acc"]).expect("a warning");
        assert!(many.contains("m, m, ... came") && many.matches("m, ").count() == NAMED, "{many}");
        assert_eq!(never(&["m"], &[]), None);
    }

    #[test]
    fn a_trial_without_a_report_of_its_own_is_warned_of() {
        for bytes in [&b""[..], b"\n\n", b"{\"torn", b"[1]\n{}\n", file(&[("loss", 1, "6")]).as_slice()] {
            let found = warnings(Some("loss"), true, bytes);
            assert!(
                found.len() == 1 && found[0].contains("trial 7 ended") && found[0].contains("INFEASIBLE"),
                "{found:?}"
            );
        }
        assert!(warnings(None, false, b"")[0].contains("report-metric"));
    }

    #[test]
    fn reports_under_another_name_only_are_warned_of() {
        let bytes = file(&[("loss", 1, "7"), ("f1", 1, "7"), ("acc", 1, "6")]);
        let found = warnings(Some("acc"), true, &bytes);
        assert!(found.len() == 1 && found[0].contains("\"acc\"") && found[0].contains("only f1, loss"), "{found:?}");
        assert_eq!((warnings(Some("f1"), true, &bytes), warnings(None, false, &bytes)), (vec![], vec![]));
    }

    #[test]
    fn steps_that_go_back_are_warned_of_where_nobody_watched_them() {
        let bytes = file(&[("a", 2, "7"), ("b", 5, "7"), ("a", 1, "7"), ("a", 0, "7"), ("b", 5, "7")]);
        let found = warnings(Some("a"), false, &bytes);
        assert!(found.len() == 1 && found[0].contains("\"a\" go back, from 2 to 1"), "{found:?}");
        assert!(warnings(Some("a"), true, &bytes).is_empty());
    }
}

//! Checks a trial against the expectations of a hyperparameter tuner: a report of the metric that it waits for
//! (`CLOUD_ML_HP_METRIC_TAG`), in the trial's metrics file, with steps that only grow. Otherwise the trial may become
//! INFEASIBLE without an explanation.
//!
//! Deliberately absent: any effect except warnings. How a service reads the file is not documented.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::metric::report::line::KEYS;
use crate::metric::sources::Sources;
use crate::text::quoted::shown;
use crate::text::safe_text::named;

/// The warning for a run in which no metric has the tag that the tuner waits for.
pub fn tag_differs(expected: Option<&str>, tags: &[&str]) -> Option<String> {
    let expected = expected.filter(|tag| !tag.is_empty() && !tags.is_empty() && !tags.contains(tag))?;
    Some(format!(
        "the tuner waits for the metric {expected:?} (CLOUD_ML_HP_METRIC_TAG), but only {} will be reported: the trial may \
         become INFEASIBLE; rename one of them",
        tags.join(", ")
    ))
}

/// The warning for steps that decrease.
pub fn steps_decrease(tag: &str, from: impl std::fmt::Display, to: impl std::fmt::Display) -> String {
    format!(
        "the steps of metric {tag:?} decrease from {from} to {to}: a tuning service may ignore the repeated steps, or mark the \
         trial INFEASIBLE"
    )
}

/// Advice for a metric that was not found.
const COMPARE: &str = "compare --metric, --tensorboard-tag or --metric-file with what the trainer writes";

/// The limit for metrics that are named.
const MOST_NAMED: usize = 10;

/// The warning for a run that finished without metrics that it should have collected: no metric at all, no value for
/// the tags of `missing`, or no metric in a file. It names the metrics that were `found` instead, and the content of
/// each source.
pub fn not_found<'a>(found: impl IntoIterator<Item = &'a str>, missing: &[&str], sources: &Sources) -> Option<String> {
    let seen = sources.summary();
    match (named(found.into_iter().map(str::to_owned), MOST_NAMED), missing) {
        (None, _) => Some(format!("no metric was found, so none of this run is reported; {seen}; {COMPARE}")),
        (Some(found), []) => sources
            .without_metrics()
            .map(|seen| format!("a file had no metric: {seen}; other sources had {found}; {COMPARE}")),
        (Some(found), tags) => {
            let tags = tags.join(", ");
            Some(format!(
                "no value of {tags} was found, so the metrics file has none; found were {found}; {seen}; {COMPARE}"
            ))
        }
    }
}

/// A warning for a run in which `--metric-step` named a step that nothing had.
pub fn no_steps(name: &str) -> String {
    format!(
        "no number stood behind {name:?} (--metric-step), so the values of each metric are counted instead, from 1; give the \
         name that the trainer writes"
    )
}

/// A trial that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    /// Its id.
    pub id: &'a str,
    /// The tag that the tuner waits for, if it is known and no warning has named it.
    pub tag: Option<&'a str>,
    /// The metrics file's name.
    pub path: &'a str,
    /// The searched sources; `None` if the trainer reports itself, so that its steps have not been checked.
    pub sources: Option<&'a Sources>,
}

impl Trial<'_> {
    /// The warnings about the metrics file (or its last lines) at the end.
    pub fn at_end(&self, file: &[u8]) -> Vec<String> {
        let tags = self.tags(file);
        if tags.is_empty() {
            let advice = match self.sources {
                Some(sources) => format!("no metric was found; {}; {COMPARE}", sources.summary()),
                None => "report a metric in the trainer, call trainit report-metric, or select one with run --metric"
                    .to_owned(),
            };
            return vec![format!(
                "trial {} ended without a report in {}, so it may become INFEASIBLE: {}",
                shown(self.id),
                self.path,
                advice
            )];
        }
        let mut warnings = Vec::new();
        if let Some(tag) = self.tag.filter(|tag| !tag.is_empty() && !tags.contains_key(*tag)) {
            let reported: Vec<&str> = tags.keys().map(String::as_str).collect();
            warnings.push(format!(
                "the tuner waits for the metric {tag:?} (CLOUD_ML_HP_METRIC_TAG), but {} has only {}: the trial may become \
                 INFEASIBLE; report a metric with that name",
                self.path,
                reported.join(", ")
            ));
        }
        let backwards = tags.iter().filter(|_| self.sources.is_none()).filter_map(|(tag, steps)| {
            let pair = steps.windows(2).find(|pair| pair[0] > pair[1])?;
            Some(steps_decrease(tag, pair[0], pair[1]))
        });
        warnings.extend(backwards);
        warnings
    }

    /// The steps of each tag of this trial, in the order of the file. Lines that are not reports are skipped.
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
    use crate::metric::report::line::Report;
    use crate::metric::sources::Records;

    fn file(reports: &[(&str, i64, &str)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (tag, step, trial) in reports {
            let report = Report::new(tag, 0.5, step.to_string(), "").expect("a report");
            report.write(1.7e9, trial, &mut bytes);
        }
        bytes
    }

    fn warnings(tag: Option<&str>, collects: bool, file: &[u8]) -> Vec<String> {
        let sources = Sources::default();
        Trial { id: "7", tag, path: "/m", sources: collects.then_some(&sources) }.at_end(file)
    }

    #[test]
    fn a_tag_that_the_tuner_does_not_wait_for_causes_a_warning_at_the_start() {
        let differs = |tag, tags: &[&str]| tag_differs(tag, tags);
        assert!(differs(Some("acc"), &["loss", "f1"]).is_some_and(|w| w.contains("\"acc\"") && w.contains("loss, f1")));
        assert_eq!(differs(Some("acc"), &["loss", "acc"]).or(differs(None, &["loss"])), None);
        assert_eq!(differs(Some(""), &["loss"]).or(differs(Some("acc"), &[])), None);
    }

    #[test]
    fn a_metric_that_was_not_found_is_named() {
        let records = Records { shown: "log".to_owned(), ..Records::default() };
        let sources = Sources { file: Some(records), ..Sources::default() };
        let never = |found: &[&str], missing: &[&str]| not_found(found.iter().copied(), missing, &sources);
        assert!(never(&[], &["acc"]).is_some_and(|w| w.starts_with("no metric was found")));
        let warning = never(&["accuracy", "loss"], &["acc", "f1"]).expect("a warning");
        assert!(
            warning.starts_with("no value of acc, f1 was found")
                && warning.contains("; found were accuracy, loss; log never existed; "),
            "{warning}"
        );
        let many = never(&["m"; MOST_NAMED + 1], &["acc"]).expect("a warning");
        assert!(many.contains("m, m, ...; ") && many.matches("m, ").count() == MOST_NAMED, "{many}");
        assert!(never(&["m"], &[]).is_some_and(|w| w.contains("log never existed; other sources had m")));
        assert_eq!(not_found(["m"], &[], &Sources::default()), None);
    }

    #[test]
    fn a_trial_without_a_report_causes_a_warning() {
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
    fn reports_with_only_another_name_cause_a_warning() {
        let bytes = file(&[("loss", 1, "7"), ("f1", 1, "7"), ("acc", 1, "6")]);
        let found = warnings(Some("acc"), true, &bytes);
        assert!(found.len() == 1 && found[0].contains("\"acc\"") && found[0].contains("only f1, loss"), "{found:?}");
        assert_eq!((warnings(Some("f1"), true, &bytes), warnings(None, false, &bytes)), (vec![], vec![]));
    }

    #[test]
    fn decreasing_steps_in_the_file_cause_a_warning_if_they_were_not_checked_before() {
        let bytes = file(&[("a", 2, "7"), ("b", 5, "7"), ("a", 1, "7"), ("a", 0, "7"), ("b", 5, "7")]);
        let found = warnings(Some("a"), false, &bytes);
        assert!(found.len() == 1 && found[0].contains("\"a\" decrease from 2 to 1"), "{found:?}");
        assert!(warnings(Some("a"), true, &bytes).is_empty());
    }
}

//! What was measured so far: the last value of each tag, the steps of tags that count their own, and what the tuning
//! service is likely to make of it.
//!
//! Deliberately absent: where a measurement came from, and the file it goes to.

use std::collections::BTreeMap;

use super::line::Report;
use super::number::repr;
use super::pattern::Found;

/// One for a whole run: counts go on through its attempts.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    tags: BTreeMap<String, Tag>,
    reports: u64,
}

#[derive(Debug, Clone)]
struct Tag {
    count: u64,
    value: f64,
    step: i128,
    step_went_back: bool,
}

impl Ledger {
    /// Enters a measurement; without a step it has the number of the tag's measurements, from 1. Gives the report, and a
    /// warning the first time that a tag's steps go back. `None` for a tag that no report can have.
    pub fn enter(&mut self, tag: &str, found: Found) -> Option<(Report, Option<String>)> {
        if !self.tags.contains_key(tag) {
            self.tags.insert(tag.to_owned(), Tag { count: 0, value: 0.0, step: i128::MIN, step_went_back: false });
        }
        let entry = self.tags.get_mut(tag)?;
        entry.count += 1;
        entry.value = found.value;
        let text = found.step.unwrap_or_else(|| entry.count.to_string());
        let step = text.parse().unwrap_or(entry.step);
        let warning = (step < entry.step && !entry.step_went_back).then(|| {
            format!(
                "the steps of metric {tag:?} go back, from {} to {step}: a tuning service may ignore what comes again, \
                 or call the trial INFEASIBLE",
                entry.step
            )
        });
        entry.step_went_back |= warning.is_some();
        entry.step = step;
        let report = Report::new(tag, found.value, text, "").ok()?;
        self.reports += 1;
        Some((report, warning))
    }

    /// How many measurements there were.
    pub fn reports(&self) -> u64 {
        self.reports
    }

    /// The last value of each tag, as it was reported.
    pub fn last_values(&self) -> BTreeMap<String, String> {
        self.tags.iter().map(|(tag, entry)| (tag.clone(), repr(entry.value))).collect()
    }
}

/// A warning for a run none of whose metrics has the tag that the tuner waits for (`CLOUD_ML_HP_METRIC_TAG`).
pub fn tag_differs(expected: Option<&str>, tags: &[&str]) -> Option<String> {
    let expected = expected.filter(|tag| !tag.is_empty() && !tags.is_empty() && !tags.contains(tag))?;
    Some(format!(
        "the tuner waits for the metric {expected:?} (CLOUD_ML_HP_METRIC_TAG), and only {} will be reported: the trial may \
         become INFEASIBLE; rename one of them",
        tags.join(", ")
    ))
}

/// A warning for a trial (`CLOUD_ML_TRIAL_ID`) that ended without a report though metrics were looked for.
pub fn nothing_reported(trial: Option<&str>, reports: u64, tags: &[&str]) -> Option<String> {
    let trial = trial.filter(|_| reports == 0)?;
    Some(format!(
        "trial {trial} ended without one report of {}, so it may become INFEASIBLE: no line of the output matched; compare \
         --metric with what the trainer prints",
        tags.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(value: f64, step: Option<&str>) -> Found {
        Found { value, step: step.map(str::to_owned) }
    }

    #[test]
    fn a_tag_without_steps_counts_its_own() {
        let mut ledger = Ledger::default();
        let mut step = |tag: &str| ledger.enter(tag, found(0.5, None)).expect("a report").0.step().to_owned();
        assert_eq!([step("a"), step("b"), step("a"), step("a")], ["1", "1", "2", "3"]);
    }

    #[test]
    fn the_last_value_of_each_tag_stays() {
        let mut ledger = Ledger::default();
        for (tag, value) in [("a", 0.5), ("b", 1e-5), ("a", 0.25)] {
            assert!(ledger.enter(tag, found(value, None)).is_some());
        }
        let expected = [("a", "0.25"), ("b", "1e-05")].map(|(t, v)| (t.to_owned(), v.to_owned()));
        assert_eq!((ledger.last_values(), ledger.reports()), (BTreeMap::from(expected), 3));
    }

    #[test]
    fn steps_that_go_back_are_warned_of_once_for_each_tag() {
        let mut ledger = Ledger::default();
        let mut warns = |tag, step| ledger.enter(tag, found(1.0, Some(step))).expect("a report").1.is_some();
        assert_eq!([warns("a", "5"), warns("a", "5"), warns("b", "1"), warns("a", "9")], [false; 4]);
        assert_eq!([warns("a", "4"), warns("a", "3"), warns("b", "0")], [true, false, true]);
    }

    #[test]
    fn a_tag_that_the_tuner_does_not_wait_for_is_warned_of() {
        assert!(
            tag_differs(Some("acc"), &["loss", "f1"]).is_some_and(|w| w.contains("\"acc\"") && w.contains("loss, f1"))
        );
        assert_eq!(tag_differs(Some("acc"), &["loss", "acc"]), None);
        assert_eq!(
            tag_differs(None, &["loss"]).or(tag_differs(Some(""), &["loss"])).or(tag_differs(Some("acc"), &[])),
            None
        );
    }

    #[test]
    fn a_trial_without_a_report_is_warned_of() {
        assert!(
            nothing_reported(Some("7"), 0, &["loss"])
                .is_some_and(|w| w.contains("trial 7") && w.contains("INFEASIBLE"))
        );
        assert_eq!(nothing_reported(Some("7"), 1, &["loss"]).or(nothing_reported(None, 0, &["loss"])), None);
    }
}

//! What was measured so far: the last value of each tag, the steps of tags that count their own, and what the tuning
//! service is likely to make of it.
//!
//! Deliberately absent: where a measurement came from, and the file it goes to.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::line::{Report, Wrong};
use super::number::repr;
use super::pattern::Found;

/// One for a whole run: counts go on through its attempts.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    tags: BTreeMap<Arc<str>, Tag>,
    /// The tags that are reported; none named: all.
    selected: Vec<String>,
    reports: u64,
}

/// A measurement that has its place. Small, since of a flood only the last ones are ever written.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    tag: Arc<str>,
    value: f64,
    step: Step,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Counted(u64),
    Given(String),
}

impl Measured {
    /// As it is reported. Errors: a tag that no report can have.
    pub fn report(&self) -> Result<Report, Wrong> {
        let step = match &self.step {
            Step::Counted(count) => count.to_string(),
            Step::Given(text) => text.clone(),
        };
        Report::new(&self.tag, self.value, step, "")
    }
}

#[derive(Debug, Clone)]
struct Tag {
    count: u64,
    value: f64,
    step: i128,
    step_went_back: bool,
}

impl Ledger {
    /// One that reports only these tags, or all where none is named.
    pub fn reporting(selected: Vec<String>) -> Ledger {
        Ledger { selected, ..Ledger::default() }
    }

    /// Enters a measurement; without a step it has the number of the tag's measurements, from 1. Gives what is to be
    /// reported, and a warning the first time that a reported tag's steps go back.
    pub fn enter(&mut self, tag: &str, found: Found) -> (Option<Measured>, Option<String>) {
        let name = match self.tags.get_key_value(tag) {
            Some((name, _)) => Arc::clone(name),
            None => Arc::from(tag),
        };
        let new = || Tag { count: 0, value: 0.0, step: i128::MIN, step_went_back: false };
        let entry = self.tags.entry(Arc::clone(&name)).or_insert_with(new);
        entry.count += 1;
        entry.value = found.value;
        let (number, step) = match found.step {
            None => (i128::from(entry.count), Step::Counted(entry.count)),
            Some(text) => (text.parse().unwrap_or(entry.step), Step::Given(text)),
        };
        let warning = (number < entry.step && !entry.step_went_back).then(|| {
            format!(
                "the steps of metric {tag:?} go back, from {} to {number}: a tuning service may ignore what comes again, \
                 or call the trial INFEASIBLE",
                entry.step
            )
        });
        entry.step_went_back |= warning.is_some();
        entry.step = number;
        if !self.selected.is_empty() && !self.selected.iter().any(|s| s == tag) {
            return (None, None);
        }
        self.reports += 1;
        (Some(Measured { tag: name, value: found.value, step }), warning)
    }

    /// How many measurements were to be reported.
    pub fn reports(&self) -> u64 {
        self.reports
    }

    /// The last value of each tag, as it was reported.
    pub fn last_values(&self) -> BTreeMap<String, String> {
        self.tags.iter().map(|(tag, entry)| (tag.to_string(), repr(entry.value))).collect()
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
        if tags.is_empty() { "any metric".to_owned() } else { tags.join(", ") }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(value: f64, step: Option<&str>) -> Found {
        Found { tag: None, value, step: step.map(str::to_owned), time: None }
    }

    #[test]
    fn a_tag_without_steps_counts_its_own() {
        let mut ledger = Ledger::default();
        let mut step = |tag: &str| {
            let measured = ledger.enter(tag, found(0.5, None)).0.expect("all are reported");
            measured.report().expect("a report").step().to_owned()
        };
        assert_eq!([step("a"), step("b"), step("a"), step("a")], ["1", "1", "2", "3"]);
    }

    #[test]
    fn the_last_value_of_each_tag_stays() {
        let mut ledger = Ledger::default();
        for (tag, value) in [("a", 0.5), ("b", 1e-5), ("a", 0.25)] {
            assert_eq!(ledger.enter(tag, found(value, None)).1, None);
        }
        let expected = [("a", "0.25"), ("b", "1e-05")].map(|(t, v)| (t.to_owned(), v.to_owned()));
        assert_eq!((ledger.last_values(), ledger.reports()), (BTreeMap::from(expected), 3));
    }

    #[test]
    fn of_all_that_is_measured_only_the_selected_tags_are_reported() {
        let mut ledger = Ledger::reporting(vec!["acc".to_owned()]);
        let mut is_reported = |tag| ledger.enter(tag, found(0.5, None)).0.is_some();
        assert_eq!([is_reported("loss"), is_reported("acc")], [false, true]);
        assert_eq!((ledger.last_values().len(), ledger.reports()), (2, 1));
    }

    #[test]
    fn steps_that_go_back_are_warned_of_once_for_each_tag() {
        let mut ledger = Ledger::default();
        let mut warns = |tag, step| ledger.enter(tag, found(1.0, Some(step))).1.is_some();
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

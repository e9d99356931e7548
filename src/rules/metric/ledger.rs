//! The measurements of a run: the last value of each tag, its step, and the searched sources.
//!
//! Deliberately absent: the origin of a measurement, and the file that it is written to.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::sources::Sources;
use crate::metric::foreign_text::number::repr;
use crate::metric::output::pattern::Found;
use crate::metric::report::contract;
use crate::metric::report::line::{Report, Wrong, non_finite_warning, refused_step_warning};

/// The limits for remembered tags, apart from selected ones: their number, their total bytes, and the bytes of one.
pub(super) const MOST_TAGS: usize = 10_000;
pub(super) const TAGS_BYTES: usize = 1 << 20;
const LONGEST_TAG_BYTES: usize = 1 << 10;

/// Longer steps are ignored.
const LONGEST_STEP_BYTES: usize = 64;

/// The part of an omitted tag that a warning quotes.
const SHOWN_CHARS: usize = 80;

/// The limits for the reported last values, in tags and bytes: the verdict is one log line, and log drivers cut lines
/// at 16 KiB.
const MOST_LAST_VALUES: usize = 200;
const LAST_VALUES_BYTES: usize = 8 << 10;

/// One ledger for a whole run: counts continue through its attempts.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// The searched sources.
    pub sources: Sources,
    tags: BTreeMap<Arc<str>, Tag>,
    /// The tags that are reported; if empty, all tags.
    selected: Vec<String>,
    /// The total bytes of all tags.
    bytes: usize,
    /// There was a warning about too many tags.
    has_warned_of_full: bool,
    /// There was a warning about a long tag.
    has_warned_of_long_tag: bool,
    /// There was a warning about a value that is not finite.
    has_warned_of_non_finite: bool,
}

/// A measurement with its step. It is small, because only the last ones of a flood are written.
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
    /// The name of the metric.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The value.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// The step as a number, if it is one.
    pub fn step(&self) -> Option<f64> {
        match &self.step {
            Step::Counted(count) => Some(*count as f64),
            Step::Given(text) => text.parse().ok(),
        }
    }

    /// The step that the trainer gave, if it is a whole number.
    pub fn given_step(&self) -> Option<u64> {
        match &self.step {
            Step::Counted(_) => None,
            Step::Given(text) => text.parse().ok(),
        }
    }

    /// The measurement as a report. Errors: a tag that a report cannot have.
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
    /// The last step that a source gave.
    given_step: Option<String>,
    has_warned_of_decrease: bool,
    has_warned_of_refused_step: bool,
    /// Where its first measurement was found. Empty after the warning about a second place.
    origin: Option<&'static str>,
}

impl Ledger {
    /// A ledger that reports only these tags; if empty, all tags.
    pub fn with_selected(selected: Vec<String>) -> Ledger {
        Ledger { selected, ..Ledger::default() }
    }

    /// Records a measurement. Without a step it gets the last given step of its tag, or, before the first one, the
    /// number of the tag's measurements, from 1. Returns the measurement if it is reported, and a warning at the first
    /// of each of these: steps of a reported tag decrease; a step would be refused by a tuner; there are too many tags
    /// or a long one; a value is not finite.
    pub fn record(&mut self, tag: &str, mut found: Found) -> (Option<Measured>, Option<String>) {
        if !self.tags.contains_key(tag) && !self.is_selected(tag) {
            if tag.len() > LONGEST_TAG_BYTES {
                let is_first = !std::mem::replace(&mut self.has_warned_of_long_tag, true);
                return (None, is_first.then(|| too_long(tag)));
            }
            if self.tags.len() >= MOST_TAGS || self.bytes + tag.len() > TAGS_BYTES {
                let is_first = !std::mem::replace(&mut self.has_warned_of_full, true);
                return (None, is_first.then(|| too_many(tag)));
            }
            self.bytes += tag.len();
        }
        found.step = found.step.filter(|step| step.len() <= LONGEST_STEP_BYTES);
        let name = match self.tags.get_key_value(tag) {
            Some((name, _)) => Arc::clone(name),
            None => Arc::from(tag),
        };
        let new = || Tag {
            count: 0,
            value: 0.0,
            step: i128::MIN,
            given_step: None,
            has_warned_of_decrease: false,
            has_warned_of_refused_step: false,
            origin: None,
        };
        let entry = self.tags.entry(Arc::clone(&name)).or_insert_with(new);
        entry.count += 1;
        entry.value = found.value;
        let (number, step) = match (found.step, &entry.given_step) {
            (None, None) => (i128::from(entry.count), Step::Counted(entry.count)),
            (None, Some(given_step)) => (entry.step, Step::Given(given_step.clone())),
            (Some(text), _) => {
                entry.given_step = Some(text.clone());
                (text.parse().unwrap_or(entry.step), Step::Given(text))
            }
        };
        let refused = match &step {
            Step::Given(text) if !entry.has_warned_of_refused_step => refused_step_warning(text),
            _ => None,
        };
        entry.has_warned_of_refused_step |= refused.is_some();
        let decreases = refused.is_none() && number < entry.step && !entry.has_warned_of_decrease;
        entry.has_warned_of_decrease |= decreases;
        let warning = match refused {
            Some(why) => Some(format!("the metric {tag:?}: {why}")),
            None => decreases.then(|| contract::steps_decrease(tag, entry.step, number)),
        };
        let is_relevant = self.selected.is_empty() || self.selected.iter().any(|selected| selected == tag);
        let not_finite = non_finite_warning(found.value).filter(|_| is_relevant && !self.has_warned_of_non_finite);
        self.has_warned_of_non_finite |= not_finite.is_some();
        let warning = match (warning, not_finite) {
            (Some(one), Some(other)) => Some(format!("{one}; the metric {tag:?}: {other}")),
            (None, Some(other)) => Some(format!("the metric {tag:?}: {other}")),
            (warning, None) => warning,
        };
        entry.step = number;
        if !self.selected.is_empty() && !self.is_selected(tag) {
            return (None, None);
        }
        (Some(Measured { tag: name, value: found.value, step }), warning)
    }

    /// Notes where a recorded measurement was found. Returns a warning when it is the second place of its metric.
    pub fn note_origin(&mut self, tag: &str, origin: &'static str) -> Option<String> {
        let first = self.tags.get_mut(tag)?.origin.get_or_insert(origin);
        if first.is_empty() || *first == origin {
            return None;
        }
        let first = std::mem::take(first);
        Some(format!(
            "the metric {tag:?} is found in {first} and in {origin}, so its values and steps are mixed; give each its own name, or \
             search one of the two only"
        ))
    }

    fn is_selected(&self, tag: &str) -> bool {
        self.selected.iter().any(|selected| selected == tag)
    }

    /// Whether there is no measurement.
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }

    /// Whether the tag has a measurement.
    pub fn has(&self, tag: &str) -> bool {
        self.tags.contains_key(tag)
    }

    /// Whether any report had a step.
    pub fn has_steps(&self) -> bool {
        self.tags.values().any(|tag| tag.given_step.is_some())
    }

    /// The names of all measured metrics.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tags.keys().map(AsRef::as_ref)
    }

    /// The last value of each tag, as it was reported. If there are too many, the selected ones come first.
    pub fn last_values(&self) -> BTreeMap<String, String> {
        let selected = self.selected.iter().filter_map(|tag| self.tags.get_key_value(tag.as_str()));
        let others = self.tags.iter().filter(|(tag, _)| !self.is_selected(tag));
        let mut room = LAST_VALUES_BYTES;
        let mut fits = |(tag, value): &(String, String)| {
            let left = room.checked_sub(tag.len() + value.len());
            room = left.unwrap_or(room);
            left.is_some()
        };
        let all = selected.chain(others).map(|(tag, entry)| (tag.to_string(), repr(entry.value)));
        all.filter(|pair| fits(pair)).take(MOST_LAST_VALUES).collect()
    }
}

fn too_many(tag: &str) -> String {
    format!(
        "there are more than {MOST_TAGS} names of metrics, or they have more than {TAGS_BYTES} bytes together, so {tag:?} and all \
         further ones are omitted, also from the metrics file; use names without a step or other number, or select with --report",
    )
}

fn too_long(tag: &str) -> String {
    let begin: String = tag.chars().take(SHOWN_CHARS).collect();
    format!(
        "the name of a metric has {} bytes, more than {LONGEST_TAG_BYTES}, so it is omitted, also from the metrics file; it \
         begins with {begin:?}; give it a shorter name, or select with --report",
        tag.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(value: f64, step: Option<&str>) -> Found {
        Found { tag: None, value, step: step.map(str::to_owned), time: None }
    }

    #[test]
    fn a_tag_without_steps_counts_its_measurements() {
        let mut ledger = Ledger::default();
        let mut step = |tag: &str| {
            let measured = ledger.record(tag, found(0.5, None)).0.expect("all tags are reported");
            measured.report().expect("a report").step
        };
        assert_eq!([step("a"), step("b"), step("a"), step("a")], ["1", "1", "2", "3"]);
    }

    #[test]
    fn a_measurement_without_a_step_gets_the_last_given_step() {
        let mut ledger = Ledger::default();
        let mut step = |given: Option<&str>| {
            let (measured, warning) = ledger.record("a", found(0.5, given));
            assert_eq!(warning, None);
            measured.expect("all tags are reported").report().expect("a report").step
        };
        assert_eq!(
            [step(None), step(None), step(Some("100")), step(None), step(Some("200")), step(None)],
            ["1", "2", "100", "100", "200", "200"]
        );
    }

    #[test]
    fn a_step_longer_than_any_number_counts_as_none() {
        let mut ledger = Ledger::default();
        let mut step = |length: usize| {
            let (measured, _) = ledger.record("a", found(0.5, Some(&"1".repeat(length))));
            measured.and_then(|measured| measured.report().ok()).map(|report| report.step.len())
        };
        assert_eq!([step(LONGEST_STEP_BYTES + 1), step(1 << 20)], [Some(1), Some(1)], "the number of the measurement");
        assert_eq!(step(30), Some(30));
    }

    #[test]
    fn the_first_non_finite_value_causes_a_warning_and_is_written() {
        let mut ledger = Ledger::with_selected(vec!["a".to_owned(), "b".to_owned()]);
        let mut warning = |tag, value| ledger.record(tag, found(value, None)).1.unwrap_or_default();
        assert_eq!(warning("c", f64::NAN), "", "it is not reported");
        assert!(warning("a", f64::NAN).contains("the metric \"a\": the value is nan"));
        assert_eq!([warning("a", f64::NAN), warning("b", f64::INFINITY)], ["", ""]);
        assert_eq!(ledger.last_values()["b"], "inf");
    }

    #[test]
    fn the_last_value_of_each_tag_is_kept() {
        let mut ledger = Ledger::default();
        for (tag, value) in [("a", 0.5), ("b", 1e-5), ("a", 0.25)] {
            assert_eq!(ledger.record(tag, found(value, None)).1, None);
        }
        let expected = [("a", "0.25"), ("b", "1e-05")].map(|(t, v)| (t.to_owned(), v.to_owned()));
        assert_eq!(ledger.last_values(), BTreeMap::from(expected));
    }

    #[test]
    fn a_flood_of_tags_is_bounded_and_selected_tags_come_first() {
        let mut ledger = Ledger::with_selected(vec!["zz".to_owned(), "z".to_owned()]);
        ledger.record("zz", found(0.5, None));
        let warnings: Vec<String> =
            (0..3 * MOST_TAGS).filter_map(|n| ledger.record(&format!("{n}"), found(0.5, None)).1).collect();
        assert!(warnings.len() == 1 && warnings[0].contains("--report"), "{warnings:?}");
        assert!(ledger.record("z", found(0.25, None)).0.is_some(), "a selected tag is always recorded");
        assert_eq!(ledger.tags.len(), MOST_TAGS + 1);
        let given_step = ledger.last_values();
        assert_eq!(
            (given_step.len(), given_step["z"].as_str(), given_step["zz"].as_str()),
            (MOST_LAST_VALUES, "0.25", "0.5")
        );
    }

    #[test]
    fn the_last_values_fit_into_a_log_line() {
        let mut ledger = Ledger::default();
        (0..7).for_each(|n| drop(ledger.record(&n.to_string().repeat(LONGEST_TAG_BYTES), found(0.5, None))));
        (0..MOST_LAST_VALUES).for_each(|n| drop(ledger.record(&format!("{n:0100}"), found(0.5, None))));
        let bytes = ledger.last_values().iter().map(|(tag, value)| tag.len() + value.len()).sum::<usize>();
        assert!((LAST_VALUES_BYTES - 200..=LAST_VALUES_BYTES).contains(&bytes), "{bytes}");
    }

    #[test]
    fn the_bytes_of_all_tags_and_of_one_tag_are_bounded() {
        let mut ledger = Ledger::default();
        let long = |n: usize| format!("{n:01000}");
        let warnings: Vec<String> = (0..6000).filter_map(|n| ledger.record(&long(n), found(0.5, None)).1).collect();
        assert!(warnings.len() == 1 && warnings[0].contains("bytes together"), "{warnings:?}");
        assert!(ledger.names().map(str::len).sum::<usize>() <= TAGS_BYTES);
        assert!(ledger.record(&long(1), found(0.25, None)).0.is_some(), "a known tag is still recorded");
        let (measured, warning) = ledger.record(&"y".repeat(30_000), found(0.5, None));
        let warning = warning.expect("there is a warning");
        assert!(measured.is_none() && warning.contains("has 30000 bytes") && warning.len() < 500, "{warning}");
        assert_eq!(ledger.record(&"z".repeat(30_000), found(0.5, None)), (None, None), "once");
        let mut ledger = Ledger::with_selected(vec!["x".repeat(30_000)]);
        assert!(ledger.record(&"x".repeat(30_000), found(0.5, None)).0.is_some(), "a selected tag is always recorded");
    }

    #[test]
    fn a_step_of_very_many_digits_is_ignored() {
        let mut ledger = Ledger::default();
        let measured = ledger.record("a", found(0.5, Some(&"9".repeat(100_000)))).0.expect("it is reported");
        assert_eq!(measured.report().expect("a report").step, "1");
    }

    #[test]
    fn a_metric_of_two_places_causes_one_warning() {
        let mut ledger = Ledger::default();
        let mut warning = |tag, origin| {
            ledger.record(tag, found(0.5, None));
            ledger.note_origin(tag, origin).unwrap_or_default()
        };
        assert_eq!([warning("a", "the output"), warning("a", "the output"), warning("b", "the file")], ["", "", ""]);
        assert!(warning("a", "the file").contains("\"a\" is found in the output and in the file"));
        assert_eq!([warning("a", "the file"), warning("a", "the output")], ["", ""]);
    }

    #[test]
    fn only_the_selected_tags_are_reported() {
        let mut ledger = Ledger::with_selected(vec!["acc".to_owned()]);
        let mut is_reported = |tag| ledger.record(tag, found(0.5, None)).0.is_some();
        assert_eq!([is_reported("loss"), is_reported("acc")], [false, true]);
        assert_eq!(ledger.last_values().len(), 2);
    }

    #[test]
    fn decreasing_steps_cause_one_warning_for_each_tag() {
        let mut ledger = Ledger::default();
        let mut warns = |tag, step| ledger.record(tag, found(1.0, Some(step))).1.is_some();
        assert_eq!([warns("a", "5"), warns("a", "5"), warns("b", "1"), warns("a", "9")], [false; 4]);
        assert_eq!([warns("a", "4"), warns("a", "3"), warns("b", "0")], [true, false, true]);
    }

    #[test]
    fn a_step_that_a_tuner_refuses_causes_one_warning_for_each_tag() {
        let mut ledger = Ledger::default();
        let mut warning = |tag, step| ledger.record(tag, found(1.0, Some(step))).1.unwrap_or_default();
        let negative = warning("a", "-3");
        assert!(negative.contains("\"a\"") && negative.contains("-3 is negative"), "{negative}");
        assert_eq!(warning("a", "-2"), "");
        assert!(warning("a", "-5").contains("decrease"), "the other warning still comes");
        assert!(warning("b", "9223372036854775808").contains("beyond 64 bits"));
        assert_eq!(warning("c", "9223372036854775807"), "");
    }
}

//! What was measured so far: the last value of each tag, and the steps of tags that count their own.
//!
//! Deliberately absent: where a measurement came from, and the file it goes to.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::contract;
use super::line::{Report, Wrong, refused_step};
use super::number::repr;
use super::pattern::Found;

/// Names that are remembered, beside those that are selected.
const TAGS: usize = 10_000;

/// What is told of the last values, in names and in bytes: the verdict is one log line, and a driver of logs cuts it at
/// 16 KiB.
const LAST_VALUES: usize = 200;
const LAST_VALUES_BYTES: usize = 8 << 10;

/// One for a whole run: counts go on through its attempts.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    tags: BTreeMap<Arc<str>, Tag>,
    /// The tags that are reported; none named: all.
    selected: Vec<String>,
    /// It was told that there are too many names.
    is_full: bool,
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
    /// The last step that was told.
    told: Option<String>,
    step_went_back: bool,
    step_was_refused: bool,
}

impl Ledger {
    /// One that reports only these tags, or all where none is named.
    pub fn reporting(selected: Vec<String>) -> Ledger {
        Ledger { selected, ..Ledger::default() }
    }

    /// Enters a measurement; without a step it has the last one that was told of the tag, or, before any was, the number of
    /// the tag's measurements, from 1. Gives what is to be reported, and a warning the first time that a reported tag's
    /// steps go back, that one is such as a tuner refuses, or that there are too many tags.
    pub fn enter(&mut self, tag: &str, found: Found) -> (Option<Measured>, Option<String>) {
        if self.tags.len() >= TAGS && !self.tags.contains_key(tag) && !self.is_selected(tag) {
            let is_first = !std::mem::replace(&mut self.is_full, true);
            return (None, is_first.then(|| too_many(tag)));
        }
        let name = match self.tags.get_key_value(tag) {
            Some((name, _)) => Arc::clone(name),
            None => Arc::from(tag),
        };
        let new = || Tag {
            count: 0,
            value: 0.0,
            step: i128::MIN,
            told: None,
            step_went_back: false,
            step_was_refused: false,
        };
        let entry = self.tags.entry(Arc::clone(&name)).or_insert_with(new);
        entry.count += 1;
        entry.value = found.value;
        let (number, step) = match (found.step, &entry.told) {
            (None, None) => (i128::from(entry.count), Step::Counted(entry.count)),
            (None, Some(told)) => (entry.step, Step::Given(told.clone())),
            (Some(text), _) => {
                entry.told = Some(text.clone());
                (text.parse().unwrap_or(entry.step), Step::Given(text))
            }
        };
        let refused = match &step {
            Step::Given(text) if !entry.step_was_refused => refused_step(text),
            _ => None,
        };
        entry.step_was_refused |= refused.is_some();
        let goes_back = refused.is_none() && number < entry.step && !entry.step_went_back;
        entry.step_went_back |= goes_back;
        let warning = match refused {
            Some(why) => Some(format!("the metric {tag:?}: {why}")),
            None => goes_back.then(|| contract::steps_go_back(tag, entry.step, number)),
        };
        entry.step = number;
        if !self.selected.is_empty() && !self.is_selected(tag) {
            return (None, None);
        }
        (Some(Measured { tag: name, value: found.value, step }), warning)
    }

    fn is_selected(&self, tag: &str) -> bool {
        self.selected.iter().any(|selected| selected == tag)
    }

    /// Nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }

    /// The tag was measured.
    pub fn has(&self, tag: &str) -> bool {
        self.tags.contains_key(tag)
    }

    /// What was measured.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tags.keys().map(AsRef::as_ref)
    }

    /// The last value of each tag, as it was reported; of too many, those of the selected first.
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
        all.filter(|pair| fits(pair)).take(LAST_VALUES).collect()
    }
}

fn too_many(tag: &str) -> String {
    format!(
        "there are more than {TAGS} names of metrics, so {tag:?} and all further ones are left out, of the metrics file too; \
         have no step or other number in a name, or choose with --report"
    )
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
            measured.report().expect("a report").step
        };
        assert_eq!([step("a"), step("b"), step("a"), step("a")], ["1", "1", "2", "3"]);
    }

    #[test]
    fn a_measurement_without_a_step_belongs_to_the_last_one_that_was_told() {
        let mut ledger = Ledger::default();
        let mut step = |given: Option<&str>| {
            let (measured, warning) = ledger.enter("a", found(0.5, given));
            assert_eq!(warning, None);
            measured.expect("all are reported").report().expect("a report").step
        };
        assert_eq!(
            [step(None), step(None), step(Some("100")), step(None), step(Some("200")), step(None)],
            ["1", "2", "100", "100", "200", "200"]
        );
    }

    #[test]
    fn the_last_value_of_each_tag_stays() {
        let mut ledger = Ledger::default();
        for (tag, value) in [("a", 0.5), ("b", 1e-5), ("a", 0.25)] {
            assert_eq!(ledger.enter(tag, found(value, None)).1, None);
        }
        let expected = [("a", "0.25"), ("b", "1e-05")].map(|(t, v)| (t.to_owned(), v.to_owned()));
        assert_eq!(ledger.last_values(), BTreeMap::from(expected));
    }

    #[test]
    fn of_a_flood_of_names_memory_and_the_last_values_stay_small_and_the_selected_ones_come_first() {
        let mut ledger = Ledger::reporting(vec!["zz".to_owned(), "z".to_owned()]);
        ledger.enter("zz", found(0.5, None));
        let warnings: Vec<String> =
            (0..3 * TAGS).filter_map(|n| ledger.enter(&format!("{n}"), found(0.5, None)).1).collect();
        assert!(warnings.len() == 1 && warnings[0].contains("--report"), "{warnings:?}");
        assert!(ledger.enter("z", found(0.25, None)).0.is_some(), "a selected one always has its place");
        assert_eq!(ledger.tags.len(), TAGS + 1);
        let told = ledger.last_values();
        assert_eq!((told.len(), told["z"].as_str(), told["zz"].as_str()), (LAST_VALUES, "0.25", "0.5"));
    }

    #[test]
    fn long_names_are_told_as_far_as_a_log_line_has_room() {
        let mut ledger = Ledger::default();
        ledger.enter(&"a".repeat(LAST_VALUES_BYTES), found(0.5, None));
        (0..LAST_VALUES).for_each(|n| drop(ledger.enter(&format!("{n:0100}"), found(0.5, None))));
        let bytes = ledger.last_values().iter().map(|(tag, value)| tag.len() + value.len()).sum::<usize>();
        assert!((LAST_VALUES_BYTES - 200..=LAST_VALUES_BYTES).contains(&bytes), "{bytes}");
    }

    #[test]
    fn of_all_that_is_measured_only_the_selected_tags_are_reported() {
        let mut ledger = Ledger::reporting(vec!["acc".to_owned()]);
        let mut is_reported = |tag| ledger.enter(tag, found(0.5, None)).0.is_some();
        assert_eq!([is_reported("loss"), is_reported("acc")], [false, true]);
        assert_eq!(ledger.last_values().len(), 2);
    }

    #[test]
    fn steps_that_go_back_are_warned_of_once_for_each_tag() {
        let mut ledger = Ledger::default();
        let mut warns = |tag, step| ledger.enter(tag, found(1.0, Some(step))).1.is_some();
        assert_eq!([warns("a", "5"), warns("a", "5"), warns("b", "1"), warns("a", "9")], [false; 4]);
        assert_eq!([warns("a", "4"), warns("a", "3"), warns("b", "0")], [true, false, true]);
    }

    #[test]
    fn a_step_that_a_tuner_refuses_is_warned_of_once_for_each_tag_beside_steps_that_go_back() {
        let mut ledger = Ledger::default();
        let mut warning = |tag, step| ledger.enter(tag, found(1.0, Some(step))).1.unwrap_or_default();
        let negative = warning("a", "-3");
        assert!(negative.contains("\"a\"") && negative.contains("-3 is negative"), "{negative}");
        assert_eq!(warning("a", "-2"), "");
        assert!(warning("a", "-5").contains("go back"), "the other one is told yet");
        assert!(warning("b", "9223372036854775808").contains("beyond 64 bits"));
        assert_eq!(warning("c", "9223372036854775807"), "");
    }
}

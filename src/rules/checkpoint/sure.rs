//! Whether the number in a candidate's name is a step: digits are in many names.

use std::collections::{BTreeMap, BTreeSet};

use super::called::{is_best, is_last, series_of};
use super::formats::deeper;
use super::listing::{name_of, parent_of};
use super::order::is_later;
use super::siblings;
use super::steps::is_steps;
use super::unit::{Candidate, Scan};

/// What is sure of the steps in the names of these candidates.
pub(super) struct Sure {
    /// Names without their numbers, of which there are several steps.
    pub(super) series: BTreeSet<String>,
    /// Whether any name says what its number is.
    pub(super) is_said: bool,
    /// Whether one of a series does.
    is_said_in_series: bool,
    /// Whether there is what a file called the best is a copy of.
    pub(super) beside_best: bool,
    /// Whether the user said where the step is.
    pub(super) is_told: bool,
    /// Those whose number is a model's (`resnet50.pth`, `resnet50_best.pth`): nothing says that it is a step, there is none
    /// like them, and what surely is of a step was saved since.
    of_models: BTreeSet<String>,
}

impl Sure {
    pub(super) fn of(scan: &Scan, candidates: &[Candidate]) -> Sure {
        let mut all: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for c in candidates {
            all.entry(series_of(&c.unit)).or_default().extend(c.step);
        }
        let several = all.into_iter().filter(|(_, steps)| steps.len() > 1);
        let series: BTreeSet<String> = several.map(|(series, _)| series).collect();
        let said = |c: &&Candidate| c.step.is_some() && says_step(c);
        let is_said = candidates.iter().any(|c| said(&c));
        let is_said_in_series = candidates.iter().filter(said).any(|c| series.contains(&series_of(&c.unit)));
        let is_last =
            |c: &Candidate| c.step.is_none() && !is_best(&c.unit) && (is_last(&c.unit) || siblings::is_a_save(c));
        let beside_best = !series.is_empty() || candidates.iter().any(is_last);
        let is_told = scan.options.step.is_some() || scan.options.marker.is_some();
        let is_named = |c: &Candidate| c.paths.iter().any(|path| deeper::says_its_step(name_of(path)));
        let is_sure =
            |c: &&Candidate| c.step.is_some() && (says_step(c) || is_named(c) || series.contains(&series_of(&c.unit)));
        let time = |c: &Candidate| c.newest_ns(scan.listing);
        let newest = candidates.iter().filter(is_sure).map(time).max();
        let since = |c: &&Candidate| newest.is_some_and(|newest| is_later(newest, time(c)));
        let of_models = candidates.iter().filter(|c| c.step.is_some() && !is_sure(c)).filter(since);
        let of_models = of_models.map(|c| c.unit.clone()).collect();
        Sure { series, is_said, is_said_in_series, beside_best, is_told, of_models }
    }

    /// Whether the number in the name is one beside the others. A bare one (`resnet50.pth`, `metrics_500.json`) is not where
    /// another follows a word for it, unless it counts on and that one does not.
    pub(super) fn is_step(&self, c: &Candidate) -> bool {
        let counts_on = || !self.is_said_in_series && self.series.contains(&series_of(&c.unit));
        let is_one = || !self.is_said && !self.of_models.contains(&c.unit);
        self.is_told || is_one() || says_step(c) || counts_on()
    }
}

/// Whether its number surely is a step: a word says so, or there are others of its name.
pub(super) fn counts(c: &Candidate, all: &[Candidate]) -> bool {
    says_step(c) || all.iter().any(|other| other.step != c.step && series_of(&other.unit) == series_of(&c.unit))
}

/// Whether a word for steps is in the name, or in that of a file side by side with it.
pub(super) fn says_step(c: &Candidate) -> bool {
    let says = |name: &str| is_steps(name) || is_steps(name.split('.').next().unwrap_or(name));
    let mut beside = c.paths.iter().filter(|path| parent_of(path) == parent_of(&c.unit));
    says(name_of(&c.unit)) || beside.any(|path| says(name_of(path)))
}

//! What a trainer saves when it is about to be stopped, under a name that says so and no step (`interrupted.pt`,
//! `preempted.safetensors`), whatever its type is and that of the series beside it. It goes by its time.

use std::collections::BTreeSet;

use super::strangers;
use crate::rules::checkpoint::called::{is_best, is_hasty, is_last};
use crate::rules::checkpoint::generic::is_surely_weights;
use crate::rules::checkpoint::listing::{Entry, parent_of};
use crate::rules::checkpoint::order::is_later;
use crate::rules::checkpoint::steps::step_in;
use crate::rules::checkpoint::unit::{Candidate, Scan, taken};
use crate::rules::checkpoint::{Found, complete};

/// Whether all that an earlier layout found was saved in haste, and is cut short, or the other's series has gone on since.
pub(in super::super) fn are_over(scan: &Scan, first: &Found, other: &Found) -> bool {
    let whole = first.candidates.iter().filter(|unit| complete(first, scan, unit).is_ok());
    let newest = whole.map(|unit| unit.newest_ns(scan.listing)).max();
    let goes_on = |unit: &Candidate| {
        let is_young = newest.is_none_or(|newest| is_later(unit.newest_ns(scan.listing), newest));
        is_young && strangers::is_step(unit, &other.candidates)
    };
    let is_one = |unit: &Candidate| unit.step.is_none() && is_hasty(&unit.unit);
    first.candidates.iter().all(is_one) && other.candidates.iter().any(goes_on)
}

/// Adds such files beside the units, or where there are none at the top, to them: each before those that are older.
pub(in super::super) fn with_hasty(scan: &Scan, mut units: Vec<Candidate>) -> Vec<Candidate> {
    for file in stepless(scan, &units).filter(|f| is_hasty(&f.path)).cloned().collect::<Vec<_>>() {
        let is_older = |unit: &Candidate| unit.newest_ns(scan.listing) < file.mtime_ns;
        let at = units.iter().position(is_older).unwrap_or(units.len());
        units.insert(at, Candidate::file(&file, None));
    }
    units
}

/// The newest file without a step beside these that is saved over and over, or in haste, by its name, and is none of them.
pub(in super::super) fn newest<'a>(scan: &'a Scan, units: &'a [Candidate]) -> Option<&'a Entry> {
    let is_one = |file: &&Entry| (is_hasty(&file.path) || is_last(&file.path)) && !is_best(&file.path);
    stepless(scan, units).filter(is_one).max_by_key(|file| file.mtime_ns)
}

/// Weights without a step beside these, or at the top, that are none of them.
fn stepless<'a>(scan: &'a Scan, units: &'a [Candidate]) -> impl Iterator<Item = &'a Entry> {
    let taken = taken(units);
    let homes: BTreeSet<&str> = units.iter().map(|unit| parent_of(&unit.unit)).chain([""]).collect();
    let has_step = |file: &Entry| step_in(file.name()).is_some() || scan.options.step.is_some();
    let files = homes.into_iter().flat_map(|home| scan.listing.within(home));
    files.filter(move |file| {
        is_surely_weights(file) && !has_step(file) && !taken.contains(file.path.as_str()) && !scan.is_aside(&file.path)
    })
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::Options;
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::mixed::later;
    use crate::rules::checkpoint::tests::{complete_units, recognised};

    fn saved(names: &[&str]) -> Memory {
        Memory::in_turn(names, 5)
    }

    fn newest(names: &[&str]) -> (String, Option<u64>) {
        complete_units(&saved(names)).swap_remove(0)
    }

    const SERIES: [[&str; 2]; 5] = [
        ["step-1/model.safetensors", "step-2/model.safetensors"],
        ["step-1/model.pt", "step-2/model.pt"],
        ["model_1.safetensors", "model_2.safetensors"],
        ["model_1.pt", "model_2.pt"],
        ["run/step-1/model.msgpack", "run/step-2/model.msgpack"],
    ];

    #[test]
    fn what_was_saved_in_haste_in_any_form_is_the_newest_until_the_series_goes_on() {
        for [one, two] in SERIES {
            let home = if one.starts_with("run/") { "run/" } else { "" };
            for hasty in ["interrupted.pt", "preempted.safetensors", "Emergency_save.msgpack", "sigterm.ckpt"] {
                let hasty = format!("{home}{hasty}");
                assert_eq!(newest(&[one, two, &hasty]), (hasty.clone(), None), "{one}");
                assert_eq!(newest(&[one, &hasty, two]).1, Some(2), "{hasty} before {two}");
                let torn = saved(&[one, two, &hasty]).with(&hasty, "").at(&hasty, i64::MAX / 2);
                assert_eq!(complete_units(&torn)[0].1, Some(2), "{hasty} is cut short");
            }
        }
        assert_eq!(newest(&["preempted.safetensors"]).0, "preempted.safetensors", "put back on an empty disk");
    }

    #[test]
    fn what_is_saved_over_and_over_in_another_form_and_is_the_newest_is_told_of() {
        let told =
            |names: &[&str], options: &Options| recognised(&saved(names), options, |found, scan| later(scan, found));
        let trainers = ["checkpoint-1/model.safetensors", "checkpoint-1/trainer_state.json"];
        for [one, two] in [SERIES[0], SERIES[1], trainers] {
            for last in ["last.safetensors", "checkpoint.pt", "model_latest.msgpack"] {
                assert_eq!(told(&[one, two, last], &Options::default()).as_deref(), Some(last), "{one}");
                assert_eq!(told(&[one, last, two], &Options::default()), None, "{last} is older than {two}");
                let later = Options { begun_ns: i64::MAX, ..Options::default() };
                assert_eq!(told(&[one, two, last], &later), None, "an earlier run wrote it");
            }
            for model in ["model.safetensors", "best.pt", "final.pt", "last.json", "last.tmp.pt"] {
                assert_eq!(told(&[one, two, model], &Options::default()), None, "{model}");
            }
        }
        assert_eq!(told(&["model_1.pt", "model_2.pt", "last.pt"], &Options::default()), None, "it is the newest");
        let interrupted = told(&[&trainers[..], &["interrupted.pt"]].concat(), &Options::default());
        assert_eq!(interrupted.as_deref(), Some("interrupted.pt"), "a format that has no such file");
    }
}

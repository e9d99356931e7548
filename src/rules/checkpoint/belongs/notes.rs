//! What a trainer notes beside the files of a save, as text: `trainer_state_20.json` beside `model_20.pt`. It is copied with
//! them, and whether it is whole, or there at all, is never asked: it may as well be a log.

use std::collections::BTreeSet;

use super::roles::{Role, Said};
use super::siblings;
use crate::rules::checkpoint::listing::{Entry, name_of, parent_of};
use crate::rules::checkpoint::steps::step_in;
use crate::rules::checkpoint::unit::{Candidate, Scan};

/// Longer ones are data, bytes.
pub(super) const LONGEST: u64 = 16 << 20;
/// What is written so long after the files themselves is no note of theirs, but a log that goes on and never lies still. What
/// has a step in its name does not go on for long.
const LATER_NS: i64 = 30_000_000_000;
const LATER_OF_A_STEP_NS: i64 = 600_000_000_000;
/// Beside a save of several files, what its name says nothing of.
const LATER_OF_SEVERAL_NS: i64 = 2_000_000_000;

impl Candidate {
    /// Whether this entry of it is a note beside its files.
    pub(in super::super) fn is_note(&self, entry: &Entry) -> bool {
        entry.path != self.unit && parent_of(&entry.path) == parent_of(&self.unit) && is_text(entry.name())
    }
}

/// Adds to units of files the notes of the same step beside them, or of a save without one. A note is then nothing alone.
pub(in super::super) fn with_notes(scan: &Scan, mut units: Vec<Candidate>) -> Vec<Candidate> {
    let is_note = |f: &&Entry| is_text(f.name()) && (1..=LONGEST).contains(&f.size) && !scan.is_aside(&f.path);
    let notes: Vec<(&Entry, Option<u64>)> = scan
        .listing
        .files()
        .filter(is_note)
        .filter_map(|f| Some((f, scan.step(&f.path, step_in(f.name()))?)))
        .collect();
    let mut noted: BTreeSet<&str> = BTreeSet::new();
    for unit in units.iter_mut().filter(|unit| unit.is_file(scan.listing) && !is_text(&unit.unit)) {
        let (home, newest) = (parent_of(&unit.unit), unit.newest_ns(scan.listing));
        let is_a_save = siblings::is_a_save(unit);
        let later = if unit.step.is_some() { LATER_OF_A_STEP_NS } else { LATER_NS };
        // What a trainer notes is JSON (skorch's `history.json`); one that is written on and on is a log.
        let is_of_several = |note: &Entry| {
            note.name().ends_with(".json") && is_a_save && note.mtime_ns.saturating_sub(newest) <= LATER_OF_SEVERAL_NS
        };
        let is_of_it = |(note, step): &&(&Entry, Option<u64>)| {
            *step == unit.step
                && parent_of(&note.path) == home
                && note.mtime_ns.saturating_sub(newest) <= later
                && !unit.paths.contains(&note.path)
                && (step.is_some() || is_noted_with(note.name(), name_of(&unit.unit)) || is_of_several(note))
        };
        let added: Vec<&str> = notes.iter().filter(is_of_it).map(|(note, _)| note.path.as_str()).collect();
        unit.paths.extend(added.iter().map(|path| (*path).to_owned()));
        unit.paths.sort();
        noted.extend(added);
    }
    units.retain(|unit| !noted.contains(unit.unit.as_str()));
    units
}

/// `trainer_state.json`, `config.yaml`, or `last_state.json` beside `last.pt`.
fn is_noted_with(note: &str, unit: &str) -> bool {
    let said = Said::by(note);
    let is_state = matches!(said.role, Some(Role::Some | Role::Beside));
    is_state && (said.rest.is_empty() || said.rest == Said::by(unit).rest)
}

/// An index of weights is none: what it names must be there.
pub(in super::super) fn is_text(name: &str) -> bool {
    let is_one = [".json", ".yaml", ".yml", ".txt"].iter().any(|end| name.ends_with(end));
    is_one && !name.ends_with(".index.json")
}

#[cfg(test)]
mod tests {
    use super::is_text;
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, recognised};
    use crate::rules::checkpoint::{Options, complete, is_sure};

    const SECOND: i64 = 1_000_000_000;

    /// Notes that are cut short.
    fn saved(names: &[&str]) -> Memory {
        let notes = names.iter().filter(|name| is_text(name));
        notes.fold(Memory::default().saved(names), |memory, name| memory.with(name, "{\"step\": 20"))
    }

    /// What is committed of the newest, which is complete and surely so.
    #[track_caller]
    fn newest(memory: &Memory) -> Vec<String> {
        recognised(memory, &Options::default(), |found, scan| {
            assert_eq!(complete(found, scan, &found.candidates[0]), Ok(()));
            assert!(is_sure(found, scan, &found.candidates[0], 0));
            found.candidates[0].paths.clone()
        })
    }

    #[test]
    fn what_is_noted_of_a_step_is_copied_with_it_whatever_it_holds() {
        for step in [
            &["model_10.pt", "optimizer_10.pt", "trainer_state_10.json"][..],
            &["a/config_10.yaml", "a/model_10.pt", "a/notes-10.txt"],
            &["model-20.safetensors", "state-20.json"],
            &["model-20.safetensors", "step-20.json"],
            &["metrics_5_shard_0_of_2.json", "model_5.pt"],
            &["last/model.pt", "last/optimizer.pt", "last/trainer_state.json"],
            &["args.json", "last.pt", "last_state.json"],
        ] {
            assert_eq!(newest(&saved(step)), step);
            assert_eq!(complete_units(&saved(step)).len(), 1, "{step:?}");
        }
    }

    #[test]
    fn what_is_noted_of_something_else_or_is_a_log_that_goes_on_is_left() {
        for other in ["trainer_state_5.json", "b/state_10.json", "vocab.txt", "state_10.json.tmp", "b/state.json"] {
            assert_eq!(newest(&saved(&["model_10.pt", other])), ["model_10.pt"], "{other}");
        }
        for other in ["metrics.json", "b/trainer_state.json", "best_state.json", "model.json"] {
            assert_eq!(newest(&saved(&["last.pt", other])), ["last.pt"], "{other}");
        }
        for (names, after) in [(["last.pt", "state.json"], 31), (["model_10.pt", "state_10.json"], 601)] {
            assert_eq!(newest(&saved(&names).at(names[1], (after - 1) * SECOND)), names);
            assert_eq!(newest(&saved(&names).at(names[1], (after + 1) * SECOND)), names[..1]);
        }
    }

    #[test]
    fn json_beside_a_save_of_several_files_without_a_step_is_noted_with_it_unless_it_is_a_log_that_goes_on() {
        let names = ["criterion.pt", "history.json", "optimizer.pt", "params.pt"];
        assert_eq!(newest(&saved(&names)), names);
        assert_eq!(newest(&saved(&names).at(names[1], SECOND)), names);
        assert_eq!(newest(&saved(&names).at(names[1], 3 * SECOND)), [names[0], names[2], names[3]]);
    }

    #[test]
    fn notes_alone_stay_what_they_were() {
        let memory = Memory::of(&[("ckpt-10.json", "{}"), ("step-5/w", "x"), ("step-5.json", "{}")]);
        assert_eq!(complete_units(&memory).len(), 3);
    }
}

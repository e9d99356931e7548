//! Files under a name without a step that each save writes over, beside the steps themselves: `optimizer.pt` and `state.json`
//! beside `step-200/` or `model_200.safetensors`. They belong to the newest step, which is nothing without them: whoever goes
//! on from it has them back as they were then. What a trainer merely keeps there (a vocabulary, a data set, a log) is none.
//!
//! Which step one is of, its time tells: the nearest. Where that is the step before, the newest one's is still to come.

use std::collections::{BTreeMap, BTreeSet};

use super::notes::{LONGEST, is_text};
use super::roles::{Role, Said};
use super::siblings::{is_exported, said, with_others};
use super::{halves, second_name, strangers};
use crate::rules::checkpoint::called::is_best;
use crate::rules::checkpoint::check::{self, is_weights};
use crate::rules::checkpoint::generic::is_surely_weights;
use crate::rules::checkpoint::listing::{Entry, parent_of};
use crate::rules::checkpoint::steps::step_in;
use crate::rules::checkpoint::unit::{Candidate, Scan, is_bystander};
use crate::rules::checkpoint::{Found, Kind, Makeup};

/// Where there is no step before, what is of the same save was written within this of it.
const TOGETHER_NS: i64 = 60_000_000_000;
/// What is no state by its name and is written later than this after the step may be a log, which never lies still; where
/// steps are far apart, than a part of the time between.
const LATER_NS: (i64, i64) = (2_000_000_000, 30_000_000_000);
const PART: i64 = 4;
/// Nearer to each other than this, times tell nothing.
const APART_NS: i64 = 100_000_000;

/// The newest steps in a directory, as places in the list of all units.
type Steps = Vec<usize>;
/// So many of them are looked at.
const NEWEST: usize = 3;

/// Where there are steps: the newest first, one unit of each.
fn homes(units: &[Candidate]) -> BTreeMap<String, Steps> {
    let mut homes: BTreeMap<String, Steps> = BTreeMap::new();
    for (at, unit) in units.iter().enumerate().filter(|(_, unit)| unit.step.is_some()) {
        let steps = homes.entry(parent_of(&unit.unit).to_owned()).or_default();
        let is_another = steps.iter().all(|other| units[*other].step != unit.step);
        if steps.len() < NEWEST && is_another && strangers::is_step(unit, units) {
            steps.push(at);
        }
    }
    homes.retain(|_, steps| !steps.is_empty());
    homes
}

/// The steps whose saves write over what lies in this directory: those in it; else those in the only directory of steps right
/// below it, or beside it or around it where it is called by the state that it holds.
fn steps_of<'a>(homes: &'a BTreeMap<String, Steps>, directory: &str) -> Option<&'a Steps> {
    let (around, has_state) = (parent_of(directory), holds_state(directory));
    let is_near = |home: &String| {
        let is_below = parent_of(home) == directory && !home.is_empty();
        is_below || has_state && (home == around || parent_of(home) == around)
    };
    let mut near = homes.iter().filter(|(home, _)| is_near(home)).map(|(_, steps)| steps);
    homes.get(directory).or_else(|| near.next().filter(|_| near.next().is_none()))
}

fn holds_state(directory: &str) -> bool {
    matches!(halves::of_directory(directory), Some(Role::Beside | Role::Some))
}

/// Whether what was taken for a checkpoint without a step may be a part of the steps in this very directory, or near it.
fn may_be_part(unit: &Candidate, homes: &BTreeMap<String, Steps>) -> bool {
    if homes.contains_key(parent_of(&unit.unit)) {
        return strangers::is_stranger(unit, |_| true);
    }
    unit.step.is_none() && halves::is_nothing_alone(unit) && !is_best(&unit.unit)
}

/// Whether what an earlier layout found, without a step, is what is saved over beside the other's steps, and no checkpoint.
pub(in super::super) fn are_parts(scan: &Scan, first: &Found, other: &Found) -> bool {
    if first.layout.makeup != Makeup::OneFile || first.candidates.iter().any(|unit| unit.step.is_some()) {
        return false;
    }
    let homes = homes(&other.candidates);
    let is_model = |unit: &Candidate| unit.files(scan.listing).any(is_surely_weights) || strangers::has_model(unit);
    let has_models = |steps: &Steps| steps.iter().any(|at| is_model(&other.candidates[*at]));
    let is_part = |unit: &Candidate| {
        let is_nothing_alone = halves::is_nothing_alone(unit);
        let steps = steps_of(&homes, parent_of(&unit.unit)).filter(|steps| is_nothing_alone || has_models(steps));
        steps.is_some() && may_be_part(unit, &homes)
    };
    // With a model of another library it is a whole save.
    let units = with_others(scan, first.candidates.clone());
    let (parts, others): (Vec<_>, Vec<_>) = units.iter().partition(|unit| is_part(unit));
    !parts.is_empty() && others.iter().all(|unit| is_best(&unit.unit))
}

/// Makes what was taken for checkpoints without a step, and is a part of one of a step, that.
pub(in super::super) fn drawn_in(scan: &Scan, units: Vec<Candidate>) -> Vec<Candidate> {
    let homes = homes(&units);
    let mut all = units;
    for at in 0..all.len() {
        let steps = steps_of(&homes, parent_of(&all[at].unit)).filter(|_| may_be_part(&all[at], &homes));
        for path in steps.map_or(Vec::new(), |_| std::mem::take(&mut all[at].paths)) {
            let file = scan.listing.get(&path);
            file.zip(steps).into_iter().for_each(|(file, steps)| add(scan, &mut all, steps, file));
        }
    }
    all.retain(|unit| !unit.paths.is_empty());
    all
}

/// Adds the others, which no layout takes for a checkpoint.
pub(in super::super) fn with_files(scan: &Scan, found: &mut Found) {
    let taken: BTreeSet<String> = found.candidates.iter().flat_map(|unit| &unit.paths).cloned().collect();
    let homes = homes(&found.candidates);
    let mut near: BTreeSet<&str> = homes.keys().flat_map(|home| [home.as_str(), parent_of(home)]).collect();
    let states = scan.listing.directories().map(|directory| directory.path.as_str()).filter(|path| holds_state(path));
    near.extend(states);
    for directory in near {
        let Some(steps) = steps_of(&homes, directory) else { continue };
        // What lies under other names as well is one file.
        if steps.iter().take(2).any(|at| !second_name::copies(scan, found, &found.candidates[*at]).is_empty()) {
            continue;
        }
        let is_here = homes.contains_key(directory);
        let beside =
            scan.listing.within(directory).filter(|f| !taken.contains(&f.path) && !found.copies.contains_key(&f.path));
        let files: Vec<&Entry> =
            beside.filter(|f| is_written_over(scan, f, steps, &found.candidates, is_here)).collect();
        for file in files {
            add(scan, &mut found.candidates, steps, file);
        }
    }
}

/// Whether what the newest of its directory has of such files is of its own save, and not of the one before.
pub(in super::super) fn are_current(unit: &Candidate, all: &[Candidate]) -> bool {
    let is_anothers =
        |path: &String| is_state(&said(path)) && all.iter().any(|other| other.step < unit.step && other.is_fixed(path));
    unit.step.is_none() || !unit.fixed.iter().any(is_anothers)
}

/// Whether what was written over since its step was committed is the next save's, by its time and that of the step: it was of
/// this save already, or has come much later after the step than it lay before it.
pub fn is_of_the_next(committed: &Entry, now: &Entry, step_ns: i64) -> bool {
    let (before, after) = (step_ns.saturating_sub(committed.mtime_ns), now.mtime_ns.saturating_sub(step_ns));
    before <= 0 || after > before.saturating_mul(2)
}

/// Adds it to the newest step, and to the one before if it is nearest to that, and whole.
fn add(scan: &Scan, units: &mut [Candidate], steps: &Steps, file: &Entry) {
    if scan.options.restless.contains(&file.path) {
        return;
    }
    let times: Vec<i64> = steps.iter().map(|at| units[*at].newest_ns(scan.listing)).collect();
    let tells = times.len() > 1 && times[0].abs_diff(times[1]) >= APART_NS as u64;
    let nearest = times.iter().enumerate().min_by_key(|(_, time)| time.abs_diff(file.mtime_ns)).map_or(0, |(at, _)| at);
    let is_of_before = tells && nearest == 1 && check::whole(scan.peek, file).is_ok();
    for at in steps.iter().take(1 + usize::from(is_of_before)) {
        let unit = &mut units[*at];
        for paths in [&mut unit.paths, &mut unit.fixed] {
            paths.push(file.path.clone());
            paths.sort();
        }
    }
}

fn is_state(said: &Said) -> bool {
    matches!(said.role, Some(Role::Beside | Role::Some))
}

/// Whether a save writes over it: state by its name; or what else was written since the step before, and not long after this.
/// What lies elsewhere (not `is_here`) is one by its name only, or a note.
fn is_written_over(scan: &Scan, file: &Entry, steps: &Steps, units: &[Candidate], is_here: bool) -> bool {
    let name = file.name();
    let said = Said::by(name);
    let has_step = step_in(name).is_some() || scan.step(&file.path, None).flatten().is_some();
    let is_note = is_text(name);
    let is_state = is_state(&said) || !is_here && holds_state(parent_of(&file.path));
    if file.refused().is_some() || file.size == 0 || has_step || said.role == Some(Role::Model) || said.may_be_whole {
        return false;
    }
    if scan.is_aside(&file.path) || is_bystander(name) && !is_note {
        return false;
    }
    let is_one = match is_note {
        true => is_state || name.ends_with(".json"),
        false => is_weights(name) || is_state && !is_exported(name) && !is_database(name),
    };
    let newest = &units[steps[0]];
    if !is_one || file.kind != Kind::File {
        return false;
    }
    if is_state && !is_note {
        return true;
    }
    if !is_here && !is_note {
        return false;
    }
    let time = newest.files(scan.listing).map(|f| f.mtime_ns).max().unwrap_or(0);
    let before = steps.get(1).map(|at| units[*at].newest_ns(scan.listing));
    let later = before.map_or(LATER_NS.0, |before| (time.saturating_sub(before) / PART).clamp(LATER_NS.0, LATER_NS.1));
    let since = before.unwrap_or(time.saturating_sub(TOGETHER_NS));
    let is_small = file.size <= LONGEST.max(if is_note { 0 } else { newest.bytes(scan.listing) });
    is_small && file.mtime_ns > since && file.mtime_ns.saturating_sub(time) <= later
}

/// What is open for writing all the time.
fn is_database(name: &str) -> bool {
    ["db", "sqlite", "sqlite3", "mdb", "wal", "shm", "lock"].iter().any(|end| name.rsplit('.').next() == Some(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::checkpoint::check::tests::whole_file;
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, recognised};
    use crate::rules::checkpoint::{Options, complete, is_as_before};

    const SECOND: i64 = 1_000_000_000;

    fn saved(files: &[(&str, i64)]) -> Memory {
        files.iter().fold(Memory::default(), |memory, (name, at)| memory.saved(&[name]).at(name, at * SECOND))
    }

    /// The newest of these, whether it lacks nothing that the one before has, and that one; each with its files.
    fn found(memory: &Memory) -> (Candidate, bool, Option<Candidate>) {
        recognised(memory, &Options::default(), |found, scan| {
            let newest = &found.candidates[0];
            (newest.clone(), is_as_before(found, scan, newest), found.candidates.get(1).cloned())
        })
    }

    const STEPS: &str = "model_#.safetensors epoch_#.pt model_#.npz params_#.npy.pkl net_#.ckpt step_#.msgpack step-#/model.pt \
                         runs/a/step-#/model.safetensors my-ckpt-#/w.bin";
    const FIXED: &str = "optimizer.pt optimizer.bin opt.npz rng.pkl rng_state trainer_state.json history.json losses.pkl \
                         state.msgpack";

    /// Steps 1 and 2 a minute apart, and the other so long after the second.
    fn beside(step: &str, other: &str, after: i64) -> (Memory, String, String) {
        let [one, two] = [1, 2].map(|at| step.replace('#', &at.to_string()));
        let home = one.rsplit_once("step-1/").map_or("", |(home, _)| home);
        let other = format!("{home}{other}");
        let unit = match two.rsplit_once('/') {
            Some((around, _)) => around.to_owned(),
            None => two.clone(),
        };
        (saved(&[(&one, 60), (&two, 120), (&other, 120 + after)]), unit, other)
    }

    #[test]
    fn what_each_save_writes_over_belongs_to_the_newest_step_of_any_form() {
        for (step, fixed) in STEPS.split(' ').flat_map(|step| FIXED.split(' ').map(move |fixed| (step, fixed))) {
            for after in [-1, 0, 1] {
                let (memory, unit, other) = beside(step, fixed, after);
                let (newest, is_as_before, before) = found(&memory);
                assert_eq!((newest.unit, newest.fixed), (unit.clone(), vec![other.clone()]), "{fixed} beside {step}");
                assert!(is_as_before && newest.paths.contains(&other), "{fixed} beside {step}");
                assert!(before.is_some_and(|before| before.fixed.is_empty()), "{fixed} beside {step}");
                assert_eq!(complete_units(&memory).len(), 2, "{fixed} beside {step}");
            }
        }
    }

    #[test]
    fn what_a_trainer_keeps_beside_its_steps_is_no_part_of_one() {
        for step in ["model_#.safetensors", "epoch_#.pt", "step-#/model.pt"] {
            for (other, after) in [
                ("train.log", 0),
                ("metrics.jsonl", 0),
                ("events.out.tfevents.17.host", 0),
                ("vocab.txt", 0),
                ("model.safetensors", 0),
                ("best.npz", 0),
                ("optimizer.npz.tmp", 0),
                ("buffer.db", 0),
                ("model.onnx", 0),
                ("eval/state.json", 0),
                ("data.npz", -100),
                ("config.json", -100),
                // Logs that go on.
                ("progress.json", 16),
                ("losses.npz", 16),
                ("trainer_state.json", 16),
            ] {
                let (memory, unit, _) = beside(step, other, after);
                let newest = found(&memory).0;
                assert_eq!((newest.unit, newest.fixed), (unit, vec![]), "{other} beside {step}");
            }
        }
        let large = |size| {
            let (memory, ..) = beside("model_#.safetensors", "a.json", 0);
            found(&memory.with("data.bin", vec![1; size]).at("data.bin", 120 * SECOND)).0.fixed.len()
        };
        assert_eq!([large(16 << 20), large((16 << 20) + 1)], [2, 1], "a data set");
    }

    #[test]
    fn until_it_is_written_over_it_is_that_of_the_step_before_and_the_newest_is_waited_for() {
        for step in ["model_#.safetensors", "epoch_#.pt", "step-#/model.pt"] {
            let (memory, unit, other) = beside(step, "optimizer.pt", -55);
            let (newest, is_as_before, before) = found(&memory);
            let before = before.expect("there is one before");
            assert_eq!(
                (newest.unit, is_as_before, &before.fixed),
                (unit.clone(), false, &vec![other.clone()]),
                "{step}"
            );
            // Whoever goes back to the one before has it, and this one is not whole alone.
            let torn = step.replace('#', "2");
            let torn = memory.with(&torn, &whole_file(&torn)[..12]).at(&torn, 120 * SECOND);
            let whole = recognised(&torn, &Options::default(), |again, scan| {
                again.candidates.iter().find(|unit| complete(again, scan, unit).is_ok()).cloned()
            });
            assert_eq!(whole, Some(before), "{step}");
        }
        // What was written once, long ago, is waited for with no later step.
        let names = [("model_1.pt", 60), ("scaler.pkl", 61), ("model_2.pt", 120), ("model_3.pt", 180)];
        let (newest, is_as_before, _) = found(&saved(&names));
        assert_eq!((newest.unit.as_str(), newest.fixed.len(), is_as_before), ("model_3.pt", 1, true));
        // Where times tell nothing, it is the newest's.
        let at_once = [("model_1.pt", 60), ("optimizer.pt", 60), ("model_2.pt", 60)];
        assert!(found(&saved(&at_once)).1);
    }

    #[test]
    fn what_is_written_over_around_the_steps_or_beside_them_by_its_directorys_name_is_theirs() {
        for (step, other) in [
            ("out/checkpoints/step-#/w.safetensors", "out/state.json"),
            ("checkpoints/step-#.pt", "state.json"),
            ("checkpoints/step-#/w.safetensors", "optimizer.pt"),
            ("checkpoints/epoch_#.pt", "optimizer.pt"),
            ("checkpoints/step-#/w.safetensors", "state/optimizer.pt"),
            ("step-#/w.safetensors", "optimizer/adam.npz"),
            ("models/model_#.pt", "optimizer/latest.pt"),
        ] {
            let (one, two) = (step.replace('#', "1"), step.replace('#', "2"));
            let (newest, is_as_before, _) = found(&saved(&[(&one, 60), (&two, 120), (other, 121)]));
            assert_eq!(
                (newest.step, &newest.fixed[..], is_as_before),
                (Some(2), &[other.to_owned()][..], true),
                "{other}"
            );
        }
        for (step, other) in [
            ("out/checkpoints/step-#/w.safetensors", "out/losses.npz"),
            ("a/b/step-#/w.safetensors", "state.json"),
            ("out/checkpoints/step-#/w.safetensors", "out/other/optimizer.bin"),
            ("out/checkpoints/step-#/w.safetensors", "out/model.safetensors"),
        ] {
            let (one, two) = (step.replace('#', "1"), step.replace('#', "2"));
            let newest = found(&saved(&[(&one, 60), (&two, 120), (other, 121)])).0;
            assert_eq!((newest.step, newest.fixed.len()), (Some(2), 0), "{other}");
        }
        let runs = ["a/step-1/w.safetensors", "b/step-2/w.safetensors", "state.json"].map(|name| (name, 60));
        assert!(found(&saved(&runs)).0.fixed.is_empty(), "whose it is nobody knows");
    }

    #[test]
    fn it_makes_its_step_no_newer() {
        let (memory, ..) = beside("model_#.safetensors", "optimizer.pt", 40);
        let newest = found(&memory).0;
        assert_eq!((newest.paths.len(), newest.newest_ns(&memory.listing())), (2, 120 * SECOND));
    }

    #[test]
    fn what_is_written_over_after_its_step_was_committed_is_late_or_the_next_ones_by_its_time() {
        let at = |seconds: i64| saved(&[("optimizer.pt", seconds)]).listing().entries()[0].clone();
        for (committed, now, is_next) in [(95, 160, true), (105, 160, true), (95, 105, false), (45, 105, false)] {
            assert_eq!(is_of_the_next(&at(committed), &at(now), 100 * SECOND), is_next, "{committed} {now}");
        }
    }

    #[test]
    fn a_whole_save_without_a_step_is_no_part_of_one() {
        for (names, unit) in [
            (
                &["model_1.safetensors", "model_2.safetensors", "optimizer.pt", "model.safetensors"][..],
                "model.safetensors",
            ),
            (&["model_1.safetensors", "model_2.safetensors", "last.pt"], "last.pt"),
            (&["out_1.npz", "out_2.npz", "agent.pt"], "agent.pt"),
            (&["resnet50.safetensors", "agent.pt"], "agent.pt"),
        ] {
            let times: Vec<(&str, i64)> = names.iter().zip(1..).map(|(name, at)| (*name, at * 5)).collect();
            assert_eq!(found(&saved(&times)).0.unit, unit, "{names:?}");
        }
        let times = [("best.pt", 3), ("model_1.safetensors", 5), ("model_2.safetensors", 10), ("optimizer.pt", 11)];
        assert_eq!(found(&saved(&times)).0.unit, "model_2.safetensors", "the best is a copy");
    }
}

//! One step that is saved in several directories side by side, each of a part: `actor/step-200` and `critic/step-200`,
//! `models/model_200.pt` and `optims/optim_200.pt`. They are one unit, called by the model. Directories that say nothing of a part
//! (`runs/a`, `runs/b`; `best`) hold other runs' steps, or copies.

use std::collections::{BTreeMap, BTreeSet};

use super::apart;
use super::notes::is_text;
use super::roles::Role;
use super::siblings::said;
use crate::rules::checkpoint::aside::is_copy;
use crate::rules::checkpoint::called::is_best;
use crate::rules::checkpoint::contest::holds_weights;
use crate::rules::checkpoint::listing::{Entry, Kind, Listing, is_below, name_of, parent_of};
use crate::rules::checkpoint::parts::is_made_later;
use crate::rules::checkpoint::unit::{Candidate, Scan};
use crate::rules::checkpoint::{Found, Makeup};

/// Two of one save are written within this.
pub(super) const TOGETHER_NS: u64 = 60_000_000_000;
/// So much of a file, at three places, tells a copy from what is merely as long, bytes.
const SAMPLE: u64 = 4 << 10;
/// Of so many files.
const SAMPLED: usize = 64;

/// Makes one of those that are of the same step and save; the units come newest first, and stay in order. What of a step no
/// layout takes is looked at, too.
pub(in super::super) fn joined(scan: &Scan, mut units: Vec<Candidate>) -> Vec<Candidate> {
    let own: BTreeSet<String> = units.iter().flat_map(|unit| unit.paths.clone()).collect();
    let apart = apart::of_steps(scan, &units);
    let saves = saves(scan, &units);
    units.extend(apart);
    let mut steps: BTreeMap<(Option<u64>, String), Vec<usize>> = BTreeMap::new();
    for (at, unit) in units.iter().enumerate().filter(|(_, unit)| unit.step.is_some() || is_by_name(scan, unit)) {
        // Those without a step are of one save where their names are the same but for the part.
        let rest = if unit.step.is_some() { String::new() } else { said(&unit.unit).rest };
        steps.entry((unit.step, rest)).or_default().push(at);
    }
    let mut taken: BTreeSet<String> = BTreeSet::new();
    let mut places: BTreeMap<usize, usize> = BTreeMap::new();
    for mut halves in steps.into_values().filter(|halves| halves.len() > 1) {
        // What is loaded first is what it is called by.
        halves.sort_by_cached_key(|at| {
            let unit = &units[*at].unit;
            let said = role(unit);
            let is_other = is_text(unit) || said.is_none() && is_made_later(unit);
            (is_other, said.unwrap_or(Role::Some), !own.contains(unit), unit.len(), unit.clone())
        });
        for (place, first) in halves.iter().enumerate() {
            for other in &halves[place + 1..] {
                let (one, half) = (&units[*first], &units[*other]);
                let is_free = |unit: &Candidate| !taken.contains(&unit.unit);
                if is_free(one)
                    && is_free(half)
                    && are_halves(scan, one, half)
                    && are_of_one_save(scan, one, half, &saves)
                {
                    let (half, one) = (half.clone(), &mut units[*first]);
                    taken.insert(half.unit);
                    one.paths.extend(half.paths);
                    one.fixed.extend(half.fixed);
                    one.paths.sort();
                    one.fixed.sort();
                    places.insert(*first, *other.min(places.get(first).unwrap_or(first)));
                }
            }
        }
    }
    let is_one = |(at, unit): &(usize, Candidate)| {
        let is_own = *at < saves.len() || unit.paths.iter().any(|path| own.contains(path));
        is_own && !taken.contains(&unit.unit)
    };
    let mut all: Vec<(usize, Candidate)> = units.into_iter().enumerate().filter(is_one).collect();
    all.sort_by_key(|(at, _)| *places.get(at).unwrap_or(at));
    all.into_iter().map(|(_, unit)| unit).collect()
}

/// Whether a save without a step says of which part it is, and is none to begin from.
fn is_by_name(scan: &Scan, unit: &Candidate) -> bool {
    let home = name_of(parent_of(&unit.unit));
    unit.is_file(scan.listing) && role(&unit.unit).is_some() && !is_begun(home)
}

pub(in super::super) fn is_begun(home: &str) -> bool {
    home.contains("pretrain") || ["base", "init", "initial"].contains(&home)
}

/// Of each its step and its time.
fn saves(scan: &Scan, units: &[Candidate]) -> Vec<(Option<u64>, i64)> {
    units.iter().map(|unit| (unit.step, unit.newest_ns(scan.listing))).collect()
}

/// Whether both were written within a minute, or in a longer time in which no other step was saved. What is saved over has
/// no other.
fn are_of_one_save(scan: &Scan, one: &Candidate, other: &Candidate, saves: &[(Option<u64>, i64)]) -> bool {
    let times = [one, other].map(|unit| unit.newest_ns(scan.listing));
    let (from, to) = (times[0].min(times[1]), times[0].max(times[1]));
    let mut others = saves.iter().filter(|(step, _)| *step != one.step).map(|(_, time)| *time);
    one.step.is_none()
        || from.abs_diff(to) < TOGETHER_NS
        || others.clone().any(|time| time < from) && others.all(|time| !(from..=to).contains(&time))
}

/// Whether what an earlier layout found is nothing alone, and the other has what it is a part of: `optim/step-200.pt` beside
/// `model/step-200/`.
pub(in super::super) fn are_parts_of(scan: &Scan, first: &Found, other: &Found) -> bool {
    let saves = saves(scan, &other.candidates);
    let is_part = |half: &Candidate| {
        let mut same = other.candidates.iter().filter(|one| one.step == half.step);
        same.any(|one| {
            holds_weights(scan.listing, one) && are_halves(scan, one, half) && are_of_one_save(scan, one, half, &saves)
        })
    };
    other.layout.makeup.is_anybodys() && are_nothing_alone(first) && first.candidates.iter().any(is_part)
}

/// Whether all that was found are files of steps that are nothing alone, by their names or those of their directories.
pub(in super::super) fn are_nothing_alone(found: &Found) -> bool {
    let is_nothing = |unit: &Candidate| unit.step.is_some() && is_nothing_alone(unit);
    found.layout.makeup == Makeup::OneFile && found.candidates.iter().all(is_nothing)
}

/// Whether all of it is state that a model is needed with.
pub(super) fn is_nothing_alone(unit: &Candidate) -> bool {
    unit.paths.iter().all(|path| role(path) == Some(Role::Beside))
}

/// Another of the same step and time in another directory, that holds something else and is no half of it, as far as the names
/// of the directories tell. A copy elsewhere holds the same.
pub fn of_the_same_save(scan: &Scan, of: &Candidate, all: &[Candidate]) -> Option<String> {
    let is_it = |other: &&Candidate| {
        other.step.is_some()
            && other.step == of.step
            && (name_of(&other.unit) == name_of(&of.unit) || !is_made_later(&other.unit))
            && parent_of(&other.unit) != parent_of(&of.unit)
            && other.newest_ns(scan.listing).abs_diff(of.newest_ns(scan.listing)) < TOGETHER_NS
            && !is_copy_of(scan, other, of)
    };
    let other = all.iter().find(is_it).map(|other| other.unit.clone());
    other.or_else(|| apart::left(scan, of, all))
}

/// Whether both hold the same, as far as lengths and samples tell.
pub(super) fn is_copy_of(scan: &Scan, one: &Candidate, other: &Candidate) -> bool {
    if one.bytes(scan.listing) != other.bytes(scan.listing) {
        return false;
    }
    let own = |unit: &Candidate| {
        unit.files(scan.listing).filter(|f| !unit.is_fixed(&f.path)).cloned().collect::<Vec<Entry>>()
    };
    let (ours, theirs) = (own(one), own(other));
    let samples = |file: &Entry| {
        let from = [0, file.size / 2, file.size.saturating_sub(SAMPLE)];
        from.map(|from| scan.peek.read(&file.path, from, SAMPLE.min(file.size - from) as usize))
    };
    let mut both = ours.iter().zip(&theirs);
    ours.len() == theirs.len()
        && both.clone().all(|(our, their)| (our.name(), our.size) == (their.name(), their.size))
        && both.by_ref().take(SAMPLED).all(|(our, their)| samples(our) == samples(their))
}

/// Whether it has something in each directory in which the step before has, where that is in several.
pub(in super::super) fn are_all_there(unit: &Candidate, all: &[Candidate]) -> bool {
    let around = |unit: &Candidate| parent_of(parent_of(&unit.unit)).to_owned();
    let is_before = |other: &&Candidate| other.step < unit.step && around(other) == around(unit);
    let before = all.iter().filter(|_| unit.step.is_some()).filter(is_before).max_by_key(|other| other.step);
    let before = before.map(homes).filter(|homes| homes.len() > 1);
    before.is_none_or(|before| before.is_subset(&homes(unit)))
}

/// The directories that its files are in, or that hold those that are called as it is.
fn homes(unit: &Candidate) -> BTreeSet<&str> {
    let own = unit.paths.iter().filter(|path| !unit.is_fixed(path));
    if unit.paths.contains(&unit.unit) {
        return own.map(|path| parent_of(path)).collect();
    }
    let within = format!("/{}/", name_of(&unit.unit));
    own.map(|path| match is_below(path, &unit.unit) {
        true => parent_of(&unit.unit),
        false => path.split_once(&within).map_or(parent_of(path), |(home, _)| home),
    })
    .collect()
}

fn are_halves(scan: &Scan, one: &Candidate, other: &Candidate) -> bool {
    let (home, others) = (parent_of(&one.unit), parent_of(&other.unit));
    let is_one_kind = one.is_file(scan.listing) == other.is_file(scan.listing);
    (home != others || !is_one_kind)
        && ([parent_of(home), home].contains(&parent_of(others)) || others == parent_of(home))
        && (is_one_kind || role(&other.unit) == Some(Role::Beside) && role(&one.unit) != Some(Role::Beside))
        && are_parts(&one.unit, &other.unit)
        && (one.step.is_some() || say_part(home, others))
        && [one, other].iter().all(|unit| !is_copy(&unit.unit) && !is_best(&unit.unit) && is_plain(scan.listing, unit))
}

/// Whether each directory says of which part it is, unless it is around the other.
fn say_part(home: &str, other: &str) -> bool {
    let says = |home: &str, other: &str| of_directory(home).is_some() || home == parent_of(other);
    says(home, other) && says(other, home)
}

/// Whether both directories say of which part they are, or one holds what is nothing alone.
fn are_parts(one: &str, other: &str) -> bool {
    let roles = [one, other].map(role);
    let homes = [one, other].map(|unit| of_directory(parent_of(unit)));
    let is_beside = |role: &Option<Role>| *role == Some(Role::Beside);
    homes.iter().all(Option::is_some) || roles.iter().filter(|role| is_beside(role)).count() == 1
}

/// What the unit is a part of, by its own name or by that of its directory.
pub(in super::super) fn role(unit: &str) -> Option<Role> {
    [said(unit).role, of_directory(parent_of(unit))].into_iter().flatten().max()
}

/// `optims` as `optim`.
pub(in super::super) fn of_directory(path: &str) -> Option<Role> {
    let name = name_of(path);
    said(name).role.or_else(|| said(name.strip_suffix('s')?).role)
}

/// Links are told from those that leave their unit by the directory that they are in.
fn is_plain(listing: &Listing, unit: &Candidate) -> bool {
    unit.entries(listing).all(|entry| matches!(entry.kind, Kind::File | Kind::Directory) && entry.through.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::checkpoint::check::tests::{safetensors_of, zip_of};
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::complete_units;
    use crate::rules::checkpoint::{Options, is_as_before, recognise};

    const SECOND: i64 = 1_000_000_000;

    /// Each step 100 seconds after the one before, its halves one after the other.
    fn saved(names: &[&str], steps: &[u64]) -> Memory {
        let all = steps.iter().flat_map(|step| names.iter().zip(0..).map(move |(name, at)| (name, at, *step)));
        all.fold(Memory::default(), |memory, (name, at, step)| {
            let name = name.replace('#', &step.to_string());
            let bytes = if name.ends_with(".safetensors") { safetensors_of(b"w") } else { zip_of(b"w", b"") };
            memory.with(&name, bytes).at(&name, (step as i64 * 100 + at) * SECOND)
        })
    }

    /// The newest, and whether it has all that the step before has.
    fn newest(memory: &Memory) -> (Candidate, bool) {
        let (listing, options) = (memory.listing(), Options::default());
        let scan = Scan { listing: &listing, peek: memory, options: &options };
        let mut found = recognise(&scan).expect("something is recognised");
        let is_as_before = is_as_before(&found, &scan, &found.candidates[0]);
        (found.candidates.remove(0), is_as_before)
    }

    #[test]
    fn the_parts_of_one_step_in_a_directory_each_are_one_checkpoint_called_by_the_model() {
        for (halves, unit) in [
            (&["critic/step-#/model.pt", "actor/step-#/model.pt"][..], "actor/step-2"),
            (&["q1/step-#/w.safetensors", "q2/step-#/w.safetensors", "policy/step-#/w.safetensors"], "q1/step-2"),
            (&["run/model/step-#/w.safetensors", "run/ema/step-#/w.safetensors"], "run/model/step-2"),
            (&["checkpoints/step-#/w.safetensors", "optimizers/step-#/w.safetensors"], "checkpoints/step-2"),
            (&["optims/optim_#.pt", "models/model_#.pt"], "models/model_2.pt"),
            (&["optims/optim_#.pt", "model_#.pt"], "model_2.pt"),
            (&["G/net_#.pt", "D/net_#.pt"], "D/net_2.pt"),
        ] {
            let memory = saved(halves, &[1, 2]);
            let (unit_found, is_as_before) = newest(&memory);
            let mut paths: Vec<String> = halves.iter().map(|half| half.replace('#', "2")).collect();
            paths.sort();
            assert_eq!((unit_found.unit.as_str(), unit_found.paths, is_as_before), (unit, paths, true), "{halves:?}");
            assert_eq!(complete_units(&memory).len(), 2, "{halves:?}");
            for half in halves.iter().map(|half| half.replace('#', "2")) {
                assert!(!newest(&memory.clone().without(&half)).1, "{half} is still to come");
                let torn = memory.clone().with(&half, &zip_of(b"w", b"")[..30]).at(&half, 201 * SECOND);
                assert_eq!(complete_units(&torn).iter().map(|unit| unit.1).collect::<Vec<_>>(), [Some(1)], "{half}");
            }
        }
    }

    #[test]
    fn a_part_in_a_directory_of_its_own_goes_with_its_step_whatever_wrote_it_and_is_never_alone() {
        for (parts, unit) in [
            (&["models/model_#.safetensors", "optims/optim_#.pt"][..], "models/model_2.safetensors"),
            (&["optim/step_#.pt", "model/step_#.safetensors"], "model/step_2.safetensors"),
            (&["weights/step_#.npz", "optimizer/step_#.pt"], "weights/step_2.npz"),
            (&["models/model_#.pt", "optims/optim_#.npz", "rng/rng_#.npz"], "models/model_2.pt"),
            (&["x/models/net_g_#.pth", "x/models/net_d_#.pth", "x/training_states/#.npz"], "x/models/net_d_2.pth"),
            (&["model_#.safetensors", "optim/optim_#.safetensors"], "model_2.safetensors"),
            (&["unet/step_#.safetensors", "encoder/step_#.safetensors", "opt/step_#.pt"], "unet/step_2.safetensors"),
            (&["nn/foo_#.safetensors", "optims/optim_#.pt"], "nn/foo_2.safetensors"),
            (&["checkpoints/step-#/w.safetensors", "optimizer/step-#.pt"], "checkpoints/step-2"),
            (&["model/step-#/w.safetensors", "optim/optim_#.pt"], "model/step-2"),
            (&["step-#/w.safetensors", "optim_#.pt"], "step-2"),
        ] {
            let memory = saved(parts, &[1, 2]);
            let (found, is_as_before) = newest(&memory);
            let mut paths: Vec<String> = parts.iter().map(|part| part.replace('#', "2")).collect();
            paths.sort();
            assert_eq!((found.unit.as_str(), found.paths, is_as_before), (unit, paths, true), "{parts:?}");
            assert_eq!(complete_units(&memory).len(), 2, "{parts:?}");
            for part in parts.iter().map(|part| part.replace('#', "2")) {
                let (found, is_as_before) = newest(&memory.clone().without(&part));
                assert!(found.step == Some(1) || !is_as_before, "{part} of {parts:?} is still to come");
                let torn = memory.clone().with(&part, &zip_of(b"w", b"")[..30]).at(&part, 201 * SECOND);
                assert_eq!(complete_units(&torn).iter().map(|unit| unit.1).collect::<Vec<_>>(), [Some(1)], "{part}");
            }
        }
    }

    #[test]
    fn what_was_saved_long_after_its_model_is_of_the_same_save_where_no_other_step_was_saved_between() {
        let parts = ["models/model_#.safetensors", "optims/optim_#.pt"];
        let paths = |memory: &Memory| newest(memory).0.paths.len();
        let memory = saved(&parts, &[1, 2]);
        assert_eq!(paths(&memory.clone().at("optims/optim_2.pt", 900 * SECOND)), 2);
        // Of an earlier run that came further.
        let stale = memory.at("optims/optim_2.pt", 2 * SECOND);
        assert!(paths(&stale) == 1 || newest(&stale).0.step == Some(1));
    }

    #[test]
    fn a_model_and_its_optimizer_saved_over_and_over_in_directories_of_their_own_are_one() {
        for (parts, unit) in [
            (["models/model.pt", "optims/optim.pt"], "models/model.pt"),
            (["optimizer/latest.pt", "model/latest.pt"], "model/latest.pt"),
            (["models/model.safetensors", "optims/optim.pt"], "models/model.safetensors"),
            (["actor/last.pt", "critic/last.pt"], "actor/last.pt"),
            (["model.pt", "optim/optim.npz"], "model.pt"),
        ] {
            let memory = saved(&parts, &[1]);
            let found = newest(&memory).0;
            assert_eq!((found.unit.as_str(), found.paths.len()), (unit, 2), "{parts:?}");
            for part in parts {
                let torn = memory.clone().with(part, &zip_of(b"w", b"")[..30]);
                assert_eq!(complete_units(&torn), [], "{part}");
            }
        }
        for parts in [
            ["models/base.safetensors", "optims/optim.pt"],
            ["pretrained/model.safetensors", "optims/optim.pt"],
            ["best/model.safetensors", "optims/optim.pt"],
            ["model.pt", "eval/model.npz"],
            ["fold_a/last.pt", "fold_b/last.pt"],
        ] {
            assert_eq!(newest(&saved(&parts, &[1])).0.paths.len(), 1, "{parts:?}");
        }
    }

    #[test]
    fn what_of_the_same_save_is_part_of_nothing_is_told_of() {
        let told = |other: &str| {
            let memory = saved(&["a/x_#.pt", other], &[1, 2]);
            let (listing, options) = (memory.listing(), Options::default());
            let scan = Scan { listing: &listing, peek: &memory, options: &options };
            let found = recognise(&scan).expect("something is recognised");
            of_the_same_save(&scan, &found.candidates[0], &found.candidates)
        };
        for other in ["b/y_#.safetensors", "b/y_#.pt", "b/deep/y_#.bin"] {
            assert!(told(other).is_some_and(|path| path.contains("_2.")), "{other}");
        }
        for other in
            ["samples/y_#.safetensors", "b/y_#.npz", "wandb/run/y_#.safetensors", "b/step-#/w.png", "b/y.pt.tmp"]
        {
            assert_eq!(told(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_as_long_and_of_the_same_step_and_time_is_told_from_a_copy_by_what_is_in_it() {
        let other = |critic: &[u8]| {
            let memory = Memory::of(&[("a/step-1/w.bin", &[1; 30_000][..]), ("b/step-1/w.bin", critic)]);
            let (listing, options) = (memory.listing(), Options::default());
            let scan = Scan { listing: &listing, peek: &memory, options: &options };
            let found = recognise(&scan).expect("something is recognised");
            of_the_same_save(&scan, &found.candidates[0], &found.candidates).is_some()
        };
        assert!(!other(&[1; 30_000]) && other(&[2; 30_000]) && other(&[1; 29_999]));
    }

    #[test]
    fn steps_of_other_runs_copies_and_what_was_saved_at_another_time_are_no_halves() {
        for others in [
            &["a/step-#/w.pt", "b/step-#/w.pt"][..],
            &["runs/1a/step-#/w.safetensors", "runs/1b/step-#/w.safetensors"],
            &["actor/step-#/w.safetensors", "best/step-#/w.safetensors"],
            &["a/model_#.pt", "b/net_#.pt"],
            &["a/model_#.pt", "b/model_#.pt"],
        ] {
            assert_eq!(complete_units(&saved(others, &[1])).len(), 2, "{others:?}");
        }
        let names = ["actor/step-1/w.pt", "critic/step-1/w.pt"];
        let earlier = saved(&names, &[1]).at(names[1], 0);
        assert_eq!(complete_units(&earlier).len(), 2, "of an earlier run");
        let linked = saved(&names, &[1]).with("critic/step-1/link", "-> w.pt");
        assert_eq!(complete_units(&linked).len(), 2, "what a link leads to is looked for in one directory");
    }
}

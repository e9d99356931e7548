//! One step that is saved in several directories side by side, each of a part: `actor/step-200` and `critic/step-200`,
//! `models/model_200.pt` and `optims/optim_200.pt`. They are one unit, called by the model. Directories that say nothing of a part
//! (`runs/a`, `runs/b`; `best`) hold other runs' steps, or copies.

use std::collections::{BTreeMap, BTreeSet};

use super::aside::is_copy;
use super::called::is_best;
use super::listing::{Entry, Kind, Listing, name_of, parent_of};
use super::roles::Role;
use super::siblings::said;
use super::unit::{Candidate, Scan};

/// Two of one save are written within this.
const TOGETHER_NS: u64 = 60_000_000_000;
/// So much of a file, at three places, tells a copy from what is merely as long, bytes.
const SAMPLE: u64 = 4 << 10;
/// Of so many files.
const SAMPLED: usize = 64;

/// Makes one of those that are of the same step and time; the units come newest first, and stay in order.
pub(super) fn joined(scan: &Scan, mut units: Vec<Candidate>) -> Vec<Candidate> {
    let mut steps: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (at, unit) in units.iter().enumerate() {
        unit.step.into_iter().for_each(|step| steps.entry(step).or_default().push(at));
    }
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for mut halves in steps.into_values().filter(|halves| halves.len() > 1) {
        // What is loaded first is what it is called by.
        halves.sort_by_cached_key(|at| (role(&units[*at].unit), units[*at].unit.len(), units[*at].unit.clone()));
        for (place, first) in halves.iter().enumerate() {
            for other in &halves[place + 1..] {
                let (one, half) = (&units[*first], &units[*other]);
                let is_free = |unit: &Candidate| !taken.contains(&unit.unit);
                if is_free(one) && is_free(half) && are_halves(scan, one, half) {
                    let (half, one) = (half.clone(), &mut units[*first]);
                    taken.insert(half.unit);
                    one.paths.extend(half.paths);
                    one.fixed.extend(half.fixed);
                    one.paths.sort();
                    one.fixed.sort();
                }
            }
        }
    }
    units.retain(|unit| !taken.contains(&unit.unit));
    units
}

/// Another of the same step, name and time in another directory, that holds something else and is no half of it, as far as the
/// names of the directories tell. A copy elsewhere holds the same.
pub fn of_the_same_save<'a>(scan: &Scan, of: &Candidate, all: &'a [Candidate]) -> Option<&'a Candidate> {
    let is_it = |other: &&Candidate| {
        other.step.is_some()
            && other.step == of.step
            && name_of(&other.unit) == name_of(&of.unit)
            && parent_of(&other.unit) != parent_of(&of.unit)
            && other.newest_ns(scan.listing).abs_diff(of.newest_ns(scan.listing)) < TOGETHER_NS
            && !is_copy_of(scan, other, of)
    };
    all.iter().find(is_it)
}

/// Whether both hold the same, as far as lengths and samples tell.
fn is_copy_of(scan: &Scan, one: &Candidate, other: &Candidate) -> bool {
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
pub(super) fn are_all_there(unit: &Candidate, all: &[Candidate]) -> bool {
    let around = |unit: &Candidate| parent_of(parent_of(&unit.unit)).to_owned();
    let is_before = |other: &&Candidate| other.step < unit.step && around(other) == around(unit);
    let before = all.iter().filter(|_| unit.step.is_some()).filter(is_before).max_by_key(|other| other.step);
    let before = before.map(homes).filter(|homes| homes.len() > 1);
    before.is_none_or(|before| before.is_subset(&homes(unit)))
}

/// The directories that its files are in, or that hold those that are called as it is.
fn homes(unit: &Candidate) -> BTreeSet<&str> {
    if unit.paths.contains(&unit.unit) {
        return unit.paths.iter().map(|path| parent_of(path)).collect();
    }
    let within = format!("/{}/", name_of(&unit.unit));
    unit.paths.iter().filter_map(|path| Some(path.split_once(&within)?.0)).collect()
}

fn are_halves(scan: &Scan, one: &Candidate, other: &Candidate) -> bool {
    let time = |unit: &Candidate| unit.newest_ns(scan.listing);
    let is_directory = |unit: &Candidate| scan.listing.file(&unit.unit).is_none();
    let (home, others) = (parent_of(&one.unit), parent_of(&other.unit));
    home != others
        && [parent_of(home), home].contains(&parent_of(others))
        && is_directory(one) == is_directory(other)
        && are_parts(&one.unit, &other.unit)
        && time(one).abs_diff(time(other)) < TOGETHER_NS
        && [one, other].iter().all(|unit| !is_copy(&unit.unit) && !is_best(&unit.unit) && is_plain(scan.listing, unit))
}

/// Whether both directories say of which part they are, or one holds what is nothing alone.
fn are_parts(one: &str, other: &str) -> bool {
    let roles = [one, other].map(role);
    let homes = [one, other].map(|unit| of_directory(parent_of(unit)));
    let is_beside = |role: &Option<Role>| *role == Some(Role::Beside);
    homes.iter().all(Option::is_some) || roles.iter().filter(|role| is_beside(role)).count() == 1
}

/// What the unit is a part of, by its own name or by that of its directory.
fn role(unit: &str) -> Option<Role> {
    [said(unit).role, of_directory(parent_of(unit))].into_iter().flatten().max()
}

/// `optims` as `optim`.
fn of_directory(path: &str) -> Option<Role> {
    let name = name_of(path);
    said(name).role.or_else(|| said(name.strip_suffix('s')?).role)
}

/// Links are told from those that leave their unit by the directory that they are in.
fn is_plain(listing: &Listing, unit: &Candidate) -> bool {
    unit.entries(listing).all(|entry| matches!(entry.kind, Kind::File | Kind::Directory) && entry.through.is_none())
}

#[cfg(test)]
mod tests {
    use super::super::check::tests::{safetensors_of, zip_of};
    use super::super::listing::tests::Memory;
    use super::super::tests::complete_units;
    use super::super::{Options, is_as_before, recognise};
    use super::*;

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

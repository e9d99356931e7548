//! Orbax (JAX): directories `N` or `prefix_N`, renamed from `N.orbax-checkpoint-tmp*` when finished; where renames are
//! not atomic, a file `commit_success.txt` inside says so instead. One saved by itself has any name.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::rules::checkpoint::json;
use crate::rules::checkpoint::layout::Layout;
use crate::rules::checkpoint::listing::{Entry, is_below, join, name_of, parent_of};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::steps::{is_steps, step_in_stem};
use crate::rules::checkpoint::unit::{Candidate, IN_ITSELF, Scan};

const TEMPORARY: &str = ".orbax-checkpoint-tmp";
const METADATA: &str = "_CHECKPOINT_METADATA";
const COMMIT: &str = "commit_success.txt";
const TELLTALES: [&str; 5] = [METADATA, COMMIT, "_METADATA", "manifest.ocdbt", "_sharding"];
/// What each process writes for itself, in an item.
const OF_A_PROCESS: &str = "ocdbt.process_";

pub(super) const ORBAX: Layout = Layout {
    is_handed_out: true,
    ..Layout::of("orbax", "directories with Orbax's metadata, or named *.orbax-checkpoint-tmp*", find, complete)
};

fn find(scan: &Scan) -> Vec<Candidate> {
    let roots = roots(scan);
    if roots.contains("") {
        let paths = scan.listing.within("").map(|e| e.path.clone()).collect();
        return vec![Candidate::of(METADATA.to_owned(), None, paths)];
    }
    let beside = beside(scan, &roots);
    let holds_a_root = |path: &str| roots.iter().any(|r| is_below(r, path));
    // What has nothing of its own yet, beside those that have, is unfinished.
    let is_next = |path: &str| {
        let may_be = beside.contains(parent_of(path)) || scan.options.format.is_some();
        may_be && number(name_of(path)).is_some() && !holds_a_root(path)
    };
    let mut units = scan.outermost(|path| roots.contains(path) || is_next(path), number);
    // A model under a plain name beside steps is no step, and must not be restored in their place.
    if units.iter().any(|u| number(name_of(&u.unit)).is_some()) {
        units.retain(|u| number(name_of(&u.unit)).is_some());
    }
    units
}

/// The directories that were each saved as one, none inside another; the empty path where that is the checkpoint directory.
fn roots<'a>(scan: &Scan<'a>) -> BTreeSet<&'a str> {
    let telltales = scan.listing.files().filter(|f| TELLTALES.contains(&f.name()) && !f.path.contains(TEMPORARY));
    let mut roots: BTreeSet<&str> = telltales.map(|f| root_of(scan, parent_of(&f.path))).collect();
    for unfinished in unfinished(scan).filter(|t| number(final_name(t)).is_none()) {
        let home = parent_of(unfinished);
        roots.extend(number(name_of(home)).map(|_| home));
    }
    // The manager keeps a record under a plain name, which holds no arrays.
    let has_arrays = |root: &str| below(scan, root).any(|name| TELLTALES[2..].contains(&name));
    roots.retain(|root| number(name_of(root)).is_some() || has_arrays(root));
    let all = roots.clone();
    roots.retain(|root| !all.iter().any(|outer| is_below(root, outer)));
    roots
}

/// What this directory with a telltale in it was saved as a part of, or itself. Items lie in the directory of their step.
fn root_of<'a>(scan: &Scan, home: &'a str) -> &'a str {
    let has_metadata = |path: &str| scan.listing.file(&join(path, METADATA)).is_some();
    let ends = home.match_indices('/').map(|(at, _)| at).chain([home.len()]);
    let around = std::iter::once("").chain(ends.map(|end| &home[..end]));
    let saved = around.into_iter().find(|path| has_metadata(path));
    let is_a_processes = name_of(home).starts_with(OF_A_PROCESS);
    let item = saved.unwrap_or(if is_a_processes { parent_of(home) } else { home });
    let (own, outer) = (name_of(item), name_of(parent_of(item)));
    let is_in_a_step = is_steps(outer) || saved.is_none() && number(own).is_none() && number(outer).is_some();
    if !is_steps(own) && is_in_a_step { parent_of(item) } else { item }
}

/// Directories beside whose steps others may follow.
fn beside<'a>(scan: &Scan<'a>, roots: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
    let saved = roots.iter().filter(|r| scan.listing.within(r).any(|e| TELLTALES.contains(&e.name())));
    saved.copied().chain(unfinished(scan)).map(parent_of).collect()
}

/// Directories under a temporary name.
fn unfinished<'a>(scan: &Scan<'a>) -> impl Iterator<Item = &'a str> {
    let paths = scan.listing.entries().iter().map(|e| e.path.as_str());
    paths.filter(|path| name_of(path).contains(TEMPORARY))
}

/// What an unfinished one will be called.
fn final_name(path: &str) -> &str {
    let name = name_of(path);
    name.split_once(TEMPORARY).map_or(name, |(before, _)| before)
}

fn below<'a>(scan: &Scan<'a>, directory: &str) -> impl Iterator<Item = &'a str> {
    let all = if directory.is_empty() { scan.listing.entries() } else { scan.listing.below(directory) };
    all.iter().map(|e| e.name())
}

/// `N` or `prefix_N`, unless that is a day, or what says a step in another way (`step-100`).
fn number(name: &str) -> Option<u64> {
    let digits = name.rsplit_once('_').map_or(name, |(_, digits)| digits);
    let is_one = digits.bytes().all(|b| b.is_ascii_digit()) && !name.starts_with(OF_A_PROCESS);
    match is_one {
        true => digits.parse().ok().filter(|_| step_in_stem(name).is_some()),
        false => step_in_stem(name).filter(|_| is_steps(name) && name.ends_with(|c: char| c.is_ascii_digit())),
    }
}

fn complete(scan: &Scan, candidate: &Candidate, memo: &Memo) -> Result<(), String> {
    let unit = &candidate.unit;
    if unit == METADATA {
        return Err(IN_ITSELF.to_owned());
    }
    let has = |unit: &str, name: &str| scan.listing.file(&join(unit, name)).is_some();
    if candidate.paths.iter().any(|p| p.contains(TEMPORARY)) {
        return Err("a part of it is still being written".to_owned());
    }
    let home = parent_of(unit);
    // What one of the siblings has, this version of Orbax writes.
    let written = memo.names(|| {
        let markers = scan.listing.files().filter(|f| [METADATA, COMMIT].contains(&f.name()) && f.path != f.name());
        let home = |marker: &Entry| parent_of(parent_of(&marker.path)).to_owned();
        markers.map(|marker| (format!("{}/{}", home(marker), marker.name()), String::new())).collect()
    });
    // Its items are committed one by one before it is itself.
    let commits = has(unit, METADATA) && below(scan, unit).any(|name| name == COMMIT);
    for marker in [METADATA, COMMIT] {
        let is_due = marker == COMMIT && commits || written.contains_key(&format!("{home}/{marker}"));
        if !has(unit, marker) && is_due {
            return Err(format!("{marker} is not there yet"));
        }
    }
    if let Some(metadata) = scan.listing.file(&join(unit, METADATA)) {
        json::json(scan.peek, metadata).map_err(|why| format!("{METADATA}: {why}"))?;
    }
    scan.all_whole(candidate)?;
    let saved = memo.saved(|| {
        let saved = scan.listing.entries().iter().filter(|e| has(&e.path, METADATA) || has(&e.path, COMMIT));
        let step = |e: &Entry| scan.step(&e.path, number(e.name())).flatten();
        let mut saved: Vec<Candidate> = saved.map(|e| Candidate::of(e.path.clone(), step(e), Vec::new())).collect();
        saved.sort_by(|a, b| (parent_of(&a.unit), a.step).cmp(&(parent_of(&b.unit), b.step)));
        saved
    });
    let (from, to) =
        (saved.partition_point(|s| parent_of(&s.unit) < home), saved.partition_point(|s| parent_of(&s.unit) <= home));
    let saved = &saved[from..to];
    let matters = |e: &Entry| TELLTALES.contains(&e.name()) && !e.path.contains(TEMPORARY);
    scan.nothing_lost(candidate, saved, |e| matters(e) && !is_of_new_item(scan, candidate, saved, &e.path))
}

#[derive(Deserialize)]
struct Saved {
    item_handlers: BTreeMap<String, IgnoredAny>,
}

/// Whether what a later step has lies in an item that this one was saved without: its own metadata tells, else the steps
/// before it. One of which no item is left is being deleted.
fn is_of_new_item(scan: &Scan, candidate: &Candidate, saved: &[Candidate], path: &str) -> bool {
    let within = path.strip_prefix(parent_of(&candidate.unit)).unwrap_or(path).trim_start_matches('/');
    let Some((item, _)) = within.split_once('/').and_then(|(_, rest)| rest.split_once('/')) else { return false };
    let has = |unit: &Candidate| scan.listing.get(&join(&unit.unit, item)).is_some();
    if has(candidate) || !below(scan, &candidate.unit).any(|name| TELLTALES[2..].contains(&name)) {
        return false;
    }
    let own = scan.text(&join(&candidate.unit, METADATA)).and_then(|text| serde_json::from_str::<Saved>(&text).ok());
    match own {
        Some(own) => !own.item_handlers.contains_key(item),
        None => !saved.iter().any(|other| other.step < candidate.step && has(other)),
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, reason};

    #[test]
    fn a_directory_under_its_final_name_with_metadata_is_finished() {
        let memory = Memory::of(&[("10/_CHECKPOINT_METADATA", "{}"), ("10/default/manifest.ocdbt", "x")])
            .with("20/_CHECKPOINT_METADATA", "{}")
            .with("20/default/d/abc", "x")
            .with("30.orbax-checkpoint-tmp-171/default/d/abc", "x");
        assert_eq!(complete_units(&memory), [("20".into(), Some(20)), ("10".into(), Some(10))]);
        let memory = memory.with("40/default/d/abc", "x");
        assert!(reason(&memory, "40").contains("_CHECKPOINT_METADATA"));
    }

    #[test]
    fn a_step_may_be_said_in_other_ways() {
        let memory = Memory::of(&[("run/step-100/_CHECKPOINT_METADATA", "{}"), ("run/step-100/d/a", "x")])
            .with("run/step-200/_CHECKPOINT_METADATA", "{}")
            .with("run/step-200/d/a", "x")
            .with("run/step-300.orbax-checkpoint-tmp-5/d/a", "x");
        assert_eq!(complete_units(&memory), [("run/step-200".into(), Some(200)), ("run/step-100".into(), Some(100))]);
    }

    #[test]
    fn a_day_is_no_step() {
        let memory = Memory::of(&[("2024_06_30/_CHECKPOINT_METADATA", "{}"), ("2024_06_30/default/_METADATA", "{}")]);
        assert_eq!(complete_units(&memory), [("2024_06_30".into(), None)]);
    }

    #[test]
    fn a_first_save_that_is_not_renamed_yet_is_no_checkpoint_of_any_format() {
        assert_eq!(complete_units(&Memory::of(&[("10.orbax-checkpoint-tmp-5/default/d/a", "x")])), []);
    }

    #[test]
    fn where_one_has_a_commit_file_all_need_it() {
        let memory = Memory::of(&[("ckpt_1/commit_success.txt", "x"), ("ckpt_1/a", "x"), ("ckpt_2/a", "x")]);
        assert_eq!(complete_units(&memory), [("ckpt_1".into(), Some(1))]);
        let first = Memory::of(&[("10/_CHECKPOINT_METADATA", "{}"), ("10/default/commit_success.txt", "x")]);
        assert!(reason(&first, "10").contains("commit_success.txt is not there yet"), "its items come first");
        assert_eq!(complete_units(&first.with("10/commit_success.txt", "x")), [("10".into(), Some(10))]);
    }

    #[test]
    fn an_item_still_being_written_spoils_it() {
        let memory = Memory::of(&[("10/_CHECKPOINT_METADATA", "{}"), ("10/state.orbax-checkpoint-tmp-1/a", "x")]);
        assert!(reason(&memory, "10").contains("still being written"));
    }

    #[test]
    fn one_under_a_plain_name_is_one_checkpoint_of_no_step() {
        let memory = Memory::of(&[("my_model/_CHECKPOINT_METADATA", "{}"), ("my_model/default/manifest.ocdbt", "x")])
            .with("my_model/default/ocdbt.process_0/manifest.ocdbt", "x")
            .with("metadata/_CHECKPOINT_METADATA", "{}")
            .with("metadata/metadata", "what the manager says of itself");
        assert_eq!(complete_units(&memory), [("my_model".into(), None)]);
        let both = memory.clone().with("5/_CHECKPOINT_METADATA", "{}").with("5/default/manifest.ocdbt", "x");
        assert_eq!(complete_units(&both), [("5".into(), Some(5))], "it must not be restored in a step's place");
        let torn = memory.with("my_model/_CHECKPOINT_METADATA", "{");
        assert!(reason(&torn, "my_model").contains("_CHECKPOINT_METADATA"));
        let beside_steps = torn.with("10/_CHECKPOINT_METADATA", "{}").with("10/default/manifest.ocdbt", "x");
        assert_eq!(complete_units(&beside_steps), [("10".into(), Some(10))]);
    }

    #[test]
    fn the_models_saved_for_a_step_are_one_checkpoint() {
        let memory = Memory::of(&[("ckpt_10/params/_CHECKPOINT_METADATA", "{}"), ("ckpt_10/params/_METADATA", "{}")])
            .with("ckpt_10/state_2/_CHECKPOINT_METADATA", "{}")
            .with("ckpt_10/state_2/_METADATA", "{}");
        assert_eq!(complete_units(&memory), [("ckpt_10".into(), Some(10))]);
    }

    #[test]
    fn the_steps_of_an_experiment_are_the_checkpoints_and_not_the_experiment() {
        let step = |memory: Memory, unit: &str| {
            memory
                .with(&format!("{unit}/_CHECKPOINT_METADATA"), "{}")
                .with(&format!("{unit}/default/manifest.ocdbt"), "x")
        };
        let memory = step(step(Memory::default(), "exp_1/10"), "exp_1/20");
        assert_eq!(complete_units(&memory), [("exp_1/20".into(), Some(20)), ("exp_1/10".into(), Some(10))]);
        let torn = memory.without("exp_1/20/_CHECKPOINT_METADATA").without("exp_1/20/default/manifest.ocdbt");
        let torn = torn.with("exp_1/20/default/d/a", "x").with("exp_1/30.orbax-checkpoint-tmp-5/default/d/a", "x");
        assert_eq!(complete_units(&torn), [("exp_1/10".into(), Some(10))]);
        assert!(reason(&torn, "exp_1/20").contains("_CHECKPOINT_METADATA is not there yet"));
        let old = Memory::of(&[("exp_1/10/default/manifest.ocdbt", "x"), ("exp_1/20/default/_METADATA", "{}")]);
        assert_eq!(complete_units(&old).len(), 2);
        let plain = Memory::of(&[("exp_1/final/_CHECKPOINT_METADATA", "{}"), ("exp_1/final/_METADATA", "{}")]);
        assert_eq!(complete_units(&plain), [("exp_1/final".into(), None)]);
    }

    #[test]
    fn one_saved_into_the_checkpoint_directory_itself_is_never_taken_in_parts() {
        let memory = Memory::of(&[("_CHECKPOINT_METADATA", "{}"), ("default/ocdbt.process_0/manifest.ocdbt", "x")]);
        assert_eq!(complete_units(&memory), []);
        assert!(reason(&memory, "_CHECKPOINT_METADATA").contains("in the checkpoint directory itself"));
    }

    #[test]
    fn an_old_one_that_is_being_deleted_is_not_taken_for_whole() {
        let memory = ["1", "2"].iter().fold(Memory::default(), |memory, unit| {
            let memory = memory.with(&format!("{unit}/_CHECKPOINT_METADATA"), "{}");
            let memory = memory.with(&format!("{unit}/default/manifest.ocdbt"), "m");
            memory.with(&format!("{unit}/default/d/{unit}f0e"), "d")
        });
        assert_eq!(complete_units(&memory).len(), 2, "the names of arrays do not count");
        let memory = memory.without("1/default/manifest.ocdbt");
        assert!(reason(&memory, "1").contains("default/manifest.ocdbt is missing, which 2 has"));
        let memory = memory.without("1/default/d/1f0e");
        assert!(reason(&memory, "1").contains("default/manifest.ocdbt is missing"), "of an item nothing is left");
    }

    fn with_items(memory: Memory, step: u64, items: &[&str]) -> Memory {
        let memory = memory.with(&format!("{step}/_CHECKPOINT_METADATA"), "{}");
        items.iter().fold(memory, |memory, item| memory.with(&format!("{step}/{item}/manifest.ocdbt"), "m"))
    }

    #[test]
    fn a_newer_one_that_is_not_finished_takes_nothing_from_a_whole_one() {
        let memory = with_items(with_items(Memory::default(), 5, &["default"]), 10, &[]);
        for unfinished in
            ["10/default.orbax-checkpoint-tmp-1/manifest.ocdbt", "10/ema.orbax-checkpoint-tmp-1/_METADATA"]
        {
            let memory = memory.clone().with(unfinished, "m");
            assert_eq!(complete_units(&memory), [("5".into(), Some(5))], "{unfinished}");
        }
    }

    #[test]
    fn an_item_that_newer_ones_have_is_missing_only_where_it_was_saved() {
        let units = |memory: &Memory| complete_units(memory).into_iter().map(|(unit, _)| unit).collect::<Vec<_>>();
        let memory = with_items(Memory::default(), 5, &["default"]);
        let memory = with_items(with_items(memory, 10, &["default", "ema"]), 20, &["default", "ema"]);
        assert_eq!(units(&memory), ["20", "10", "5"], "it came later");
        let lost = with_items(memory.clone(), 1, &["default", "ema"]);
        assert!(reason(&lost, "5").contains("ema/manifest.ocdbt is missing, which 10 has"), "one before had it");
        let says =
            |items: &str| memory.clone().with("5/_CHECKPOINT_METADATA", format!(r#"{{"item_handlers":{items}}}"#));
        assert!(reason(&says(r#"{"default":"a","ema":"b"}"#), "5").contains("ema/manifest.ocdbt is missing"));
        for without in [r#"{"default":"a"}"#, "null", r#""a""#] {
            assert_eq!(units(&says(without)), ["20", "10", "5"], "{without}");
        }
        let torn = memory.with("5/ema/d/f0e", "d");
        assert!(reason(&torn, "5").contains("ema/manifest.ocdbt is missing"), "a part of it is left");
    }
}

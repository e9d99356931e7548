//! DeepSpeed: directories `global_stepN` (or any tag) and the pointer `latest`, which holds the newest tag.
//!
//! Rank 0 writes `latest` before the last barrier, so with several ranks the pointer alone proves nothing: the files of
//! all ranks are counted. A `checkpoint-N` of Hugging Face that holds such directories is that layout's.

use std::collections::{BTreeMap, BTreeSet};

use super::listing::{Kind, join, name_of, parent_of};
use super::unit::{Candidate, Layout, Pointer, Scan, number_after, step_in_stem};

const POINTER: &str = "latest";

#[allow(missing_docs, reason = "the entry of the list in mod.rs")]
pub const DEEPSPEED: Layout = Layout {
    name: "deepspeed",
    evidence: "directories with files named *_optim_states.pt or mp_rank_*_model_states.pt",
    find,
    complete,
    pointers,
};

fn find(scan: &Scan) -> Vec<Candidate> {
    let is_state = |name: &str| name.ends_with("_optim_states.pt") || name.ends_with("_model_states.pt");
    let is_others = |path: &str| path.split('/').any(|part| number_after("checkpoint-", part).is_some());
    let units = scan.listing.directories().filter(|d| {
        let has_states = scan.listing.within(&d.path).any(|e| is_state(e.name()));
        (has_states || number_after("global_step", d.name()).is_some()) && !is_others(&d.path)
    });
    let unit =
        |path: &str| Some(Candidate::directory(scan.listing, path, scan.step(path, step_in_stem(name_of(path)))?));
    units.filter_map(|d| unit(&d.path)).collect()
}

fn complete(scan: &Scan, candidate: &Candidate) -> Result<(), String> {
    let tag = name_of(&candidate.unit);
    let path = join(parent_of(&candidate.unit), POINTER);
    let named = scan.text(&path).ok_or_else(|| format!("the pointer {path} is not there yet"))?;
    let named = named.trim();
    // An older tag was named once; a higher number proves it.
    let is_past = matches!((step_in_stem(named), candidate.step), (Some(newest), Some(ours)) if newest > ours);
    if named != tag && !is_past {
        return Err(format!("the pointer {path} names {named:?}"));
    }
    let mut models = BTreeSet::new();
    let mut shards: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for file in candidate.files(scan.listing) {
        match rank_of(file.name()) {
            Some((None, model)) => drop(models.insert(model)),
            Some((Some(data), model)) if file.name().ends_with("_optim_states.pt") => {
                shards.entry(model).or_default().insert(data);
            }
            _ => {}
        }
    }
    gapless(&models, "mp_rank").map_err(|gap| format!("the model states of {gap} are missing"))?;
    let widest = shards.values().filter_map(|s| s.last().copied()).max();
    for (model, data) in &shards {
        let wanted: BTreeSet<u64> = (0..=widest.unwrap_or(0)).collect();
        if let Some(gap) = wanted.difference(data).next() {
            return Err(format!("the optimizer states of zero_pp_rank_{gap}_mp_rank_{model:02} are missing"));
        }
    }
    let count = shards.values().map(BTreeSet::len).sum::<usize>();
    match scan.options.world_size {
        Some(world) if count > 0 && count != world as usize => {
            return Err(format!("{count} of {world} optimizer states are there"));
        }
        _ => {}
    }
    if models.is_empty() && shards.is_empty() {
        return Err("no rank's states are in it".to_owned());
    }
    scan.all_whole(candidate)
}

/// Data rank (where it is a shard) and model rank: `mp_rank_00_model_states.pt`,
/// `bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt`.
fn rank_of(name: &str) -> Option<(Option<u64>, u64)> {
    let (before, rest) = name.split_once("mp_rank_")?;
    let model = rest.split('_').next()?.parse().ok()?;
    match before.split_once("zero_pp_rank_") {
        Some((_, data)) => Some((Some(data.trim_end_matches('_').parse().ok()?), model)),
        None => Some((None, model)),
    }
}

/// Errors: the first number missing below the highest.
pub(super) fn gapless(numbers: &BTreeSet<u64>, what: &str) -> Result<(), String> {
    let top = numbers.last().copied().unwrap_or(0);
    match (0..=top).find(|n| !numbers.is_empty() && !numbers.contains(n)) {
        Some(gap) => Err(format!("{what} {gap}")),
        None => Ok(()),
    }
}

fn pointers(scan: &Scan, candidate: &Candidate) -> Vec<Pointer> {
    let path = join(parent_of(&candidate.unit), POINTER);
    let is_file = scan.listing.get(&path).is_some_and(|e| e.kind == Kind::File);
    let content = name_of(&candidate.unit).to_owned();
    if is_file { vec![Pointer { path, content, symlink: false }] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::super::check::tests::zip_of;
    use super::super::listing::tests::Memory;
    use super::super::tests::{complete_units, complete_units_with, reason};
    use super::super::unit::Options;

    fn saved(tags: &[u64]) -> Memory {
        let mut memory = Memory::of(&[("latest", "global_step20")]);
        for tag in tags {
            memory = memory.with(&format!("global_step{tag}/mp_rank_00_model_states.pt"), zip_of(b"m", b""));
            for rank in 0..2 {
                let name = format!("global_step{tag}/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt");
                memory = memory.with(&name, zip_of(b"o", b""));
            }
        }
        memory
    }

    #[test]
    fn the_pointers_tag_and_those_before_it_are_finished() {
        let units = complete_units(&saved(&[10, 20, 30]));
        assert_eq!(units, [("global_step20".into(), Some(20)), ("global_step10".into(), Some(10))]);
        assert!(reason(&saved(&[30]), "global_step30").contains("names"));
    }

    #[test]
    fn a_missing_ranks_file_is_named() {
        let memory = saved(&[20]).without("global_step20/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt");
        assert!(reason(&memory, "global_step20").contains("zero_pp_rank_0_mp_rank_00"));
        let options = Options { world_size: Some(4), ..Options::default() };
        assert_eq!(complete_units_with(&saved(&[20]), &options), []);
    }

    #[test]
    fn without_the_pointer_nothing_is_finished() {
        assert_eq!(complete_units(&saved(&[20]).without("latest")), []);
    }
}

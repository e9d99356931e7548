//! Megatron-LM and Megatron-Core: directories `iter_NNNNNNN` and the pointer `latest_checkpointed_iteration.txt`, an
//! iteration or `release`.
//!
//! The distributed format writes `metadata.json` only when it finalises, and `.metadata` where torch writes the shards;
//! the old format has a directory `mp_rank_*` for each rank of the model.

use std::collections::BTreeSet;

use super::dcp::named_files_there;
use super::deepspeed::gapless;
use crate::rules::checkpoint::layout::{Layout, Makeup, Pointer};
use crate::rules::checkpoint::listing::{Entry, Kind, join, name_of, parent_of};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::pointing;
use crate::rules::checkpoint::steps::number_after;
use crate::rules::checkpoint::unit::{Candidate, Scan};

const POINTER: &str = "latest_checkpointed_iteration.txt";

pub(super) const MEGATRON: Layout = Layout {
    pointers,
    makeup: Makeup::SameAgain,
    ..Layout::of(
        "megatron",
        "directories named iter_NNNNNNN with a rank's or the distributed format's files",
        find,
        complete,
    )
};

fn find(scan: &Scan) -> Vec<Candidate> {
    let is_pointed_to = |d: &Entry| scan.listing.get(&join(parent_of(&d.path), POINTER)).is_some();
    let named = || scan.listing.directories().filter_map(|d| Some((d, number_after("iter_", d.name())?)));
    let ours = named().filter(|(d, _)| holds_ours(scan, d, is_pointed_to(d))).map(|(d, _)| parent_of(&d.path));
    // One directory of this kind makes those beside it unfinished ones.
    let homes: BTreeSet<&str> = ours.collect();
    let is_asked = scan.options.format.is_some();
    let iterations = scan.listing.directories().filter_map(|d| {
        let is_release = d.name() == "release" && is_pointed_to(d);
        let is_ours = is_asked || homes.contains(parent_of(&d.path));
        let number = number_after("iter_", d.name()).filter(|_| is_ours);
        if number.is_some() || is_release { Some((d, number)) } else { None }
    });
    iterations.filter_map(|(d, n)| Some(Candidate::directory(scan.listing, &d.path, scan.step(&d.path, n)?))).collect()
}

/// Whether a directory holds what tells ours from anybody's `iter_200`. Shards of PyTorch's and a `metadata.json` may
/// be anybody's, too, unless there is our pointer; `common.pt` is written before them.
fn holds_ours(scan: &Scan, directory: &Entry, is_pointed_to: bool) -> bool {
    scan.listing.within(&directory.path).any(|e| {
        let is_anybodys = [".metadata", "metadata.json"].contains(&e.name()) || e.name().ends_with(".distcp");
        let is_rank = e.kind == Kind::Directory && e.name().starts_with("mp_rank_");
        is_rank || e.name() == "common.pt" || is_anybodys && is_pointed_to
    })
}

fn complete(scan: &Scan, candidate: &Candidate, _: &Memo) -> Result<(), String> {
    let unit = &candidate.unit;
    let path = join(parent_of(unit), POINTER);
    let text = scan.text(&path).ok_or_else(|| format!("the pointer {path} is not there yet"))?;
    let named = match (text.trim(), number_after("iter_", name_of(unit))) {
        ("release", number) => number.is_none(),
        ("", Some(_)) => {
            let all = scan.listing.within(parent_of(unit)).filter(|e| e.kind == Kind::Directory);
            pointing::was_named(scan, candidate, all.filter_map(|d| Some((d, number_after("iter_", d.name())?))))
        }
        (text, Some(number)) => text.parse::<u64>().is_ok_and(|newest| newest >= number),
        (_, None) => false,
    };
    if !named {
        return Err(format!("the pointer {path} names {:?}", text.trim()));
    }
    scan.all_whole(candidate)?;
    let within: Vec<_> = scan.listing.within(unit).collect();
    let has = |name: &str| within.iter().any(|e| e.name() == name);
    let ranks: Vec<&str> = within.iter().filter(|e| e.kind == Kind::Directory).map(|e| e.name()).collect();
    let ranks: Vec<&str> = ranks.into_iter().filter(|n| n.starts_with("mp_rank_")).collect();
    if ranks.is_empty() {
        // PyTorch's own format (`--ckpt-format torch_dcp`, `fsdp_dtensor`) ends with its metadata.
        let Some(text) = scan.text(&join(unit, "metadata.json")) else {
            let is_torchs = has(".metadata") && !has("common.pt");
            return if is_torchs {
                named_files_there(scan, unit)
            } else {
                Err("metadata.json is not there yet".into())
            };
        };
        let by_torch = text.contains("torch_dist");
        return if by_torch || has(".metadata") { named_files_there(scan, unit) } else { Ok(()) };
    }
    // mp_rank_TT, mp_rank_TT_PPP with a pipeline, mp_rank_TT_PPP_EEE with experts as well.
    let numbers =
        |part: usize| -> BTreeSet<u64> { ranks.iter().filter_map(|r| r.split('_').nth(part)?.parse().ok()).collect() };
    let (tensor, pipeline, expert) = (numbers(2), numbers(3), numbers(4));
    gapless(&tensor, "mp_rank")
        .and_then(|()| gapless(&pipeline, "pipeline rank"))
        .and_then(|()| gapless(&expert, "expert rank"))
        .map_err(|gap| scan.lacks_rank(format!("{gap} is missing")))?;
    let all = tensor.len() * pipeline.len() * expert.len().max(1);
    if !pipeline.is_empty() && all != ranks.len() {
        return Err(scan.lacks_rank(format!("{} of {all} mp_rank directories are there", ranks.len())));
    }
    let is_of_a_rank = |e: &&Entry| name_of(parent_of(&e.path)).starts_with("mp_rank_") && e.name().ends_with(".pt");
    let files: BTreeSet<&str> = scan.listing.below(unit).iter().filter(is_of_a_rank).map(Entry::name).collect();
    for rank in ranks {
        let rank = join(unit, rank);
        if scan.listing.within(&rank).next().is_none() {
            return Err(format!("{rank} is empty"));
        }
        if let Some(name) = files.iter().find(|name| scan.listing.file(&join(&rank, name)).is_none()) {
            return Err(format!("{rank}/{name} is missing, which another rank has"));
        }
    }
    Ok(())
}

fn pointers(scan: &Scan, candidate: &Candidate) -> Vec<Pointer> {
    let number = number_after("iter_", name_of(&candidate.unit));
    let content = number.map_or("release".to_owned(), |n| n.to_string());
    Pointer::file(scan, candidate, POINTER, content).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::check::tests::zip_of;
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, reason};

    #[test]
    fn the_distributed_format_is_finished_with_its_metadata_and_the_pointer() {
        let memory = Memory::of(&[(super::POINTER, "20\n")])
            .with("iter_0000010/metadata.json", r#"{"sharded_backend": "torch_dist"}"#)
            .with("iter_0000010/.metadata", "x")
            .with("iter_0000010/__0_0.distcp", "x")
            .with("iter_0000020/__0_0.distcp", "x")
            .with("iter_0000030/metadata.json", r#"{"sharded_backend": "zarr"}"#);
        assert_eq!(complete_units(&memory), [("iter_0000010".into(), Some(10))]);
        assert!(reason(&memory, "iter_0000020").contains("metadata.json"));
        assert!(reason(&memory, "iter_0000030").contains("names"));
        let memory = memory.with("iter_0000020/metadata.json", r#"{"sharded_backend": "torch_dist"}"#);
        assert!(reason(&memory, "iter_0000020").contains(".metadata"));
        let memory = memory.with("iter_0000020/.metadata", "..__1_0.distcp..");
        assert!(reason(&memory, "iter_0000020").contains("__1_0.distcp is missing"));
    }

    #[test]
    fn an_empty_pointer_named_the_iterations_before_the_one_that_was_written_last() {
        let emptied = |last: &str| {
            let memory =
                ["iter_0000010", "iter_0000020", "iter_0000030"].iter().fold(Memory::default(), |memory, unit| {
                    memory.with(&format!("{unit}/metadata.json"), r#"{"sharded_backend": "zarr"}"#)
                });
            memory.with(super::POINTER, "\n").at(last, 5)
        };
        let found = complete_units(&emptied("iter_0000030/metadata.json"));
        assert_eq!(found, [("iter_0000020".into(), Some(20)), ("iter_0000010".into(), Some(10))]);
        assert_eq!(complete_units(&emptied("iter_0000020/metadata.json")).len(), 1, "30 is of a life before");
    }

    #[test]
    fn pytorchs_own_format_is_finished_with_its_metadata_alone() {
        let memory = Memory::of(&[(super::POINTER, "10"), ("iter_0000010/__0_0.distcp", "x")]);
        assert!(reason(&memory, "iter_0000010").contains("metadata.json is not there yet"));
        let memory = memory.with("iter_0000010/.metadata", "..__0_0.distcp..__1_0.distcp");
        assert!(reason(&memory, "iter_0000010").contains("__1_0.distcp is missing"));
        assert_eq!(complete_units(&memory.with("iter_0000010/__1_0.distcp", "x")).len(), 1);
    }

    #[test]
    fn anybodys_directories_may_be_called_so() {
        let whole = zip_of(b"w", b"");
        let memory = Memory::default().with("iter_100/model.pt", &whole).with("iter_200/model.pt", &whole);
        assert_eq!(complete_units(&memory), [("iter_200".into(), Some(200)), ("iter_100".into(), Some(100))]);
        assert_eq!(complete_units(&memory.with(super::POINTER, "200")).len(), 2);
        let torchs = Memory::of(&[("iter_100/.metadata", "__0_0.distcp"), ("iter_100/__0_0.distcp", "x")]);
        assert_eq!(complete_units(&torchs), [("iter_100".into(), Some(100))]);
        let begun = torchs.with("iter_100/common.pt", &whole);
        assert!(reason(&begun, "iter_100").contains("is not there yet"));
    }

    #[test]
    fn the_old_format_needs_every_rank() {
        let rank = |memory: Memory, rank: &str| {
            memory.with(&format!("iter_0000010/mp_rank_{rank}/model_optim_rng.pt"), zip_of(b"x", b""))
        };
        let memory = Memory::of(&[(super::POINTER, "10")]);
        let memory = ["00_000", "00_001", "01_000"].into_iter().fold(memory, rank);
        assert!(reason(&memory, "iter_0000010").contains("3 of 4"));
        let whole = rank(memory, "01_001");
        assert_eq!(complete_units(&whole), [("iter_0000010".into(), Some(10))]);
        let experts =
            ["00_000_001", "00_001_001", "01_000_001"].into_iter().fold(Memory::of(&[(super::POINTER, "10")]), rank);
        let experts = ["00_000_000", "00_001_000", "01_000_000", "01_001_000"].into_iter().fold(experts, rank);
        assert!(reason(&experts, "iter_0000010").contains("7 of 8"));
        assert_eq!(complete_units(&rank(experts, "01_001_001")).len(), 1);
        let one_more = whole.with("iter_0000010/mp_rank_00_000/distrib_optim.pt", zip_of(b"o", b""));
        let why = reason(&one_more, "iter_0000010");
        assert!(why.contains("mp_rank_00_001/distrib_optim.pt is missing"), "{why}");
    }
}

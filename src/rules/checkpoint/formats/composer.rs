//! Composer: `ep{E}-ba{B}-rank{R}.pt` of every rank, and the link `latest-rank{R}.pt`, which is removed and made again
//! after the save. (A sharded one is a directory of PyTorch's distributed format.)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use super::deepspeed::gapless;
use crate::rules::checkpoint::ascii::Pattern;
use crate::rules::checkpoint::layout::{Layout, Pointer};
use crate::rules::checkpoint::listing::{Entry, Kind, join, name_of, parent_of};
use crate::rules::checkpoint::memo::{Memo, under};
use crate::rules::checkpoint::steps::number_after;
use crate::rules::checkpoint::unit::{Candidate, Scan};

pub(super) const COMPOSER: Layout = Layout {
    pointers,
    fails_beside_later: true,
    ..Layout::of("composer", "files named epE-baB-rankR.pt", find, complete)
};

/// Prefix, batch and rank.
fn parts(path: &str) -> Option<(&str, u64, u64)> {
    static NAME: LazyLock<Pattern> = LazyLock::new(|| Pattern::new(r"^((?:.*/)?ep\d+-ba(\d+))-rank(\d+)\.pt$"));
    let found = NAME.groups(path)?;
    Some((found[1], found[2].parse().ok()?, found[3].parse().ok()?))
}

fn find(scan: &Scan) -> Vec<Candidate> {
    let mut units: BTreeMap<&str, (u64, Vec<String>)> = BTreeMap::new();
    for file in scan.listing.files() {
        if let Some((prefix, batch, _)) = parts(&file.path) {
            units.entry(prefix).or_insert((batch, Vec::new())).1.push(file.path.clone());
        }
    }
    let unit = |(prefix, (batch, paths)): (&str, (u64, Vec<String>))| {
        let step = scan.step(prefix, Some(batch))?;
        // One file is what the framework loads; of several it is told the common part.
        let unit = if let [only] = paths.as_slice() { only.clone() } else { prefix.to_owned() };
        Some(Candidate::of(unit, step, paths))
    };
    units.into_iter().filter_map(unit).collect()
}

fn complete(scan: &Scan, candidate: &Candidate, memo: &Memo) -> Result<(), String> {
    let ranks: BTreeSet<u64> = candidate.paths.iter().filter_map(|p| Some(parts(p)?.2)).collect();
    gapless(&ranks, "rank").map_err(|gap| scan.lacks_rank(format!("the file of {gap} is missing")))?;
    scan.everybody(candidate.newest_ns(scan.listing), &ranks)?;
    if scan.options.world_size != u32::try_from(ranks.len()).ok() {
        none_lacking(scan, candidate, memo, &ranks)?;
    }
    scan.all_whole(candidate)
}

/// No rank's file is missing that another step or a link shows the rank to write.
fn none_lacking(scan: &Scan, candidate: &Candidate, memo: &Memo, ranks: &BTreeSet<u64>) -> Result<(), String> {
    // By directory and rank: the first that has it.
    let names = memo.names(|| {
        let files = scan.listing.files().filter_map(|file| parts(&file.path).map(|(prefix, _, rank)| (prefix, rank)));
        let links = scan.listing.entries().iter().filter_map(|e| Some((e.path.as_str(), rank_of_link(e)?)));
        let mut names = BTreeMap::new();
        for (who, rank) in files.chain(links) {
            names.entry(format!("{}\0{rank:020}", parent_of(who))).or_insert_with(|| name_of(who).to_owned());
        }
        names
    });
    let start = format!("{}\0", parent_of(&candidate.unit));
    let mut saved = under(names, &start).filter_map(|(rank, who)| Some((who, rank.parse::<u64>().ok()?)));
    match saved.find(|(_, rank)| !ranks.contains(rank)) {
        Some((other, rank)) => Err(format!("the file of rank {rank} is missing, which {other} has")),
        None => Ok(()),
    }
}

/// The rank of a link to the newest.
fn rank_of_link(entry: &Entry) -> Option<u64> {
    rank_of(entry.name()).filter(|_| matches!(entry.kind, Kind::Symlink(_)))
}

fn rank_of(name: &str) -> Option<u64> {
    number_after("latest-rank", name.strip_suffix(".pt")?)
}

/// Whether this is the name of a link that must lead to what is gone on from: where it is not there Composer begins at 0, and
/// where it leads to an older one, it does not start beside the newer.
pub fn is_link(path: &str) -> bool {
    rank_of(name_of(path)).is_some()
}

/// The rank's link, whether it is there or not, unless a file is called so: that holds a checkpoint.
fn link(scan: &Scan, rank: u64, to: &str) -> Option<Pointer> {
    let path = join(parent_of(to), &format!("latest-rank{rank}.pt"));
    let is_free = scan.listing.get(&path).is_none_or(|there| matches!(there.kind, Kind::Symlink(_)));
    is_free.then(|| Pointer { path, content: name_of(to).to_owned(), symlink: true })
}

fn pointers(scan: &Scan, candidate: &Candidate) -> Vec<Pointer> {
    candidate.paths.iter().filter_map(|path| link(scan, parts(path)?.2, path)).collect()
}

/// Those that lead to a directory, which is a sharded one.
pub(super) fn links_to_sharded(scan: &Scan, unit: &str) -> Vec<Pointer> {
    let numbers = name_of(unit).strip_prefix("ep").and_then(|name| name.split_once("-ba"));
    let is_composers =
        numbers.is_some_and(|(epoch, batch)| [epoch, batch].iter().all(|n| number_after("", n).is_some()));
    let there = scan.listing.within(parent_of(unit)).filter_map(rank_of_link);
    let ranks: BTreeSet<u64> = there.chain(is_composers.then_some(0)).collect();
    ranks.into_iter().filter_map(|rank| link(scan, rank, unit)).collect()
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, complete_units_with, reason};
    use crate::rules::checkpoint::unit::Options;

    #[test]
    fn all_ranks_files_are_one_checkpoint() {
        let memory = Memory::of(&[("latest-rank0.pt", "-> ep0-ba10-rank0.pt")]);
        let memory = memory.saved(&["ep0-ba10-rank0.pt", "ep0-ba10-rank1.pt", "ep0-ba20-rank1.pt"]);
        assert_eq!(complete_units(&memory), [("ep0-ba10".into(), Some(10))]);
        let whole = memory.saved(&["ep0-ba20-rank0.pt"]);
        assert_eq!(complete_units(&whole)[0], ("ep0-ba20".into(), Some(20)));
    }

    #[test]
    fn of_several_processes_rank_0_saves_for_all_or_everybody_saves() {
        let three = Options { world_size: Some(3), ..Options::default() };
        let memory = Memory::default().saved(&["ep0-ba10-rank0.pt"]);
        assert_eq!(complete_units_with(&memory, &three).len(), 1);
        assert_eq!(complete_units_with(&memory.saved(&["ep0-ba10-rank1.pt"]), &three), []);
    }

    #[test]
    fn where_another_step_or_a_link_shows_more_ranks_each_must_have_saved() {
        let files = |names: &[&str]| Memory::default().saved(names);
        let options = |world| Options { world_size: Some(world), ..Options::default() };
        let torn = files(&["ep0-ba10-rank0.pt", "ep0-ba10-rank1.pt", "ep1-ba20-rank0.pt"]);
        let before = [("ep0-ba10".to_owned(), Some(10))];
        assert_eq!(complete_units_with(&torn, &options(2)), before);
        assert_eq!(complete_units(&torn), before);
        assert!(reason(&torn, "ep1-ba20-rank0.pt").contains("the file of rank 1 is missing, which ep0-ba10 has"));
        let linked = files(&["ep1-ba20-rank0.pt"]).with("latest-rank1.pt", "-> ep0-ba10-rank1.pt");
        assert!(reason(&linked, "ep1-ba20-rank0.pt").contains("which latest-rank1.pt has"));
        let fewer = torn.saved(&["ep2-ba30-rank0.pt"]);
        assert_eq!(complete_units_with(&fewer, &options(1))[0].0, "ep2-ba30-rank0.pt", "all that there are");
    }
}

//! Composer: `ep{E}-ba{B}-rank{R}.pt` of every rank, and the link `latest-rank{R}.pt`, which is removed and made again
//! after the save. (A sharded one is a directory of PyTorch's distributed format.)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use super::deepspeed::gapless;
use super::listing::{Kind, join, name_of, parent_of};
use super::unit::{Candidate, Layout, Pointer, Scan};

#[allow(missing_docs, reason = "the entry of the list in mod.rs")]
pub const COMPOSER: Layout =
    Layout { name: "composer", evidence: "files named epE-baB-rankR.pt", find, complete, pointers };

/// Prefix, batch and rank.
fn parts(path: &str) -> Option<(&str, u64, u64)> {
    #[expect(clippy::unwrap_used, reason = "a constant expression, compiled by every test")]
    static NAME: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^((?:.*/)?ep\d+-ba(\d+))-rank(\d+)\.pt$").unwrap());
    let found = NAME.captures(path)?;
    Some((found.get(1)?.as_str(), found[2].parse().ok()?, found[3].parse().ok()?))
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
        Some(Candidate { unit, step, paths })
    };
    units.into_iter().filter_map(unit).collect()
}

fn complete(scan: &Scan, candidate: &Candidate) -> Result<(), String> {
    let ranks: BTreeSet<u64> = candidate.paths.iter().filter_map(|p| Some(parts(p)?.2)).collect();
    gapless(&ranks, "rank").map_err(|gap| format!("the file of {gap} is missing"))?;
    scan.everybody(&ranks)?;
    scan.all_whole(candidate)
}

fn pointers(scan: &Scan, candidate: &Candidate) -> Vec<Pointer> {
    let pointers = candidate.paths.iter().filter_map(|path| {
        let (_, _, rank) = parts(path)?;
        let link = join(parent_of(path), &format!("latest-rank{rank}.pt"));
        let is_link = scan.listing.get(&link).is_some_and(|e| matches!(e.kind, Kind::Symlink(_)));
        is_link.then(|| Pointer { path: link, content: name_of(path).to_owned(), symlink: true })
    });
    pointers.collect()
}

#[cfg(test)]
mod tests {
    use super::super::check::tests::zip_of;
    use super::super::listing::tests::Memory;
    use super::super::tests::{complete_units, complete_units_with};
    use super::super::unit::Options;

    #[test]
    fn all_ranks_files_are_one_checkpoint() {
        let memory = ["ep0-ba10-rank0.pt", "ep0-ba10-rank1.pt", "ep0-ba20-rank1.pt"]
            .iter()
            .fold(Memory::of(&[("latest-rank0.pt", "-> ep0-ba10-rank0.pt")]), |m, n| m.with(n, zip_of(b"w", b"")));
        assert_eq!(complete_units(&memory), [("ep0-ba10".into(), Some(10))]);
        let whole = memory.with("ep0-ba20-rank0.pt", zip_of(b"w", b""));
        assert_eq!(complete_units(&whole)[0], ("ep0-ba20".into(), Some(20)));
    }

    #[test]
    fn of_several_processes_rank_0_saves_for_all_or_everybody_saves() {
        let three = |names: &[&str]| names.iter().fold(Memory::default(), |m, n| m.with(n, zip_of(b"w", b"")));
        let options = Options { world_size: Some(3), ..Options::default() };
        assert_eq!(complete_units_with(&three(&["ep0-ba10-rank0.pt"]), &options).len(), 1);
        assert_eq!(complete_units_with(&three(&["ep0-ba10-rank0.pt", "ep0-ba10-rank1.pt"]), &options), []);
    }
}

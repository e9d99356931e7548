//! NVIDIA's resiliency extension (NVRx), local checkpoints: files `SESSION/HOLDER/iter_NNNNNNN_R_local.pt`, renamed from
//! `iter_NNNNNNN_R_local.dirty.pt` when written; SESSION may be empty. A process keeps its own rank's file and, where they
//! are replicated, those of others, and deletes its older ones when everybody has saved.
//!
//! A unit is what the processes of this node hold of one iteration, called by what the first one's file begins with:
//! `SESSION/0/iter_NNNNNNN`. What other nodes hold is not known here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use crate::rules::checkpoint::ascii::Pattern;
use crate::rules::checkpoint::layout::Layout;
use crate::rules::checkpoint::listing::{join, name_of, parent_of};
use crate::rules::checkpoint::memo::{Memo, under};
use crate::rules::checkpoint::unit::{Candidate, Scan};

pub(super) const NVRX: Layout = Layout {
    fails_beside_later: true,
    ..Layout::of("nvrx", "files named RANK/iter_NNNNNNN_R_local.pt", find, complete)
};

/// One file of an iteration.
struct Part<'a> {
    session: &'a str,
    /// The directory of the process that holds it, and the rank that it is of.
    place: (&'a str, &'a str),
    /// `iter_NNNNNNN`
    iteration: &'a str,
    is_dirty: bool,
}

fn part(path: &str) -> Option<Part<'_>> {
    static PATH: LazyLock<Pattern> =
        LazyLock::new(|| Pattern::new(r"^(?:(.+)/)?(\d+)/(iter_\d+)_(\d+)_local(\.dirty)?\.pt$"));
    let found = PATH.groups(path)?;
    let (session, place, iteration) = (found[1], (found[2], found[4]), found[3]);
    Some(Part { session, place, iteration, is_dirty: !found[5].is_empty() })
}

fn find(scan: &Scan) -> Vec<Candidate> {
    let mut iterations: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for file in scan.listing.files() {
        if let Some(part) = part(&file.path) {
            iterations.entry((part.session, part.iteration)).or_default().push(&file.path);
        }
    }
    let unit = |((session, iteration), paths): ((&str, &str), Vec<&str>)| {
        let holders = paths.iter().map(|path| name_of(parent_of(path)));
        let first = holders.min_by_key(|holder| (holder.len(), *holder))?;
        let unit = join(&join(session, first), iteration);
        let step = scan.step(&unit, iteration.trim_start_matches("iter_").parse().ok())?;
        Some(Candidate::of(unit, step, paths.into_iter().map(str::to_owned).collect()))
    };
    iterations.into_iter().filter_map(unit).collect()
}

fn complete(scan: &Scan, candidate: &Candidate, memo: &Memo) -> Result<(), String> {
    let parts: Vec<Part> = candidate.paths.iter().filter_map(|path| part(path)).collect();
    if let Some((path, _)) = candidate.paths.iter().zip(&parts).find(|(_, part)| part.is_dirty) {
        return Err(format!("{path} is still being written"));
    }
    let holders: BTreeSet<&str> = parts.iter().map(|part| part.place.0).collect();
    if let Some(world) = scan.lacking(candidate.newest_ns(scan.listing), holders.len()) {
        return Err(format!("the files of {} of {world} processes are there", holders.len()));
    }
    match scan.options.world_size {
        // All that there are; a larger run's may lie there still.
        Some(world) => {
            let is_one = |holder: &str| holder.parse().is_ok_and(|number: u32| number < world);
            none_lacking(scan, candidate, memo, &parts, |holder| holders.contains(holder) || is_one(holder))?;
        }
        None => none_lacking(scan, candidate, memo, &parts, |_| true)?,
    }
    scan.all_whole(candidate)
}

/// No file is missing that another iteration of the session has, of the holders that count.
fn none_lacking(
    scan: &Scan,
    candidate: &Candidate,
    memo: &Memo,
    parts: &[Part],
    counts: impl Fn(&str) -> bool,
) -> Result<(), String> {
    let session = parent_of(parent_of(&candidate.unit));
    // By session, holder and rank: the first iteration that has it.
    let names = memo.names(|| {
        let mut names = BTreeMap::new();
        for Part { session, place: (holder, rank), iteration, .. } in
            scan.listing.files().filter_map(|file| part(&file.path))
        {
            names.entry(format!("{session}\0{holder}\0{rank}")).or_insert_with(|| iteration.to_owned());
        }
        names
    });
    let there: BTreeSet<(&str, &str)> = parts.iter().map(|part| part.place).collect();
    let start = format!("{session}\0");
    let mut others = under(names, &start).filter_map(|(place, iteration)| Some((place.split_once('\0')?, iteration)));
    match others.find(|(place, _)| counts(place.0) && !there.contains(place)) {
        None => Ok(()),
        Some(((holder, rank), iteration)) => {
            Err(format!("the file of rank {rank} in {} is missing, which {iteration} has", join(session, holder)))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::check::tests::zip_of;
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, complete_units_with, reason};
    use crate::rules::checkpoint::unit::Options;

    #[test]
    fn the_files_of_every_process_are_one_checkpoint() {
        let memory = Memory::default().saved(&["s/0/iter_0000010_0_local.pt", "s/1/iter_0000010_1_local.pt"]);
        assert_eq!(complete_units(&memory), [("s/0/iter_0000010".into(), Some(10))]);
        let without_session = Memory::default().saved(&["0/iter_0000010_0_local.pt"]);
        assert_eq!(complete_units(&without_session), [("0/iter_0000010".into(), Some(10))]);
        let cut = memory.with("s/1/iter_0000010_1_local.pt", &zip_of(b"w", b"")[..40]);
        assert!(reason(&cut, "s/0/iter_0000010").contains("cut short"));
    }

    #[test]
    fn while_one_is_dirty_or_has_only_the_iteration_before_it_is_not_finished() {
        let memory = Memory::default().saved(&["s/0/iter_0000010_0_local.pt", "s/1/iter_0000010_1_local.pt"]);
        let begun = memory.saved(&["s/0/iter_0000020_0_local.pt"]);
        assert_eq!(complete_units(&begun), [("s/0/iter_0000010".into(), Some(10))]);
        assert!(
            reason(&begun, "s/0/iter_0000020").contains("the file of rank 1 in s/1 is missing, which iter_0000010")
        );
        let dirty = begun.saved(&["s/1/iter_0000020_1_local.dirty.pt"]);
        assert!(
            reason(&dirty, "s/0/iter_0000020").contains("s/1/iter_0000020_1_local.dirty.pt is still being written")
        );
        let renamed = dirty.without("s/1/iter_0000020_1_local.dirty.pt").saved(&["s/1/iter_0000020_1_local.pt"]);
        assert_eq!(complete_units(&renamed)[0], ("s/0/iter_0000020".into(), Some(20)));
        let cleaned = renamed.without("s/0/iter_0000010_0_local.pt");
        assert_eq!(complete_units(&cleaned), [("s/0/iter_0000020".into(), Some(20))]);
    }

    #[test]
    fn copies_for_other_ranks_are_parts_of_it() {
        let both = ["0/iter_0000010_0_local.pt", "0/iter_0000010_1_local.pt"];
        let memory = Memory::default().saved(&both).saved(&["0/iter_0000020_0_local.pt"]);
        assert_eq!(complete_units(&memory), [("0/iter_0000010".into(), Some(10))]);
        let alone = Options { world_size: Some(1), ..Options::default() };
        assert_eq!(complete_units_with(&memory, &alone), [("0/iter_0000010".into(), Some(10))]);
    }

    #[test]
    fn a_known_number_of_processes_is_what_counts() {
        let memory = Memory::default().saved(&["0/iter_0000010_0_local.pt", "1/iter_0000010_1_local.pt"]);
        let memory = memory.saved(&["0/iter_0000020_0_local.pt"]);
        let options = |world| Options { world_size: Some(world), ..Options::default() };
        assert_eq!(complete_units_with(&memory, &options(2)), [("0/iter_0000010".into(), Some(10))]);
        let of_both = [("0/iter_0000020".into(), Some(20)), ("0/iter_0000010".into(), Some(10))];
        assert_eq!(complete_units_with(&memory, &options(1)), of_both, "there were more once");
        let later = Options { begun_ns: i64::MAX, ..options(2) };
        assert_eq!(complete_units_with(&memory, &later), of_both[1..], "cut off in the run before");
    }
}

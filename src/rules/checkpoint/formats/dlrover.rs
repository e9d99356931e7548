//! DLRover's flash checkpoints: the tracker `dlrover_latest.txt` is written when every shard has its done-file; a step
//! up to the tracker's is finished. The stage `._dlrover_ckpt_stage` and `*.done` are never looked at.

use crate::rules::checkpoint::layout::{Layout, Makeup, Pointer};
use crate::rules::checkpoint::listing::{Kind, join, name_of, parent_of};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::steps::step_in_stem;
use crate::rules::checkpoint::unit::{Candidate, Scan, is_bystander, is_temporary};

const TRACKER: &str = "dlrover_latest.txt";

pub(super) const DLROVER: Layout = Layout {
    pointers,
    makeup: Makeup::SameAgain,
    ..Layout::of("dlrover", "the tracker dlrover_latest.txt, or the stage ._dlrover_ckpt_stage", find, complete)
};

fn find(scan: &Scan) -> Vec<Candidate> {
    let is_ours = |name: &str| name == TRACKER || name == "._dlrover_ckpt_stage";
    let homes = scan.listing.entries().iter().filter(|e| is_ours(e.name())).map(|e| parent_of(&e.path));
    let mut homes: Vec<&str> = homes.collect();
    homes.dedup();
    let entries = homes.into_iter().flat_map(|home| scan.listing.within(home));
    let is_anothers = |name: &str| name.ends_with(".done") || is_temporary(name) || is_bystander(name);
    let units = entries.filter(|e| !is_ours(e.name()) && !is_anothers(e.name()));
    let unit = |entry: &crate::rules::checkpoint::Entry| {
        let step = scan.step(&entry.path, step_in_stem(entry.name()))?;
        step?;
        match entry.kind {
            Kind::Directory => Some(Candidate::directory(scan.listing, &entry.path, step)),
            Kind::File => Some(Candidate::file(entry, step)),
            _ => None,
        }
    };
    units.filter_map(unit).collect()
}

fn complete(scan: &Scan, candidate: &Candidate, _: &Memo) -> Result<(), String> {
    let path = join(parent_of(&candidate.unit), TRACKER);
    let text = scan.text(&path).ok_or_else(|| format!("the tracker {path} is not there yet"))?;
    let newest = text.trim().parse::<u64>().map_err(|_| format!("the tracker {path} holds no step"))?;
    if candidate.step.is_none_or(|step| step > newest) {
        return Err(format!("the tracker {path} is at step {newest}"));
    }
    scan.all_whole(candidate)
}

/// The tracker, which it writes beside other frameworks' checkpoints, too.
pub(in super::super) fn pointers(scan: &Scan, candidate: &Candidate) -> Vec<Pointer> {
    let step = candidate.step.or_else(|| step_in_stem(name_of(&candidate.unit)));
    step.and_then(|step| Pointer::file(scan, candidate, TRACKER, step.to_string())).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::check::tests::zip_of;
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::complete_units;

    #[test]
    fn what_the_tracker_has_not_reached_is_not_finished() {
        let memory = Memory::of(&[("dlrover_latest.txt", "10"), ("._dlrover_ckpt_stage/20.done/0", "1")])
            .with("checkpoint-10/rank_0.pt", zip_of(b"a", b""))
            .with("checkpoint-20/rank_0.pt", zip_of(b"b", b""));
        assert_eq!(complete_units(&memory), [("checkpoint-10".into(), Some(10))]);
        assert_eq!(complete_units(&memory.without("dlrover_latest.txt")), []);
    }

    #[test]
    fn logs_beside_the_tracker_are_no_checkpoints() {
        let memory = Memory::of(&[("dlrover_latest.txt", "3000"), ("train_2024.log", "x")])
            .with("events.out.tfevents.1700000000.host", "x")
            .with("checkpoint-10/rank_0.pt", zip_of(b"a", b""));
        assert_eq!(complete_units(&memory), [("checkpoint-10".into(), Some(10))]);
    }
}

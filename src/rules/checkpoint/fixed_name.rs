//! Fixed names: a trainer may save the newest checkpoint once more beside `epoch=3.ckpt` (Lightning's `last.ckpt`,
//! fairseq's `checkpoint_last.pt`), and look for that alone when it starts. The one with the step is committed, and a restore
//! puts it under both names.

use std::collections::BTreeSet;

use super::listing::{Entry, parent_of};
use super::manifest::CopyItem;
use super::same_save::is_same_save;
use super::unit::{Candidate, Scan, step_in};
use super::{Found, Makeup, check, contest};

/// Lengths of one model's saves differ by less than this part.
const ALIKE: u64 = 64;
/// So many files beside one are looked into.
const MOST: usize = 8;

/// Takes what is a copy of the newest with a step for that one: it is no checkpoint of its own, and no newer.
pub(super) fn without_copies(scan: &Scan, found: &mut Found) {
    let one_file = |c: &Candidate| {
        Some(&c.unit).filter(|unit| c.paths == [unit.as_str()]).and_then(|unit| scan.listing.file(unit))
    };
    let Some(at) = found.candidates.iter().position(|c| c.step.is_some()) else { return };
    let numbered = &found.candidates[at];
    let Some(own) = one_file(numbered).filter(|_| found.layout.makeup == Makeup::OneFile) else { return };
    let is_beside = |c: &&Candidate| c.step.is_none() && parent_of(&c.unit) == parent_of(&own.path);
    let beside = found.candidates.iter().filter(is_beside).filter_map(one_file).take(MOST);
    let copies: BTreeSet<String> =
        beside.filter(|file| is_copy(scan, file, own)).map(|file| file.path.clone()).collect();
    if let Some(newest) = found.candidates[..at].iter().position(|c| copies.contains(&c.unit)) {
        found.candidates[newest..=at].rotate_right(1);
    }
    found.candidates.retain(|c| !copies.contains(&c.unit));
}

/// The files beside the unit under whose names a restore puts it, too: its copies, and under a fixed name what is older, or is
/// being written.
pub fn copies(scan: &Scan, found: &Found, unit: &Candidate) -> Vec<CopyItem> {
    let own = scan.listing.file(&unit.unit).filter(|_| found.layout.makeup == Makeup::OneFile);
    let Some(own) = own.filter(|_| unit.step.is_some() && unit.paths == [unit.unit.as_str()]) else {
        return Vec::new();
    };
    let beside = scan.listing.within(parent_of(&unit.unit)).filter(|e| scan.listing.file(&e.path).is_some());
    let beside = beside
        .filter(|e| ending(e.name()) == ending(own.name()) && is_stepless(e.name()) && !contest::is_best(&e.path));
    beside
        .take(MOST)
        .filter_map(|file| {
            let path = file.path.clone();
            if is_copy(scan, file, own) {
                return Some(CopyItem { path, size: file.size, mtime_ns: file.mtime_ns });
            }
            is_for_it(scan, file, own).then_some(CopyItem { path, size: 0, mtime_ns: 0 })
        })
        .collect()
}

fn is_copy(scan: &Scan, again: &Entry, own: &Entry) -> bool {
    is_alike(again.size, own.size) && is_same_save(scan.peek, again, own)
}

fn is_alike(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= one.max(other) / ALIKE + (4 << 10)
}

fn is_stepless(name: &str) -> bool {
    name.starts_with("last") || step_in(name).is_none()
}

/// Whether its name says that this one's next save comes there, and what is there is none of another kind.
fn is_for_it(scan: &Scan, file: &Entry, own: &Entry) -> bool {
    is_fixed(file.name(), own.name()) && (is_alike(file.size, own.size) || check::whole(scan.peek, file).is_err())
}

/// `last`, `last-v1`, `latest` beside any name; `model_last` and `checkpoint` beside those that begin so.
fn is_fixed(name: &str, own: &str) -> bool {
    let stem = name.strip_suffix(ending(name)).unwrap_or(name);
    let is_word = |c: char| c.is_ascii_alphanumeric();
    let mut words = stem.split(|c| !is_word(c)).filter(|word| !word.is_empty() && !is_version(word));
    let rest: Vec<&str> = words.by_ref().filter(|word| !["last", "latest"].contains(word)).collect();
    let is_said = stem.split(|c| !is_word(c)).any(|word| ["last", "latest"].contains(&word));
    let begins = own.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    match rest[..] {
        [] => is_said,
        [word] => word == begins && (is_said || ["checkpoint", "ckpt"].contains(&word)),
        _ => false,
    }
}

/// `v1`, as Lightning numbers runs.
fn is_version(word: &str) -> bool {
    word.strip_prefix('v').is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

fn ending(name: &str) -> &str {
    let dot = name.strip_suffix(".tar").unwrap_or(name).rfind('.');
    dot.map_or("", |dot| &name[dot..])
}

#[cfg(test)]
mod tests {
    use super::super::listing::tests::Memory;
    use super::super::same_save::tests::saved;
    use super::super::tests::complete_units;
    use super::super::{Options, recognise};
    use super::*;

    /// The newest complete unit, and what lies there under other names: whether it is the same save.
    #[track_caller]
    fn newest(memory: &Memory) -> (String, Vec<(String, bool)>) {
        let (listing, options) = (memory.listing(), Options::default());
        let scan = Scan { listing: &listing, peek: memory, options: &options };
        let found = recognise(&scan).expect("something is recognised");
        let newest = found
            .candidates
            .iter()
            .find(|c| super::super::complete(&found, &scan, c).is_ok())
            .expect("one is complete");
        let named = copies(&scan, &found, newest).into_iter().map(|copy| (copy.path, copy.size > 0));
        (newest.unit.clone(), named.collect())
    }

    /// Saves of steps, each an hour after the one before.
    fn files(files: &[(&str, u64)]) -> Memory {
        const HOUR: i64 = 3_600_000_000_000;
        (1..).zip(files).fold(Memory::default(), |memory, (at, (name, step))| {
            memory
                .with(name, saved(&format!("step {step:03}"), &[&format!("weights of {step:03}")]))
                .at(name, at * HOUR)
        })
    }

    #[test]
    fn what_is_saved_twice_is_committed_with_its_step_and_lies_there_under_both_names() {
        for (last, own) in [
            ("last.ckpt", "epoch=2-step=20.ckpt"),
            ("run/last-v1.ckpt", "run/epoch=2.ckpt"),
            ("checkpoint_last.pt", "checkpoint2.pt"),
            ("weights/last.pt", "weights/epoch2.pt"),
            ("final.pth.tar", "model_2.pth.tar"),
        ] {
            let expected = (own.to_owned(), vec![(last.to_owned(), true)]);
            assert_eq!(newest(&files(&[(own, 20), (last, 20)])), expected, "{last} after it");
            assert_eq!(newest(&files(&[(last, 20), (own, 20)])), expected, "{last} before it");
        }
        let both = files(&[("epoch=2.ckpt", 20), ("last.ckpt", 20), ("epoch=1.ckpt", 10)]);
        assert_eq!(complete_units(&both), [("epoch=2.ckpt".into(), Some(2)), ("epoch=1.ckpt".into(), Some(1))]);
    }

    #[test]
    fn a_later_save_under_a_fixed_name_is_a_checkpoint_of_its_own() {
        let memory = files(&[("epoch=2.ckpt", 20), ("last.ckpt", 30)]);
        assert_eq!(newest(&memory), ("last.ckpt".to_owned(), vec![]));
        assert_eq!(complete_units(&memory).len(), 2);
    }

    #[test]
    fn what_is_older_or_being_written_under_a_fixed_name_is_where_the_newest_is_looked_for() {
        let at = |name: &str, own: &str| {
            let stale = newest(&files(&[(name, 10), (own, 20)]));
            let whole = files(&[(own, 20)]);
            let torn = newest(&whole.with(name, b"PK\x03\x04 half").at(name, i64::MAX / 2));
            assert_eq!(stale, torn, "{name}");
            assert_eq!(stale.0, own);
            stale.1
        };
        for (name, own) in [
            ("last.ckpt", "epoch=2.ckpt"),
            ("latest.pt", "model_20.pt"),
            ("model_last.pt", "model_20.pt"),
            ("checkpoint.pth.tar", "checkpoint_20.pth.tar"),
            ("checkpoint_last.pt", "checkpoint20.pt"),
        ] {
            assert_eq!(at(name, own), [(name.to_owned(), false)]);
        }
        for (name, own) in
            [("decoder_last.pt", "encoder_20.pt"), ("last.pt", "other/model_20.pt"), ("last.pth", "model_20.pt")]
        {
            let stale = newest(&files(&[(name, 10), (own, 20)]));
            assert_eq!(stale.1, [], "{name} is another's");
        }
    }

    #[test]
    fn the_best_and_a_model_to_hand_out_are_no_copies() {
        let best = newest(&files(&[("epoch=2.ckpt", 20), ("best.ckpt", 20)]));
        assert_eq!(best, ("epoch=2.ckpt".to_owned(), vec![]));
        let large = saved("step 020", &[&"x".repeat(1 << 16)]);
        let memory = files(&[("last.pt", 10)]).with("epoch2.pt", large).at("epoch2.pt", i64::MAX / 2);
        assert_eq!(newest(&memory), ("epoch2.pt".to_owned(), vec![]));
    }
}

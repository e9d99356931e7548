//! Other names of one checkpoint: a trainer may save the newest once more beside `epoch=3.ckpt` (Lightning's `last.ckpt`,
//! fairseq's `checkpoint_last.pt`), and look for that alone when it starts. The one with the step is committed, and a restore
//! puts it under both names.

use crate::rules::checkpoint::called::is_best;
use crate::rules::checkpoint::listing::{Entry, Kind, Peek, parent_of};
use crate::rules::checkpoint::same_save::is_same_save;
use crate::rules::checkpoint::steps::step_in;
use crate::rules::checkpoint::unit::{Candidate, Scan};
use crate::rules::checkpoint::{Found, Makeup, containers};

/// One model's saves, and copies, differ in length by less than this part, and what a directory of names takes.
const PART: u64 = 16;
const NAMES: u64 = 4 << 10;
/// So many of the newest with a step may have a copy.
const NUMBERED: usize = 3;
/// So many files are compared with one, and as many names one may have.
const MOST: usize = 16;

/// Leaves out what is a copy of one with a step: it is no checkpoint of its own.
pub(in super::super) fn without_copies(scan: &Scan, found: &mut Found) {
    let numbered = found.candidates.iter().filter(|c| c.step.is_some()).take(NUMBERED);
    let numbered: Vec<&Entry> = numbered.filter_map(|c| one_file(scan, c)).collect();
    let stepless = found.candidates.iter().filter(|c| c.step.is_none()).filter_map(|c| one_file(scan, c));
    let of = |file: &Entry| numbered.iter().find(|own| is_copy(scan.peek, file, own)).map(|own| own.path.clone());
    let copies = stepless.filter_map(|file| Some((file.path.clone(), of(file)?))).take(MOST);
    found.copies = copies.collect();
    found.candidates.retain(|c| !found.copies.contains_key(&c.unit));
}

fn one_file<'a>(scan: &Scan<'a>, c: &Candidate) -> Option<&'a Entry> {
    scan.listing.file(&c.unit).filter(|file| c.paths == [file.path.as_str()])
}

/// The paths beside the unit under which a restore puts it, too: its copies, and the fixed name that its own save will come
/// to, where the save before lies, or is being written over. What is a pointer is none.
pub fn copies(scan: &Scan, found: &Found, unit: &Candidate) -> Vec<String> {
    let own = one_file(scan, unit).filter(|_| found.layout.makeup == Makeup::OneFile && unit.step.is_some());
    let Some(own) = own else { return Vec::new() };
    let known = found.copies.iter().filter(|(_, of)| **of == own.path).map(|(path, _)| path.clone());
    let mut all: Vec<String> = known.collect();
    let fixed = scan
        .listing
        .within(parent_of(&own.path))
        .filter(|e| e.kind == Kind::File && is_fixed_name(e.name(), own.name()));
    let newest = fixed.max_by_key(|file| file.mtime_ns).filter(|file| !all.contains(&file.path));
    let is_its = |file: &Entry| match containers::zip(scan.peek, file) {
        Ok(()) => is_alike(file, own),
        Err(_) => is_torn(scan.peek, file),
    };
    all.extend(newest.filter(|file| is_its(file)).map(|file| file.path.clone()));
    all
}

/// What lies under one of the names where a restore is to put the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum There {
    /// The same save.
    Same,
    /// A save that was cut off, or is being written.
    Torn,
    /// A copy of another checkpoint, which lies there under its own name.
    Copy,
    /// What is whole, and nobody's copy.
    Another,
}

/// `beside`: the files of the unit's directory.
pub fn there(peek: &dyn Peek, file: &Entry, unit: &Entry, mut beside: impl Iterator<Item = Entry>) -> There {
    let is_other = |e: &Entry| e.kind == Kind::File && e.path != file.path && step_in(e.name()).is_some();
    if is_copy(peek, file, unit) {
        There::Same
    } else if is_torn(peek, file) {
        There::Torn
    } else if beside.any(|own| is_other(&own) && is_copy(peek, file, &own)) {
        There::Copy
    } else {
        There::Another
    }
}

fn is_copy(peek: &dyn Peek, file: &Entry, own: &Entry) -> bool {
    parent_of(&file.path) == parent_of(&own.path) && is_alike(file, own) && is_same_save(peek, file, own)
}

fn is_alike(one: &Entry, other: &Entry) -> bool {
    one.size.abs_diff(other.size) <= one.size.max(other.size) / PART + NAMES
}

/// The beginning of an archive, without its end.
fn is_torn(peek: &dyn Peek, file: &Entry) -> bool {
    let begins = || peek.read(&file.path, 0, 4).is_some_and(|head| b"PK\x03\x04".starts_with(&head));
    begins() && containers::zip(peek, file).is_err()
}

/// `last`, `last-v1` and `latest` beside any name; `model_last` beside `model_100`.
fn is_fixed_name(name: &str, own: &str) -> bool {
    let is_said = |word: &&str| ["last", "latest"].contains(word);
    let words: Vec<&str> = words(name).filter(|word| !is_version(word)).collect();
    let rest = words.iter().copied().filter(|word| !is_said(word));
    let series = self::words(own)
        .map(|word| word.trim_end_matches(|c: char| c.is_ascii_digit()))
        .filter(|word| !word.is_empty());
    words.iter().any(is_said) && ending(name) == ending(own) && !is_best(name) && (words.len() == 1 || rest.eq(series))
}

/// The words of a name without its ending.
fn words(name: &str) -> impl Iterator<Item = &str> {
    let stem = name.strip_suffix(ending(name)).unwrap_or(name);
    stem.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
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
    use super::*;
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::same_save::tests::saved;
    use crate::rules::checkpoint::tests::{complete_units, recognised};
    use crate::rules::checkpoint::{Options, complete};

    /// The newest complete unit, and where else it is to lie.
    #[track_caller]
    fn newest(memory: &Memory) -> (String, Vec<String>) {
        recognised(memory, &Options::default(), |found, scan| {
            let newest = found.candidates.iter().find(|c| complete(found, scan, c).is_ok()).expect("one is complete");
            (newest.unit.clone(), copies(scan, found, newest))
        })
    }

    fn save(step: u64) -> Vec<u8> {
        saved(&format!("step {step:03}"), &[&format!("weights of {step:03}")])
    }

    /// Saves of steps, each an hour after the one before.
    fn files(files: &[(&str, u64)]) -> Memory {
        const HOUR: i64 = 3_600_000_000_000;
        (1..)
            .zip(files)
            .fold(Memory::default(), |memory, (at, (name, step))| memory.with(name, save(*step)).at(name, at * HOUR))
    }

    #[test]
    fn what_is_saved_twice_is_committed_with_its_step_and_lies_there_under_both_names() {
        for (last, own) in [
            ("last.ckpt", "epoch=2-step=20.ckpt"),
            ("run/last-v1.ckpt", "run/epoch=2.ckpt"),
            ("checkpoint_last.pt", "checkpoint2.pt"),
            ("weights/last.pt", "weights/epoch2.pt"),
            ("final.pth.tar", "model_2.pth.tar"),
            ("last.pt", "model_2.pth"),
            ("best.ckpt", "epoch=2.ckpt"),
        ] {
            let expected = (own.to_owned(), vec![last.to_owned()]);
            assert_eq!(newest(&files(&[(own, 20), (last, 20)])), expected, "{last} after it");
            assert_eq!(newest(&files(&[(last, 20), (own, 20)])), expected, "{last} before it");
        }
    }

    #[test]
    fn a_copy_is_no_checkpoint_while_the_next_one_is_written_either() {
        let both = files(&[("epoch=1.ckpt", 10), ("epoch=2.ckpt", 20), ("last.ckpt", 20)]);
        let expected = [("epoch=2.ckpt".into(), Some(2)), ("epoch=1.ckpt".into(), Some(1))];
        assert_eq!(complete_units(&both), expected);
        assert_eq!(
            complete_units(&both.with("epoch=3.ckpt", &save(30)[..60]).at("epoch=3.ckpt", i64::MAX / 2)),
            expected
        );
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
            let torn = newest(&files(&[(own, 20)]).with(name, b"PK\x03\x04 half").at(name, i64::MAX / 2));
            assert_eq!(stale, torn, "{name}");
            stale.1
        };
        for (name, own) in [
            ("last.ckpt", "epoch=2.ckpt"),
            ("latest.pt", "model_20.pt"),
            ("model_last.pt", "model_20.pt"),
            ("checkpoint_last.pt", "checkpoint20.pt"),
        ] {
            assert_eq!(at(name, own), [name]);
        }
        for (name, own) in [
            ("decoder_last.pt", "encoder_20.pt"),
            ("model_last.pt", "model_ema_20.pt"),
            ("checkpoint.pth", "checkpoint_20.pth"),
            ("last.pt", "other/model_20.pt"),
            ("last.pth", "model_20.pt"),
        ] {
            assert!(newest(&files(&[(name, 10), (own, 20)])).1.is_empty(), "{name} is another's");
        }
        let runs = files(&[("last.ckpt", 10), ("last-v1.ckpt", 11), ("epoch=2.ckpt", 20)]);
        assert_eq!(newest(&runs).1, ["last-v1.ckpt"], "that of the run before this one is left");
        let large = saved("step 020", &[&"x".repeat(1 << 16)]);
        let export = files(&[("last.pt", 10)]).with("epoch2.pt", large).at("epoch2.pt", i64::MAX / 2);
        assert!(newest(&export).1.is_empty(), "a model to hand out");
    }

    #[test]
    fn only_what_is_torn_or_a_copy_makes_way_for_the_one_that_is_put_there() {
        let memory = files(&[("epoch=1.ckpt", 10), ("epoch=2.ckpt", 20), ("same", 20), ("copy", 10), ("whole", 15)]);
        let memory = memory.with("torn", &save(30)[..60]).with("empty", "").with("text", "epoch=2.ckpt");
        let (listing, beside) = (memory.listing(), memory.listing());
        let file = |path: &str| listing.file(path).expect("is there");
        let what = |path: &str| there(&memory, file(path), file("epoch=2.ckpt"), beside.entries().iter().cloned());
        let all = ["same", "copy", "whole", "torn", "empty", "text"].map(what);
        assert_eq!(all, [There::Same, There::Copy, There::Another, There::Torn, There::Torn, There::Another]);
    }
}

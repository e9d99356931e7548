//! When it is time to say that a trainer saves something and none of it is recognised as a checkpoint: files that look like
//! a save came since the run began, and lie still, while nothing came of what is recognised (an earlier trainer's, say).

use std::collections::BTreeMap;
use std::time::Duration;

use super::aside::{is_bystander, is_copy, is_temporary};
use super::check::is_weights;
use super::listing::{Entry, Kind, Listing, extension_of, parent_of};
use super::plan::Age;
use super::steps::{is_steps, step_in};

/// Smaller files are no save's, unless their type says so, bytes.
const BIG: u64 = 1 << 20;
/// Pauses between looks in which nothing of it may have changed: a save under way is recognised by its last file.
const QUIET_LOOKS: u32 = 2;
/// At so many looks it is said all the same: some trainers never pause.
const ALL_LOOKS: u32 = 10;

/// What was seen of it so far.
#[derive(Debug, Default)]
pub struct Unrecognised {
    /// What lay there before the trainer began.
    before: BTreeMap<String, Entry>,
    /// What was recognised then.
    units: BTreeMap<String, Age>,
    /// What has come since, at the last look.
    new: Vec<Entry>,
    /// Looks, and pauses between them without a change, in a row.
    looks: u32,
    quiet: u32,
    /// When the first of them was, and the last that saw a change.
    begun: Duration,
    changed: Duration,
    is_told: bool,
}

impl Unrecognised {
    /// The directory before the trainer begins, and how new each unit in it is that is recognised.
    pub fn begin(listing: &Listing, units: &BTreeMap<String, Age>) -> Unrecognised {
        let before = listing.entries().iter().filter(|e| looks_saved(e)).map(|e| (e.path.clone(), e.clone()));
        Unrecognised { before: before.collect(), units: units.clone(), ..Unrecognised::default() }
    }

    /// One look. What is to be told of, once, when nothing new is recognised. `settle`: as long must lie still what is said
    /// to be a save; `None` where nobody writes any more, and it is said at once. Beside an earlier trainer's checkpoints
    /// only what has a number is one then: a finished model comes at the end, too.
    pub fn look(
        &mut self,
        now: Duration,
        settle: Option<Duration>,
        listing: &Listing,
        units: &BTreeMap<String, Age>,
    ) -> Option<&[Entry]> {
        let recognised = units.iter().any(|(unit, age)| self.units.get(unit) != Some(age));
        let is_new = |e: &&Entry| looks_saved(e) && self.before.get(&e.path).is_none_or(|old| !old.same_bytes(e));
        let new: Vec<Entry> = listing.entries().iter().filter(is_new).filter(|_| !recognised).cloned().collect();
        if self.is_told || new.is_empty() {
            (self.new, self.looks, self.quiet) = (Vec::new(), 0, 0);
            return None;
        }
        let is_same = new.len() == self.new.len() && new.iter().zip(&self.new).all(|(now, old)| now == old);
        self.begun = if self.looks == 0 { now } else { self.begun };
        self.changed = if is_same { self.changed } else { now };
        (self.looks, self.quiet) = (self.looks + 1, if is_same { self.quiet + 1 } else { 0 });
        self.new = new;
        let lasts = |since: Duration, least: Duration| now.saturating_sub(since) >= least;
        self.is_told = match settle {
            None => units.is_empty() || self.new.iter().any(is_numbered),
            Some(settle) => {
                self.quiet >= QUIET_LOOKS && lasts(self.changed, settle)
                    || self.looks >= ALL_LOOKS && lasts(self.begun, settle * ALL_LOOKS)
            }
        };
        self.is_told.then_some(&self.new)
    }
}

/// Whether a file's name has a number that may be a step, or that of a directory around it says one.
fn is_numbered(file: &Entry) -> bool {
    step_in(file.name()).is_some() || parent_of(&file.path).split('/').any(is_steps)
}

/// Whether this may be of a checkpoint: weights by their type, or what is big and no text, log, data set or cache.
fn looks_saved(file: &Entry) -> bool {
    const ANYBODYS: [&str; 9] = ["json", "npy", "npz", "pkl", "pickle", "zip", "index", "model", "onnx"];
    const OTHERS: &str = "json txt pb so arrow parquet tfrecord tfrecords tar gz tgz xz zst wandb db sqlite mdb";
    // What trainers put there before they begin.
    const BESIDE: [&str; 9] = ["token", "vocab", "spiece", "spm", "merges", "config", "dataset", "cache", "models--"];
    let path = file.path.to_ascii_lowercase();
    let is_aside = path.split('/').any(is_temporary) || is_copy(&path) || BESIDE.iter().any(|word| path.contains(word));
    if file.kind != Kind::File || file.size == 0 || is_aside || is_bystander(file.name()) {
        return false;
    }
    let extension = extension_of(&path);
    let is_sure = is_weights(file.name()) && !ANYBODYS.contains(&extension);
    is_sure || file.size >= BIG && !OTHERS.split(' ').any(|other| other == extension)
}

#[cfg(test)]
mod tests {
    use super::super::listing::tests::Memory;
    use super::*;

    const SETTLE: Duration = Duration::from_secs(2);

    /// Looks `pause` seconds apart; how many it took until it was told.
    fn told_at(before: &Listing, pause: u64, looks: &[Listing]) -> Option<usize> {
        let mut unrecognised = Unrecognised::begin(before, &units(&[]));
        let mut told = (1..).zip(looks).filter_map(|(at, listing)| {
            let now = Duration::from_secs(pause * at);
            unrecognised.look(now, Some(SETTLE), listing, &units(&[])).map(|_| at as usize)
        });
        let first = told.next();
        assert_eq!(told.next(), None, "it is told once");
        first
    }

    fn units(steps: &[u64]) -> BTreeMap<String, Age> {
        steps.iter().map(|step| (format!("step-{step}"), Age { step: Some(*step), newest_ns: 0 })).collect()
    }

    fn there(files: &[(&str, usize)]) -> Listing {
        files.iter().fold(Memory::default(), |memory, (name, size)| memory.with(name, vec![b'x'; *size])).listing()
    }

    fn same(files: &[(&str, usize)]) -> Vec<Listing> {
        vec![there(files); 30]
    }

    #[test]
    fn what_looks_like_a_save_and_lies_still_for_two_pauses_is_told_once() {
        let nothing = there(&[]);
        for save in
            [&[("weights.bin", 9)][..], &[("out/model.safetensors", 9), ("config.json", 9)], &[("state", 2 << 20)]]
        {
            assert_eq!(told_at(&nothing, 30, &same(save)), Some(3), "{save:?}");
        }
        assert_eq!(told_at(&nothing, 1, &same(&[("weights.bin", 9)])), Some(3), "settled for two seconds");
        let mut looks = same(&[]);
        looks.extend(same(&[("weights.bin", 9)]));
        assert_eq!(told_at(&nothing, 30, &looks), Some(33), "after the first save, whenever that is");
    }

    #[test]
    fn what_lies_beside_checkpoints_or_was_there_before_is_no_save() {
        let beside = [
            ("events.out.tfevents.17.host", 2 << 20),
            ("config.json", 9),
            ("train.log", 2 << 20),
            ("tokenizer.json", 2 << 20),
            ("tokenizer.model", 2 << 20),
            ("dataset/train.bin", 2 << 20),
            ("cache/w.arrow", 2 << 20),
            ("wandb/run-1/files/model.h5", 9),
            (".hidden/model.bin", 9),
            ("model.bin.tmp", 9),
            ("scores.npy", 9),
            ("empty.bin", 0),
        ];
        assert_eq!(told_at(&there(&[]), 30, &same(&beside)), None);
        let begun = [("resnet.bin", 9)];
        assert_eq!(told_at(&there(&begun), 30, &same(&begun)), None);
        assert_eq!(told_at(&there(&[("resnet.bin", 8)]), 30, &same(&begun)), Some(3), "it was saved over");
    }

    #[test]
    fn what_is_being_written_is_waited_for_but_not_for_ever() {
        let growing: Vec<Listing> = (1..30).map(|size| there(&[("model.bin", 9), ("optimizer.bin", size)])).collect();
        assert_eq!(told_at(&there(&[]), 30, &growing[..5]), None);
        assert_eq!(told_at(&there(&[]), 30, &growing), Some(10));
        let mut unrecognised = Unrecognised::begin(&Listing::default(), &units(&[]));
        let saved = there(&[("model.bin", 9)]);
        for at in 1..30 {
            let seen = units(&[1][..at as usize % 2]);
            assert_eq!(unrecognised.look(SETTLE * at, Some(SETTLE), &saved, &seen), None, "now and then it is one");
        }
    }

    #[test]
    fn what_was_recognised_before_hides_nothing_and_what_came_or_was_saved_over_since_does() {
        let saved = there(&[("model.bin", 9)]);
        let is_told = |seen: &BTreeMap<String, Age>| {
            let mut unrecognised = Unrecognised::begin(&Listing::default(), &units(&[1, 2]));
            (1..30).any(|at| unrecognised.look(SETTLE * at, Some(SETTLE), &saved, seen).is_some())
        };
        let again = BTreeMap::from([("step-2".to_owned(), Age { step: Some(2), newest_ns: 1 })]);
        assert!(is_told(&units(&[1, 2])) && is_told(&units(&[2])) && is_told(&units(&[])));
        assert!(!is_told(&units(&[2, 3])) && !is_told(&again));
    }

    #[test]
    fn what_came_at_the_end_is_told_at_once_unless_it_may_be_the_finished_model_beside_checkpoints() {
        let told = |files: &[(&str, usize)], before: &[u64]| {
            let mut unrecognised = Unrecognised::begin(&Listing::default(), &units(before));
            unrecognised.look(SETTLE, None, &there(files), &units(before)).is_some()
        };
        for numbered in ["model_20.safetensors", "ckpt_20.pt", "out/step-20/model.bin", "epoch_2/model.pt"] {
            assert!(told(&[(numbered, 9)], &[]) && told(&[(numbered, 9)], &[10]), "{numbered}");
        }
        for model in ["model.safetensors", "final/model.bin", "model-00001-of-00002.safetensors"] {
            assert!(told(&[(model, 9)], &[]) && !told(&[(model, 9)], &[10]), "{model}");
        }
        assert!(!told(&[("train.log", 2 << 20)], &[]) && !told(&[], &[]));
    }
}

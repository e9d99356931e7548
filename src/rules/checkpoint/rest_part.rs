//! Whether the rest is ready: all of it, or what was written before the newest checkpoint of a series appeared.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::formats::layouts::is_numbered;
use super::formats::rest;
use super::formats::units::Partition;
use super::history::LOOKS;
use super::listing::{Entry, around, name_of, parent_of};
use super::parts::{Held, Part, State};
use super::tracker::{Facts, Tracker, Writer};

impl Tracker {
    /// The rest. It is ready when all of it is quiet, or when the part of it is that was written before the newest
    /// checkpoint of a series appeared. What is not ready keeps the version of the last commit.
    pub(super) fn rest_part<'a>(&self, facts: &Facts, found: &'a Partition<'a>) -> Part<'a> {
        let scan = &facts.scan;
        let kept = rest::kept(scan.options.keep_saves, &self.history, &found.rest);
        let is_fresh = |entry: &&Entry| self.history.is_fresh(entry);
        let only_texts = !kept.iter().any(|entry| is_fresh(entry) && !self.history.is_text(entry));
        let is_hot = |entry: &Entry| facts.writer != Writer::Finished && self.history.is_hot(entry);
        let is_free = |entry: &Entry| is_hot(entry) || self.history.is_text(entry) && !only_texts;
        let next = self.next_save(found);
        let given_up = self.given_up(facts, &kept, next);
        let is_left_out = |entry: &Entry| {
            let is_given_up = || around(&entry.path).any(|path| given_up.contains_key(path));
            is_fresh(&entry) && (self.is_unproven(entry) || self.is_torn_since_start(scan, entry) || is_given_up())
        };
        let all: Vec<&Entry> = kept.iter().copied().filter(|entry| !is_left_out(entry)).collect();
        let save: Vec<&Entry> = all.iter().copied().filter(|entry| is_fresh(entry) && !is_free(entry)).collect();
        let wait = match facts.writer {
            Writer::Finished => Duration::ZERO,
            Writer::Running if self.is_one_whole(facts, &save) => facts.settle,
            Writer::Killed if self.is_one_whole(facts, &save) && !self.is_in_new_directory(facts, &save) => {
                Duration::ZERO
            }
            _ => self.wait(facts),
        };
        let mut held = self.settled(facts, save.iter().copied(), wait).err();
        let mut ready = if held.is_none() { save.clone() } else { Vec::new() };
        if held.is_some()
            && let Some(next) = next
        {
            let is_before = |entry: &&Entry| self.history.seen(entry).is_some_and(|seen| seen.since < next);
            let before: Vec<&Entry> = save.iter().copied().filter(is_before).collect();
            match self.settled(facts, before.iter().copied(), facts.settle) {
                Ok(()) => ready = before,
                Err(before) => held = Some(before),
            }
        }
        if let Some((entry, why)) = ready.iter().find_map(|entry| Some((*entry, self.torn(facts, entry)?))) {
            held = Some(Held { state: State::Torn(why), path: &entry.path, again: None });
            ready.clear();
        }
        // A single file that is saved all the time has no quiet period.
        let only_hot = found.roots.is_empty() && all.iter().all(|entry| is_free(entry));
        let is_whole =
            |entry: &&Entry| is_fresh(entry) && !self.history.is_text(entry) && self.is_one_whole(facts, &[entry]);
        let has_content = !only_texts && !ready.is_empty() || only_hot && all.iter().any(is_whole);
        let ready: BTreeSet<&str> = ready.iter().map(|entry| entry.path.as_str()).collect();
        let is_taken = |entry: &Entry| {
            !is_fresh(&entry)
                || ready.contains(entry.path.as_str())
                || is_free(entry) && self.torn(facts, entry).is_none()
        };
        let is_kept = |entry: &&&Entry| !kept.iter().any(|kept| kept.path == entry.path);
        let mut part = Part {
            root: None,
            units: Vec::new(),
            older: if kept.len() == found.rest.len() {
                Vec::new()
            } else {
                found.rest.iter().filter(is_kept).copied().collect()
            },
            files: all.iter().copied().filter(|entry| is_taken(entry)).collect(),
            state: if found.rest.is_empty() { State::Empty } else { State::Committed },
            blocker: None,
            has_content,
            again: held.as_ref().and_then(|held| held.again),
            given_up: given_up.into_iter().next().map(|(path, why)| (path.to_owned(), why)),
        };
        if let (Some(marker), true, false) = (&scan.options.marker, found.roots.is_empty(), found.rest.is_empty()) {
            part.state = State::Incomplete(format!("no directory holds {marker} yet"));
        } else if has_content || !ready.is_empty() {
            part.state = State::Ready;
        } else if let Some(held) = held {
            part.held(held);
        }
        part
    }

    /// When the newest checkpoint of a series in the rest appeared: what was written before is finished.
    fn next_save(&self, found: &Partition) -> Option<Duration> {
        let mut born: BTreeMap<(&str, String), BTreeMap<&str, Duration>> = BTreeMap::new();
        for entry in &found.rest {
            let Some(seen) = self.history.seen(entry) else { continue };
            for path in around(&entry.path).filter(|path| is_numbered(name_of(path), *path != entry.path)) {
                let group = born.entry((parent_of(path), rest::series(name_of(path)))).or_default();
                let first = group.entry(path).or_insert(seen.born.0);
                *first = (*first).min(seen.born.0);
            }
        }
        let next = born.into_values().filter_map(|group| {
            let (first, last) = (group.values().min().copied()?, group.values().max().copied()?);
            (first < last).then_some(last)
        });
        next.max()
    }

    /// The torn files that hold nothing back any more, each with the reason: the trainer has ended, or they have not changed
    /// for a long time, or a later save has begun. All of a new directory that is one checkpoint is left out with them.
    fn given_up<'a>(&self, facts: &Facts, rest: &[&'a Entry], next: Option<Duration>) -> BTreeMap<&'a str, String> {
        let is_over = |torn: &Entry| {
            let is_before = |next| self.history.seen(torn).is_some_and(|seen| seen.since < next);
            let is_long = self.history.looks_since(torn) >= LOOKS
                || next.is_some_and(is_before) && self.still(facts, torn) >= facts.settle;
            let is_written = facts.writer == Writer::Running && (facts.open.contains(&torn.path) || !is_long);
            self.history.is_fresh(torn) && self.history.delays(torn) && !is_written
        };
        let torn = rest.iter().filter(|entry| facts.writer != Writer::Killed && is_over(entry));
        let given_up = torn.filter_map(|entry| Some((*entry, self.torn(facts, entry)?)));
        given_up.map(|(entry, why)| (self.new_checkpoint(facts, entry).unwrap_or(&entry.path), why)).collect()
    }

    /// The outermost new directory around the entry that is named as one checkpoint of a series.
    pub(super) fn new_checkpoint<'e>(&self, facts: &Facts, entry: &'e Entry) -> Option<&'e str> {
        let is_one =
            |path: &&str| is_numbered(name_of(path), true) && self.history.is_new_directory(facts.scan.listing, path);
        around(&entry.path).skip(1).filter(is_one).last()
    }

    fn is_in_new_directory(&self, facts: &Facts, files: &[&Entry]) -> bool {
        files.iter().any(|entry| self.history.is_new_directory(facts.scan.listing, parent_of(&entry.path)))
    }

    /// Whether the file is of a save that a killed writer left half finished.
    pub(super) fn is_unproven(&self, entry: &Entry) -> bool {
        self.unproven.get(&entry.path) == Some(&entry.signature())
    }
}

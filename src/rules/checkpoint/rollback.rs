//! After a death of the trainer, and at a start: the files that are moved to `.trainit/torn/`, and those that the last
//! commit replaces.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::formats::ends;
use super::formats::engine::partition;
use super::formats::layouts::is_numbered;
use super::formats::units::{Partition, Root, UnitState};
use super::history::Beside;
use super::listing::{Entry, Kind, around, name_of, parent_of};
use super::tracker::{Facts, Tracker, Writer};

/// The files to move away before the next attempt, and their replacements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rollback {
    /// Paths of files and links, each with the reason; sorted.
    pub to_torn: Vec<(String, String)>,
    /// Paths to restore from the last commit; sorted.
    pub put_back: Vec<String>,
    /// Pointers that are moved away, each with a text that names the last whole unit. The text is written if no commit
    /// has the pointer, because without its pointer a framework starts from scratch.
    pub pointers: Vec<(String, String)>,
    /// Whole files that stay but are not committed before the trainer writes again, because the rest of their save may be
    /// missing.
    pub unproven: Beside,
}

impl Tracker {
    /// Decides before the next attempt, also at a start. Only what changed in the life that has ended can be half a save, so
    /// nothing else is moved.
    pub fn after_death(&mut self, facts: &Facts) -> Rollback {
        self.update(facts);
        let found = partition(&facts.scan, &self.history);
        let (mut torn, unproven) = self.unproven_rest(facts, &found);
        let rest = self.history.part(None).into_iter().flat_map(|part| &part.files);
        let mut put_back: BTreeSet<String> = rest.filter(|path| torn.contains_key(*path)).cloned().collect();
        let mut pointers = Vec::new();
        for root in &found.roots {
            if let Some(why) = self.unproven_unit(facts, root) {
                self.roll_root_back(facts, root, &why, &mut torn, &mut put_back);
                pointers.extend(self.renamed(facts, root, &torn));
            }
        }
        for (path, directory) in self.abandoned(facts, &torn) {
            torn.insert(path.to_owned(), format!("{directory} holds nothing that was finished"));
        }
        let earlier = facts.scan.listing.files().filter(|entry| self.is_unproven(entry));
        let unproven = unproven.into_iter().chain(earlier).filter(|entry| !torn.contains_key(&entry.path));
        let unproven = unproven.map(|entry| (entry.path.clone(), entry.signature()));
        Rollback {
            unproven: unproven.collect(),
            to_torn: torn.into_iter().collect(),
            put_back: put_back.into_iter().collect(),
            pointers,
        }
    }

    /// Whether the entry may be half of a save: the life that has ended changed it, and no commit has this version.
    fn is_suspect(&self, entry: &Entry) -> bool {
        entry.kind != Kind::Directory && self.history.is_fresh(entry) && self.history.is_of_this_life(entry)
    }

    /// What is left in a new directory that is named as a checkpoint and has nothing to commit: temporary files, or the
    /// directory if it is empty. A framework takes it for its newest checkpoint. Each path with the directory.
    fn abandoned<'a>(&self, facts: &Facts<'a>, torn: &BTreeMap<String, String>) -> Vec<(&'a str, &'a str)> {
        let (listing, exclusions) = (facts.scan.listing, &facts.scan.options.exclusions);
        let is_excluded = |entry: &Entry| exclusions.decide(&entry.path).is_some();
        let leaves = |directory: &Entry| {
            listing.below(&directory.path).iter().filter(|e| e.kind != Kind::Directory && !torn.contains_key(&e.path))
        };
        let is_committed = |directory: &Entry| {
            let mut files = self.last().into_iter().flat_map(|last| &last.parts).flat_map(|part| &part.files);
            files.any(|path| around(path).any(|outer| outer == directory.path))
        };
        let is_abandoned = |entry: &&Entry| {
            entry.kind == Kind::Directory
                && is_numbered(name_of(&entry.path), true)
                && self.history.is_of_this_life(entry)
                && leaves(entry).all(is_excluded)
                && !is_excluded(entry)
                && !is_committed(entry)
        };
        let all = listing.entries().iter().filter(|entry| facts.writer == Writer::Killed && is_abandoned(entry));
        let left = |directory: &'a Entry| {
            let is_moved = listing.below(&directory.path).iter().any(|entry| torn.contains_key(&entry.path));
            let itself = (!is_moved && leaves(directory).next().is_none()).then_some(directory);
            let all = leaves(directory).chain(itself);
            all.map(|entry| (entry.path.as_str(), directory.path.as_str())).collect::<Vec<_>>()
        };
        all.flat_map(left).collect()
    }

    /// Why the newest unit of a root counts as unproven.
    fn unproven_unit(&self, facts: &Facts, root: &Root) -> Option<String> {
        let newest = &root.units[0];
        match &newest.state {
            UnitState::Incomplete(why) | UnitState::Unproven(why) => Some(why.clone()),
            UnitState::Complete if root.is_unprovable() && facts.writer == Writer::Killed => {
                let is_late =
                    |entry: &&Entry| self.is_suspect(entry) && self.unchanged_time(facts, entry) < self.wait(facts);
                let late = newest.leaves().find(is_late)?;
                let is_whole = self.is_one_whole(facts, &newest.members);
                (!is_whole).then(|| format!("{} changed just before the trainer died", late.path))
            }
            UnitState::Complete | UnitState::Older => None,
        }
    }

    fn roll_root_back(
        &self,
        facts: &Facts,
        root: &Root,
        why: &str,
        torn: &mut BTreeMap<String, String>,
        put_back: &mut BTreeSet<String>,
    ) {
        let newest = &root.units[0];
        let is_replaced = root.units[1..].iter().any(|unit| unit.state == UnitState::Complete);
        let names_it = |entry: &Entry| {
            let text = facts.scan.text(&entry.path).unwrap_or_default();
            text.split(['/', '"', '\'', '\n']).any(|part| part.trim() == newest.key)
                || newest.step.is_some_and(|step| text.trim() == step.to_string())
        };
        let pointers = root.pointers.iter().filter(|entry| !is_replaced || names_it(entry));
        let moved = newest.members.iter().chain(pointers);
        let moved = moved.filter(|entry| self.is_suspect(entry));
        torn.extend(moved.map(|entry| (entry.path.clone(), why.to_owned())));
        let is_gone = |path: &str| facts.scan.listing.get(path).is_none() && !is_replaced;
        let committed = self.history.part(Some(&root.dir)).into_iter().flat_map(|record| &record.files);
        put_back.extend(committed.filter(|path| torn.contains_key(*path) || is_gone(path)).cloned());
    }

    /// New texts for the root's pointers that are moved away: they name the unit of the last commit, if that unit is
    /// unchanged.
    fn renamed(&self, facts: &Facts, root: &Root, torn: &BTreeMap<String, String>) -> Vec<(String, String)> {
        let newest = &root.units[0];
        let record = self.history.part(Some(&root.dir));
        let Some((record, unit)) = record.and_then(|record| Some((record, record.unit.as_deref()?))) else {
            return Vec::new();
        };
        let stays = |path: &String| record.pointers.contains(path) || facts.scan.listing.get(path).is_some();
        if unit == newest.path || !record.files.iter().all(stays) {
            return Vec::new();
        }
        let renamed = |entry: &&Entry| {
            let text = facts.scan.text(&entry.path)?;
            let text = match (newest.step, record.step) {
                (Some(old), Some(step)) if text.trim() == old.to_string() => step.to_string(),
                _ if text.contains(newest.key.as_str()) => text.replace(newest.key.as_str(), name_of(unit)),
                _ => return None,
            };
            Some((entry.path.clone(), text))
        };
        root.pointers.iter().filter(|entry| torn.contains_key(&entry.path)).filter_map(renamed).collect()
    }

    /// The files of the rest to move away, each with the reason, and the whole files that stay and are not proven. A file is
    /// moved if it is torn, if it has no checkable end and changed just before the death, if it was overwritten without
    /// proof, or if it is in a new directory of a checkpoint that is not whole. A text goes with the files that changed with
    /// it, and is moved only if the last commit has a version to put back.
    fn unproven_rest<'a>(&self, facts: &Facts, found: &Partition<'a>) -> (BTreeMap<String, String>, Vec<&'a Entry>) {
        let is_file =
            |entry: &&Entry| entry.kind == Kind::File && self.is_suspect(entry) && !self.history.is_hot(entry);
        let (texts, fresh): (Vec<&Entry>, Vec<&Entry>) =
            found.rest.iter().copied().filter(is_file).partition(|entry| self.history.is_text(entry));
        let (texts, fresh) = if fresh.is_empty() { (fresh, texts) } else { (texts, fresh) };
        let is_proven = self.is_one_whole(facts, &fresh);
        let is_late = |entry: &Entry, limit: Duration| {
            facts.writer == Writer::Killed && self.unchanged_time(facts, entry) < limit
        };
        let is_over = |entry: &Entry| self.last().is_some_and(|last| last.entries.contains_key(&entry.path));
        let why = |entry: &Entry| match self.torn(facts, entry) {
            Some(why) => Some(why),
            None if is_late(entry, facts.settle) && !ends::shows_its_end(facts.scan.peek, entry) => {
                Some(format!("{} changed just before the trainer died, and files of its type have no end", entry.path))
            }
            None if is_over(entry) && !is_proven && is_late(entry, self.wait(facts)) => {
                Some(format!("{} was overwritten just before the trainer died, perhaps with other files", entry.path))
            }
            None => None,
        };
        let mut torn: BTreeMap<String, String> =
            fresh.iter().filter_map(|entry| Some((entry.path.clone(), why(entry)?))).collect();
        // A new unit that lacks its proof is moved, and so is all of a new directory that is a checkpoint with a torn file.
        let is_half = |root: &Root| root.units[0].leaves().all(|entry| self.is_suspect(entry));
        let half = found.unproven.iter().filter(|root| is_half(root)).map(|root| &root.units[0]);
        for unit in half.filter(|unit| unit.leaves().any(|entry| is_late(entry, self.wait(facts)))) {
            let UnitState::Incomplete(why) = &unit.state else { continue };
            torn.extend(unit.leaves().map(|entry| (entry.path.clone(), why.clone())));
        }
        let half: BTreeSet<&str> = fresh
            .iter()
            .filter(|entry| torn.contains_key(&entry.path))
            .filter_map(|entry| self.new_checkpoint(facts, entry))
            .collect();
        for home in half {
            let moved = facts.scan.listing.below(home).iter().filter(|entry| self.is_suspect(entry));
            let why = || format!("{home} may be half a save");
            moved.for_each(|entry| _ = torn.entry(entry.path.clone()).or_insert_with(why));
        }
        let first =
            fresh.iter().filter(|entry| torn.contains_key(&entry.path)).map(|entry| self.history.look_of(entry)).min();
        for text in texts.iter().filter(|text| is_over(text)) {
            if first.is_some_and(|first| self.history.look_of(text) >= first) {
                torn.insert(text.path.clone(), format!("{} changed with the save that was cut short", text.path));
            }
        }
        let is_unproven = |entry: &&Entry| {
            let is_new = self.history.is_new_directory(facts.scan.listing, parent_of(&entry.path));
            let together = self.history.is_together(&entry.path) || self.saves.is_together(&entry.path);
            is_late(entry, self.wait(facts)) && (fresh.len() > 1 || is_new || together)
        };
        let unproven = fresh.iter().copied().filter(is_unproven).collect();
        (torn, unproven)
    }

    /// How long a file was unchanged before the death. At a start no look saw it change, so its time is compared with
    /// that of the youngest file that changed since the last commit.
    fn unchanged_time(&self, facts: &Facts, entry: &Entry) -> Duration {
        if !self.history.is_unchanged_since_start(entry) {
            return self.still(facts, entry);
        }
        if self.has_run {
            return Duration::MAX;
        }
        let fresh = facts.scan.listing.files().filter(|file| self.is_suspect(file));
        let youngest = fresh.map(|file| file.mtime_ns).max().unwrap_or(0);
        Duration::from_nanos(youngest.saturating_sub(entry.mtime_ns).try_into().unwrap_or(0))
    }
}

//! After a death of the trainer, and at a start: the files that are moved to `.trainit/torn/`, and those that the last
//! commit replaces.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::formats::ends;
use super::formats::engine::partition;
use super::formats::units::{Root, UnitState};
use super::listing::{Entry, Kind, name_of};
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
}

impl Tracker {
    /// Decides before the next attempt, also at a start. It moves away torn files, an incomplete newest unit, and unproven
    /// files. After a clean end, or without any sign of a death ([`Writer::Running`]), it leaves unproven files in place.
    pub fn after_death(&mut self, facts: &Facts) -> Rollback {
        self.update(facts);
        let found = partition(&facts.scan, &self.history);
        let mut torn: BTreeMap<String, String> = self.unproven_rest(facts, &found.rest);
        let rest = self.history.part(None).into_iter().flat_map(|part| &part.files);
        let mut put_back: BTreeSet<String> = rest.filter(|path| torn.contains_key(*path)).cloned().collect();
        let mut pointers = Vec::new();
        for root in &found.roots {
            if let Some(why) = self.unproven_unit(facts, root) {
                self.roll_root_back(facts, root, &why, &mut torn, &mut put_back);
                pointers.extend(self.renamed(facts, root, &torn));
            }
        }
        Rollback { to_torn: torn.into_iter().collect(), put_back: put_back.into_iter().collect(), pointers }
    }

    /// Why the newest unit of a root counts as unproven.
    fn unproven_unit(&self, facts: &Facts, root: &Root) -> Option<String> {
        let newest = &root.units[0];
        match &newest.state {
            UnitState::Incomplete(why) | UnitState::Unproven(why) => Some(why.clone()),
            UnitState::Complete if root.is_unprovable() && facts.writer == Writer::Killed => {
                let is_late = |entry: &&&Entry| {
                    let is_fresh = entry.kind != Kind::Directory && self.history.is_fresh(entry);
                    is_fresh && self.unchanged_time(facts, entry) < self.wait(facts)
                };
                let late = newest.members.iter().find(is_late)?;
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
        let moved = moved.filter(|entry| entry.kind != Kind::Directory && self.history.is_fresh(entry));
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

    /// The unproven files of the rest, each with the reason: files without a checkable end that changed just before the
    /// death, and overwritten files without proof. Whole files under new names stay, and so do texts.
    fn unproven_rest(&self, facts: &Facts, files: &[&Entry]) -> BTreeMap<String, String> {
        let is_counted = |entry: &&Entry| entry.kind == Kind::File && !self.history.is_text(entry);
        let fresh = files.iter().copied().filter(is_counted).filter(|entry| self.history.is_fresh(entry));
        let fresh: Vec<&Entry> = fresh.collect();
        let is_proven = self.is_one_whole(facts, &fresh);
        let why = |entry: &Entry| {
            let is_late = |limit: Duration| facts.writer == Writer::Killed && self.unchanged_time(facts, entry) < limit;
            let is_over = self.last().is_some_and(|last| last.entries.contains_key(&entry.path));
            match self.history.whole(facts.scan.peek, entry) {
                Err(why) => Some(why),
                Ok(()) if is_late(facts.settle) && !ends::shows_its_end(facts.scan.peek, entry) => Some(format!(
                    "{} changed just before the trainer died, and files of its type have no end",
                    entry.path
                )),
                Ok(()) if is_over && !is_proven && is_late(self.wait(facts)) => Some(format!(
                    "{} was overwritten just before the trainer died, perhaps with other files",
                    entry.path
                )),
                Ok(()) => None,
            }
        };
        fresh.iter().filter_map(|entry| Some((entry.path.clone(), why(entry)?))).collect()
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
        let fresh = facts.scan.listing.files().filter(|file| self.history.is_fresh(file));
        let youngest = fresh.map(|file| file.mtime_ns).max().unwrap_or(0);
        Duration::from_nanos(youngest.saturating_sub(entry.mtime_ns).try_into().unwrap_or(0))
    }
}

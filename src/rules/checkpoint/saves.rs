//! How long the rest must be unchanged before it is ready, learned from the pauses within earlier saves.

use std::collections::BTreeSet;
use std::time::Duration;

use super::formats::rest;
use super::formats::units::Partition;
use super::history::{History, SaveTiming};
use super::listing::Entry;

/// The longest time that a part must be unchanged.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// One change of a file, and the pause before it, at most.
#[derive(Debug)]
struct Change {
    at: Duration,
    path: String,
    series: String,
    pause: Duration,
}

/// The latest changes of the rest.
#[derive(Debug, Default)]
pub(super) struct Saves {
    /// The look that saw the latest change, and the look before it.
    last: Option<(Duration, Duration)>,
    looked: Option<Duration>,
    /// The changes of the present save, and perhaps of the one before.
    changes: Vec<Change>,
    /// How many of them the last commit has.
    committed: usize,
    /// What complete saves have shown.
    learned: SaveTiming,
}

impl Saves {
    /// Records changed files. A file that changes again begins the next save: what changed since its earlier change was
    /// one save.
    pub(super) fn note_changes(&mut self, now: Duration, settle: Duration, found: &Partition, history: &History) {
        let units = found.roots.iter().filter(|root| root.is_unprovable()).flat_map(|root| &root.units);
        let all = found.rest.iter().chain(units.flat_map(|unit| &unit.members));
        let changed: Vec<&&Entry> = all.filter(|entry| history.is_new(entry) && history.delays(entry)).collect();
        let looked = self.looked.replace(now).unwrap_or(now);
        if changed.is_empty() {
            return;
        }
        let (last, before) = self.last.replace((now, looked)).unwrap_or((now, now));
        if now.saturating_sub(last) >= LONGEST_WAIT {
            (self.changes, self.committed) = (Vec::new(), 0);
        }
        let mut pause = now.saturating_sub(before);
        for entry in changed {
            let series = rest::series(&entry.path);
            let is_pause = now.saturating_sub(last) >= settle;
            let is_again =
                |change: &Change| change.path == entry.path || is_pause && change.series == series && change.at < now;
            if let Some(at) = self.changes.iter().position(is_again) {
                self.learned.add(&self.changes[at..]);
                (self.changes, self.committed) = (Vec::new(), 0);
            }
            let pause = std::mem::take(&mut pause);
            self.changes.push(Change { at: now, path: entry.path.clone(), series, pause });
        }
    }

    /// How long the rest must be unchanged before it is ready: three times `settle` before the first save, then longer
    /// than the longest pause between two files of an earlier save.
    pub(super) fn wait(&self, settle: Duration, history: &History) -> Duration {
        let committed = history.last.as_ref().and_then(|last| last.timing.longest_pause);
        let pause = committed.max(self.learned.longest_pause);
        match pause {
            None => settle * 3,
            Some(pause) if pause.is_zero() => settle,
            Some(pause) => (pause + settle).min(LONGEST_WAIT.max(settle)),
        }
    }

    /// Whether the file is known to change together with others in each save.
    pub(super) fn is_together(&self, path: &str) -> bool {
        self.learned.together.contains(&rest::series(path))
    }

    /// Adds the timing of the committed save of these files to `timing`.
    pub(super) fn add_timing(&self, timing: &mut SaveTiming, files: &[&Entry]) {
        let paths: BTreeSet<&str> = files.iter().map(|entry| entry.path.as_str()).collect();
        let new = &self.changes[self.committed.min(self.changes.len())..];
        let first = new.iter().position(|change| paths.contains(change.path.as_str())).unwrap_or(new.len());
        timing.add(&new[first..]);
        timing.longest_pause = timing.longest_pause.max(self.learned.longest_pause).max(Some(Duration::ZERO));
        timing.together.extend(self.learned.together.iter().cloned());
    }

    pub(super) fn committed(&mut self) {
        self.committed = self.changes.len();
    }
}

impl SaveTiming {
    /// Adds one save.
    fn add(&mut self, save: &[Change]) {
        let pauses = save.iter().skip(1).map(|change| change.pause.min(LONGEST_WAIT));
        self.longest_pause = self.longest_pause.max(pauses.max());
        let series: BTreeSet<&String> = save.iter().map(|change| &change.series).collect();
        if save.len() > 1 {
            self.together.extend(series.into_iter().cloned());
        }
    }
}

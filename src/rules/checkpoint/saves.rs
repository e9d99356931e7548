//! How long the rest must be unchanged before it is ready, learned from the pauses within earlier saves.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use super::formats::rest;
use super::formats::units::Partition;
use super::history::{History, SaveTiming};
use super::listing::Entry;

/// The longest time that a part must be unchanged.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The saves of the rest since the last commit.
#[derive(Debug, Default)]
pub(super) struct Saves {
    /// When a file last changed.
    last: Option<Duration>,
    /// The paths that changed in the current save.
    paths: HashSet<String>,
    /// The longest pause between two files of one save.
    longest: Duration,
    /// When a file of the rest was last deleted.
    gone: Option<Duration>,
}

impl Saves {
    /// Records deleted files, which count as changes of the rest.
    pub(super) fn note_gone(&mut self, now: Duration, gone: &[String], history: &History) {
        let rest = history.part(None);
        if rest.is_some_and(|rest| gone.iter().any(|path| rest.files.binary_search(path).is_ok())) {
            self.gone = Some(now);
        }
    }

    pub(super) fn is_deleting(&self, now: Duration, wait: Duration) -> bool {
        self.gone.is_some_and(|gone| now.saturating_sub(gone) < wait)
    }

    /// Records changed files. A file that changes again belongs to the next save, and so does a file that changes after
    /// the wait.
    pub(super) fn note_changes(&mut self, now: Duration, settle: Duration, found: &Partition, history: &History) {
        let units = found.roots.iter().filter(|root| root.is_unprovable()).flat_map(|root| &root.units);
        let all = found.rest.iter().chain(units.flat_map(|unit| &unit.members));
        let changed: Vec<&&Entry> = all.filter(|entry| history.is_new(entry) && history.delays(entry)).collect();
        if changed.is_empty() {
            return;
        }
        let pause = self.last.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        if pause >= self.wait(settle, history) || changed.iter().any(|entry| self.paths.contains(&entry.path)) {
            self.paths.clear();
        } else {
            self.longest = self.longest.max(pause);
        }
        self.last = Some(now);
        self.paths.extend(changed.iter().map(|entry| entry.path.clone()));
    }

    /// How long the rest must be unchanged before it is ready: three times `settle` before the first save, then at
    /// least the longest pause between two files of an earlier save.
    pub(super) fn wait(&self, settle: Duration, history: &History) -> Duration {
        let pause = history.last.as_ref().and_then(|last| last.timing.longest_pause);
        pause.map_or(settle * 3, |pause| pause.min(LONGEST_WAIT)).max(settle)
    }

    /// Adds the timing of the committed save of these files to `timing`.
    pub(super) fn add_timing(&self, timing: &mut SaveTiming, files: &[&Entry]) {
        timing.longest_pause = timing.longest_pause.max(Some(self.longest.min(LONGEST_WAIT)));
        let changed: Vec<&&Entry> = files.iter().filter(|entry| self.paths.contains(&entry.path)).collect();
        if changed.len() > 1 {
            timing.together.extend(changed.iter().map(|entry| rest::series(&entry.path)).collect::<BTreeSet<_>>());
        }
    }

    pub(super) fn end(&mut self) {
        *self = Saves { gone: self.gone, ..Saves::default() };
    }
}

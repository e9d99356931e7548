//! How long a save of the rest takes: what earlier ones showed, and how long the rest lies still before it is ready.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use super::formats::rest;
use super::formats::units::Partition;
use super::history::{Habits, History};
use super::listing::{Entry, Kind};

/// The longest that a part waits to lie still.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// What the saves of the rest showed since the last commit.
#[derive(Debug, Default)]
pub(super) struct Saves {
    /// When a file changed last.
    last: Option<Duration>,
    /// What changed in the save that is going on.
    paths: HashSet<String>,
    /// The longest pause between two files of one save.
    longest: Duration,
    /// When a file of the rest went last.
    gone: Option<Duration>,
}

impl Saves {
    /// Files that went: the rest does not lie still.
    pub(super) fn note_gone(&mut self, now: Duration, gone: &[String], history: &History) {
        let rest = history.part(None);
        if rest.is_some_and(|rest| gone.iter().any(|path| rest.files.binary_search(path).is_ok())) {
            self.gone = Some(now);
        }
    }

    pub(super) fn is_deleting(&self, now: Duration, wait: Duration) -> bool {
        self.gone.is_some_and(|gone| now.saturating_sub(gone) < wait)
    }

    /// Files that changed. A file that changes again is of the next save, and so is one that changes after the wait.
    pub(super) fn note_changes(&mut self, now: Duration, settle: Duration, found: &Partition, history: &History) {
        let units = found.roots.iter().filter(|root| root.is_unprovable()).flat_map(|root| &root.units);
        let all = found.rest.iter().chain(units.flat_map(|unit| &unit.members));
        let is_counted = |entry: &Entry| entry.kind != Kind::Directory && !rest::is_text(entry);
        let changed: Vec<&&Entry> = all.filter(|entry| history.is_new(entry) && is_counted(entry)).collect();
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

    /// How long the rest lies still before it is ready: three times `settle` before the first save, then as long as the
    /// longest pause between two files of an earlier one.
    pub(super) fn wait(&self, settle: Duration, history: &History) -> Duration {
        let pause = history.last.as_ref().and_then(|last| last.habits.longest_pause);
        pause.map_or(settle * 3, |pause| pause.min(LONGEST_WAIT)).max(settle)
    }

    /// What the save of these files, which is committed, showed.
    pub(super) fn learn(&self, habits: &mut Habits, files: &[&Entry]) {
        habits.longest_pause = habits.longest_pause.max(Some(self.longest.min(LONGEST_WAIT)));
        let changed: Vec<&&Entry> = files.iter().filter(|entry| self.paths.contains(&entry.path)).collect();
        if changed.len() > 1 {
            habits.together.extend(changed.iter().map(|entry| rest::series(&entry.path)).collect::<BTreeSet<_>>());
        }
    }

    pub(super) fn end(&mut self) {
        *self = Saves { gone: self.gone, ..Saves::default() };
    }
}

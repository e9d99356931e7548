//! What is known from earlier looks and from the last commit: when each file changed, and whether it is whole.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::formats::ends;
use super::listing::{Entry, Kind, Listing, Peek};

/// What is known of one committed part; in the manifest and in `.trainit/committed.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartRecord {
    /// Paths of its files, links and directories, sorted; no path is of two parts.
    pub files: Vec<String>,
    /// The format's name.
    pub layout: Option<String>,
    /// Those of its files that name the unit, perhaps by its absolute path.
    pub pointers: Vec<String>,
    /// The root's directory, empty for the checkpoint directory; `None` for the rest.
    pub root: Option<String>,
    /// The training step.
    pub step: Option<u64>,
    /// What the framework loads; empty for the checkpoint directory.
    pub unit: Option<String>,
}

/// The last commit as this directory knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Its parts.
    pub parts: Vec<PartRecord>,
    /// Every file of the directory as it lay here when the commit was planned, by path; at least those of the commit.
    pub entries: BTreeMap<String, Entry>,
    /// What earlier saves of the rest showed; in the manifest as well.
    #[serde(default)]
    pub habits: Habits,
}

impl Committed {
    /// The part of this root; `None` for the rest.
    pub fn part(&self, root: Option<&str>) -> Option<&PartRecord> {
        self.parts.iter().find(|part| part.root.as_deref() == root)
    }
}

/// What earlier saves of the rest showed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Habits {
    /// The longest pause between two files of one save; `None` before the first.
    pub longest_pause: Option<Duration>,
    /// Files that changed together with another one in a save, numbers in their paths put as `#`.
    pub together: BTreeSet<String>,
}

/// What earlier looks saw of a path.
#[derive(Debug)]
pub(super) struct Seen {
    entry: Entry,
    /// When a look saw it so first, monotonic.
    pub(super) since: Duration,
    /// The number of that look. 0: as the last commit has it, or as it lay at the start where there is none.
    pub(super) look: u64,
    /// Which save it is of, counted in commits.
    pub(super) save: u64,
    /// Whether an entry of this path lay there at the start.
    at_start: bool,
    /// Whether it replaced what an earlier look saw.
    pub(super) is_rewritten: bool,
    verdict: OnceCell<Result<(), String>>,
}

/// What earlier looks saw.
#[derive(Debug, Default)]
pub struct History {
    seen: HashMap<String, Seen>,
    /// The number of the latest look.
    look: u64,
    /// The number of commits.
    pub(super) save: u64,
    /// The last commit.
    pub(super) last: Option<Committed>,
    /// Whether there is no memory, so that the order within a save is always asked for.
    pub(super) is_pushed: bool,
}

impl History {
    /// At a start.
    pub(super) fn begin(now: Duration, listing: &Listing, last: Option<Committed>, is_pushed: bool) -> History {
        let mut history = History { last, is_pushed, look: 1, ..History::default() };
        for entry in listing.entries() {
            let look = u64::from(history.last.is_some() && history.is_fresh(entry));
            let seen = Seen { look, at_start: true, ..Seen::of(entry, now) };
            history.seen.insert(entry.path.clone(), seen);
        }
        history
    }

    /// Takes a walk in. Returns the paths that are gone.
    pub(super) fn update(&mut self, now: Duration, listing: &Listing) -> Vec<String> {
        self.look += 1;
        let mut old = std::mem::take(&mut self.seen);
        for entry in listing.entries() {
            let seen = match old.remove(&entry.path) {
                Some(same) if same.entry.same_bytes(entry) => same,
                before => Seen {
                    look: self.look,
                    save: self.save,
                    at_start: before.as_ref().is_some_and(|seen| seen.at_start),
                    is_rewritten: before.is_some(),
                    ..Seen::of(entry, now)
                },
            };
            self.seen.insert(entry.path.clone(), seen);
        }
        old.into_keys().collect()
    }

    pub(super) fn seen(&self, entry: &Entry) -> Option<&Seen> {
        self.seen.get(&entry.path)
    }

    /// The number of the look that saw it change last.
    pub(super) fn look_of(&self, entry: &Entry) -> u64 {
        self.seen(entry).map_or(0, |seen| seen.look)
    }

    /// Whether the latest look saw it change.
    pub(super) fn is_new(&self, entry: &Entry) -> bool {
        self.look_of(entry) == self.look
    }

    /// Whether it lay there at the start and has not changed since.
    pub(super) fn lay_there(&self, entry: &Entry) -> bool {
        self.seen(entry).is_some_and(|seen| seen.at_start && seen.look <= 1)
    }

    /// Whether it differs from what the last commit has, or from what lay there at the start. `None`: it was not there.
    pub(super) fn differs(&self, entry: &Entry) -> Option<bool> {
        match self.last.as_ref().and_then(|last| last.entries.get(&entry.path)) {
            Some(before) => Some(!before.same_bytes(entry)),
            None => self.seen(entry).filter(|seen| seen.at_start).map(|seen| seen.look > 1),
        }
    }

    /// The part of this root in the last commit; `None` for the rest.
    pub(super) fn part(&self, root: Option<&str>) -> Option<&PartRecord> {
        self.last.as_ref()?.part(root)
    }

    /// Whether it is not what lay there at the last commit.
    pub(super) fn is_fresh(&self, entry: &Entry) -> bool {
        self.last.as_ref().is_none_or(|last| last.entries.get(&entry.path).is_none_or(|e| !e.same_bytes(entry)))
    }

    /// Whether the file has the end of its type. Read once for each change.
    pub(super) fn whole(&self, peek: &dyn Peek, entry: &Entry) -> Result<(), String> {
        if entry.kind != Kind::File {
            return Ok(());
        }
        match self.seen(entry).filter(|seen| seen.entry.same_bytes(entry)) {
            Some(seen) => seen.verdict.get_or_init(|| ends::whole(peek, entry)).clone(),
            None => ends::whole(peek, entry),
        }
    }
}

impl Seen {
    fn of(entry: &Entry, now: Duration) -> Seen {
        let (entry, verdict) = (entry.clone(), OnceCell::new());
        Seen { entry, since: now, look: 0, save: 0, at_start: false, is_rewritten: false, verdict }
    }
}

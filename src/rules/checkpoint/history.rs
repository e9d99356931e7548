//! Knowledge from earlier looks and from the last commit: when each file changed, and whether it is whole.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::formats::{ends, rest};
use super::listing::{Entry, Kind, Listing, Peek};

/// The record of one committed part, in the manifest and in `.trainit/committed.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartRecord {
    /// Paths of its files, links and directories, sorted. A path belongs to one part at most.
    pub files: Vec<String>,
    /// The format's name.
    pub layout: Option<String>,
    /// The files that name the unit, perhaps by its absolute path.
    pub pointers: Vec<String>,
    /// The root's directory, empty for the checkpoint directory; `None` for the rest.
    pub root: Option<String>,
    /// The training step.
    pub step: Option<u64>,
    /// What the framework loads; empty for the checkpoint directory.
    pub unit: Option<String>,
}

/// The last commit, as recorded in this directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Its parts.
    pub parts: Vec<PartRecord>,
    /// The files of the directory when the commit was planned, by path; at least those of the commit.
    pub entries: BTreeMap<String, Entry>,
    /// Timing of earlier saves of the rest; also in the manifest.
    #[serde(default)]
    pub timing: SaveTiming,
}

impl Committed {
    /// The part of this root; `None` for the rest.
    pub fn part(&self, root: Option<&str>) -> Option<&PartRecord> {
        self.parts.iter().find(|part| part.root.as_deref() == root)
    }
}

/// Timing of earlier saves of the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SaveTiming {
    /// The longest pause between two files of one save; `None` before the first.
    pub longest_pause: Option<Duration>,
    /// Files that changed together with another file in one save; numbers in their paths are replaced by `#`.
    pub together: BTreeSet<String>,
}

/// The history of one path.
#[derive(Debug)]
pub(super) struct Seen {
    entry: Entry,
    /// When a look first saw this version, on the monotonic clock.
    pub(super) since: Duration,
    /// The number of that look. 0: the version of the last commit, or the version at the start if there is no commit.
    pub(super) look: u64,
    /// The save that wrote it, counted in commits.
    pub(super) save: u64,
    /// Whether this path existed at the start.
    at_start: bool,
    /// Whether it replaced an earlier version.
    pub(super) is_rewritten: bool,
    is_text: bool,
    verdict: OnceCell<Result<(), String>>,
}

/// The history of every path.
#[derive(Debug, Default)]
pub struct History {
    seen: HashMap<String, Seen>,
    /// The number of the latest look.
    look: u64,
    /// The number of commits.
    pub(super) save: u64,
    /// The last commit.
    pub(super) last: Option<Committed>,
    /// Whether there are no earlier looks, so that the order of files within a save is always checked.
    pub(super) is_pushed: bool,
}

impl History {
    /// The history at a start.
    pub(super) fn begin(
        now: Duration,
        listing: &Listing,
        peek: &dyn Peek,
        last: Option<Committed>,
        is_pushed: bool,
    ) -> History {
        let mut history = History { last, is_pushed, look: 1, ..History::default() };
        for entry in listing.entries() {
            let look = u64::from(history.last.is_some() && history.is_fresh(entry));
            let seen = Seen { look, at_start: true, ..Seen::of(entry, now, peek) };
            history.seen.insert(entry.path.clone(), seen);
        }
        history
    }

    /// Adds a walk. Returns the paths that no longer exist.
    pub(super) fn update(&mut self, now: Duration, listing: &Listing, peek: &dyn Peek) -> Vec<String> {
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
                    ..Seen::of(entry, now, peek)
                },
            };
            self.seen.insert(entry.path.clone(), seen);
        }
        old.into_keys().collect()
    }

    pub(super) fn seen(&self, entry: &Entry) -> Option<&Seen> {
        self.seen.get(&entry.path)
    }

    /// Whether the entry is a text, which never delays a part.
    pub(super) fn is_text(&self, entry: &Entry) -> bool {
        self.seen(entry).is_some_and(|seen| seen.is_text)
    }

    /// Whether a change of the entry delays its part.
    pub(super) fn delays(&self, entry: &Entry) -> bool {
        entry.kind != Kind::Directory && !self.is_text(entry)
    }

    /// The number of the look that last saw a change of the entry.
    pub(super) fn look_of(&self, entry: &Entry) -> u64 {
        self.seen(entry).map_or(0, |seen| seen.look)
    }

    /// Whether the latest look saw a change of the entry.
    pub(super) fn is_new(&self, entry: &Entry) -> bool {
        self.look_of(entry) == self.look
    }

    /// Whether the entry existed at the start and has not changed since.
    pub(super) fn is_unchanged_since_start(&self, entry: &Entry) -> bool {
        self.seen(entry).is_some_and(|seen| seen.at_start && seen.look <= 1)
    }

    /// Whether the entry differs from its version in the last commit, or at the start. `None`: it did not exist then.
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

    /// Whether the entry has changed since the last commit, or is new.
    pub(super) fn is_fresh(&self, entry: &Entry) -> bool {
        self.last.as_ref().is_none_or(|last| last.entries.get(&entry.path).is_none_or(|e| !e.same_bytes(entry)))
    }

    /// Whether the file has the end that its type requires. It is read once for each change.
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
    fn of(entry: &Entry, now: Duration, peek: &dyn Peek) -> Seen {
        Seen {
            entry: entry.clone(),
            since: now,
            look: 0,
            save: 0,
            at_start: false,
            is_rewritten: false,
            is_text: entry.kind == Kind::File && rest::is_text(peek, entry),
            verdict: OnceCell::new(),
        }
    }
}

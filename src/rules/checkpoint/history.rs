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
    /// Every checkpoint of the root, `unit` included, each with the time that orders it, nanoseconds since 1970.
    pub units: BTreeMap<String, i64>,
}

/// Size, modification time and inode of the files and directories of a directory, by path.
pub type Beside = BTreeMap<String, (u64, i64, u64)>;

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
    /// When a look first saw the path, and the number of that look. 0: the path is in the last commit, or at the start.
    pub(super) born: (Duration, u64),
    /// Whether this path existed at the start.
    at_start: bool,
    /// Whether it changed in the life before the start.
    is_of_dead_life: bool,
    /// Whether it replaced an earlier version.
    pub(super) is_rewritten: bool,
    /// How often looks found it changed or open, in units of [`GREW`].
    heat: u32,
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
    /// The place of each complete unit among those of its root: the look and the time of its proof. It never changes
    /// while the unit is not saved over.
    placed: HashMap<String, (u64, i64)>,
    /// When each path of the last commit was first missing.
    gone: HashMap<String, Duration>,
}

/// The number of looks after which a problem is no longer waited for.
pub(super) const LOOKS: u64 = 10;
/// A look that found a file longer than before and without a known end, as a log or a large file that is being written.
const GREW: u32 = 1;
/// A look that found a file rewritten, or open without a change.
const REWRITTEN: u32 = 12;

impl History {
    /// The history at a start. `before`: the files when the life that has ended began, and those that it has committed; what
    /// differs was changed by that life.
    pub(super) fn begin(
        now: Duration,
        listing: &Listing,
        peek: &dyn Peek,
        last: Option<Committed>,
        before: Option<&Beside>,
    ) -> History {
        let mut history = History { last, look: 1, ..History::default() };
        for entry in listing.entries() {
            let look = u64::from(history.last.is_some() && history.is_fresh(entry));
            let is_of_dead_life = match entry.kind {
                Kind::Directory => before.is_some_and(|before| !before.contains_key(&entry.path)),
                _ => before.is_some_and(|before| before.get(&entry.path) != Some(&entry.signature())),
            };
            let born = u64::from(history.last.as_ref().is_some_and(|last| !last.entries.contains_key(&entry.path)));
            let seen = Seen { look, born: (now, born), at_start: true, is_of_dead_life, ..Seen::of(entry, now, peek) };
            history.seen.insert(entry.path.clone(), seen);
        }
        let parts = history.last.iter().flat_map(|last| &last.parts);
        history.placed = parts.flat_map(|part| &part.units).map(|(path, time)| (path.clone(), (0, *time))).collect();
        history
    }

    /// Adds a walk. `open`: the paths that are open for writing.
    pub(super) fn update(&mut self, now: Duration, listing: &Listing, peek: &dyn Peek, open: &BTreeSet<String>) {
        self.look += 1;
        let mut old = std::mem::take(&mut self.seen);
        for entry in listing.entries() {
            let seen = match old.remove(&entry.path) {
                Some(mut same) if same.entry.same_bytes(entry) => {
                    same.heat = match open.contains(&entry.path) {
                        true => same.heat + REWRITTEN,
                        false => same.heat.saturating_sub(REWRITTEN),
                    };
                    same
                }
                before => {
                    let is_whole = || ends::shows_its_end(peek, entry) && ends::whole(peek, entry).is_ok();
                    let more = match &before {
                        None => 0,
                        Some(before) if before.entry.size < entry.size && !is_whole() => GREW,
                        Some(_) => REWRITTEN,
                    };
                    Seen {
                        look: self.look,
                        save: self.save,
                        born: before.as_ref().map_or((now, self.look), |seen| seen.born),
                        at_start: before.as_ref().is_some_and(|seen| seen.at_start),
                        is_rewritten: before.is_some(),
                        heat: before.map_or(0, |seen| seen.heat) + more,
                        ..Seen::of(entry, now, peek)
                    }
                }
            };
            let most = REWRITTEN * LOOKS as u32;
            self.seen.insert(entry.path.clone(), Seen { heat: seen.heat.min(most), ..seen });
        }
        let committed = self.last.iter().flat_map(|last| &last.parts).flat_map(|part| &part.files);
        let missing = committed.filter(|path| !self.seen.contains_key(*path));
        self.gone = missing.map(|path| (path.clone(), *self.gone.get(path).unwrap_or(&now))).collect();
    }

    /// Every file and directory as the latest look saw it.
    pub(super) fn beside(&self) -> Beside {
        self.seen.values().map(|seen| (seen.entry.path.clone(), seen.entry.signature())).collect()
    }

    /// How long a path of the last commit has been missing; `None`: it exists.
    pub(super) fn gone_for(&self, now: Duration, path: &str) -> Option<Duration> {
        self.gone.get(path).map(|since| now.saturating_sub(*since))
    }

    /// Whether the life that has just ended, or the present one, changed the entry.
    pub(super) fn is_of_this_life(&self, entry: &Entry) -> bool {
        self.seen(entry).is_some_and(|seen| seen.look > 1 || seen.is_of_dead_life)
    }

    /// Whether the file changes at nearly every look, or is always open, as a database or a log.
    pub(super) fn is_hot(&self, entry: &Entry) -> bool {
        self.seen(entry).is_some_and(|seen| seen.heat >= REWRITTEN * LOOKS as u32)
    }

    /// The number of looks since the entry changed.
    pub(super) fn looks_since(&self, entry: &Entry) -> u64 {
        self.seen(entry).map_or(0, |seen| self.look - seen.look)
    }

    /// Whether no file of the directory existed at the start or is in the last commit.
    pub(super) fn is_new_directory(&self, listing: &Listing, directory: &str) -> bool {
        let is_old = |entry: &Entry| {
            let is_committed = self.last.as_ref().is_some_and(|last| last.entries.contains_key(&entry.path));
            is_committed || !self.is_of_this_life(entry)
        };
        !directory.is_empty() && !listing.below(directory).iter().any(|e| e.kind != Kind::Directory && is_old(e))
    }

    /// The place of a unit with these files among those of its root. `proof`: the file that is written last. A file that is
    /// added to a complete unit does not change its place.
    pub(super) fn place(&self, unit: &str, files: &[&Entry], proof: Option<&Entry>) -> (u64, i64) {
        let is_over = |look: u64| {
            files.iter().filter_map(|entry| self.seen(entry)).any(|seen| seen.born.1 <= look && seen.look > look)
        };
        let newest = || files.iter().map(|entry| (self.look_of(entry), entry.mtime_ns)).max().unwrap_or_default();
        match self.placed.get(unit) {
            Some(placed) if !is_over(placed.0) => *placed,
            _ => proof.map_or_else(newest, |proof| (self.look_of(proof), proof.mtime_ns)),
        }
    }

    /// Keeps the places of the complete units, and forgets those of units that are gone.
    pub(super) fn keep_places(&mut self, units: impl Iterator<Item = (String, (u64, i64))>) {
        self.placed = units.collect();
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
        entry.kind != Kind::Directory && !self.is_text(entry) && !self.is_hot(entry)
    }

    /// Whether the file is known to change together with others in each save.
    pub(super) fn is_together(&self, path: &str) -> bool {
        self.last.as_ref().is_some_and(|last| last.timing.together.contains(&rest::series(path)))
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
            born: (now, 0),
            at_start: false,
            is_of_dead_life: false,
            is_rewritten: false,
            heat: 0,
            is_text: entry.kind == Kind::File && rest::is_text(peek, entry),
            verdict: OnceCell::new(),
        }
    }
}

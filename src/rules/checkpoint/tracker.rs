//! Follows a checkpoint directory over time.
//!
//! Call [`Tracker::begin`] at a start, [`Tracker::look`] after each walk, [`Tracker::committed`] after a plan is committed,
//! and [`Tracker::after_death`] before the next attempt. Time is an argument, on the monotonic clock. Times of files are
//! compared only with each other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::formats::ends;
use super::formats::units::Scan;
use super::history::{Beside, Committed, History, LOOKS};
use super::listing::{Entry, Listing, Peek};
use super::saves::Saves;

/// The state of the processes that write checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// They run, or may run.
    Running,
    /// They exited with 0, or were asked to stop and exited within their grace.
    Finished,
    /// They died, perhaps in the middle of a save.
    Killed,
}

/// The input of a look.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// On the monotonic clock.
    pub now: Duration,
    /// The walk.
    pub scan: Scan<'a>,
    /// Paths that are open for writing; empty if that is unknown.
    pub open: &'a BTreeSet<String>,
    /// The step in the heartbeat file.
    pub heartbeat_step: Option<u64>,
    /// The state of the trainer.
    pub writer: Writer,
    /// The file system's time at the trainer's death, nanoseconds since 1970, if it is known.
    pub died_ns: Option<i64>,
    /// How long a part must be unchanged before it is ready.
    pub settle: Duration,
}

/// What the record of a directory tells about the life before.
#[derive(Debug, Clone, Default)]
pub struct Earlier {
    /// The files when that life began, and those that it has committed, or all files if it has finished writing. `None`:
    /// there is no record, so nothing is known to be of that life.
    pub before: Option<Beside>,
    /// See [`Rollback::unproven`](super::Rollback::unproven).
    pub unproven: Beside,
}

/// The knowledge from earlier looks.
#[derive(Debug, Default)]
pub struct Tracker {
    pub(super) history: History,
    pub(super) saves: Saves,
    /// When the writer was first seen dead.
    died: Option<Duration>,
    /// Whether a look was made while the writer ran.
    pub(super) has_run: bool,
    /// Whether the writer had finished at the last look.
    pub(super) has_finished: bool,
    pub(super) beside: Beside,
    /// Whole files that a killed writer left of a save that nothing proves. They wait until the trainer writes again.
    pub(super) unproven: Beside,
    pub(super) warnings: Warnings,
}

impl Tracker {
    /// At a start, or after a restore or a rollback. `last` is the newest commit, if this directory has made or
    /// restored it.
    pub fn begin(
        now: Duration,
        listing: &Listing,
        peek: &dyn Peek,
        last: Option<Committed>,
        earlier: Earlier,
    ) -> Tracker {
        let history = History::begin(now, listing, peek, last, earlier.before.as_ref());
        Tracker { beside: history.beside(), history, unproven: earlier.unproven, ..Tracker::default() }
    }

    /// For a caller without earlier looks (`push`, `list`): the order of files within a save is always checked.
    pub fn pushed(now: Duration, listing: &Listing, peek: &dyn Peek) -> Tracker {
        let mut history = History::begin(now, listing, peek, None, None);
        history.is_pushed = true;
        Tracker { beside: history.beside(), history, ..Tracker::default() }
    }

    /// The history, for [`partition`](super::partition).
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The files that wait until the trainer writes again, for `.trainit/committed.json`.
    pub fn unproven(&self) -> &Beside {
        &self.unproven
    }

    /// The files when the trainer's life began, and those that it has committed, or all files if it has finished writing,
    /// for `.trainit/committed.json`.
    pub fn beside(&self) -> &Beside {
        &self.beside
    }

    /// The last commit, for `.trainit/committed.json`.
    pub fn last(&self) -> Option<&Committed> {
        self.history.last.as_ref()
    }

    pub(super) fn update(&mut self, facts: &Facts) {
        self.history.update(facts.now, facts.scan.listing, facts.scan.peek, facts.open);
        match facts.writer {
            Writer::Killed => drop(self.died.get_or_insert(facts.now)),
            Writer::Running | Writer::Finished => self.died = None,
        }
    }

    /// How long the rest must be unchanged before it is ready.
    pub(super) fn wait(&self, facts: &Facts) -> Duration {
        self.saves.wait(facts.settle, &self.history)
    }

    /// How long a file has been unchanged, or was unchanged at the death of its writer.
    pub(super) fn still(&self, facts: &Facts, entry: &Entry) -> Duration {
        let since = self.history.seen(entry).map_or(facts.now, |seen| seen.since);
        let seen = self.died.unwrap_or(facts.now).saturating_sub(since);
        // The last look may have been long before the death.
        let by_times = facts.died_ns.map_or(0, |died| died.saturating_sub(entry.mtime_ns.max(entry.ctime_ns)));
        seen.max(Duration::from_nanos(u64::try_from(by_times).unwrap_or(0)))
    }

    /// Whether this is a single whole file, and no other file changed with it in earlier saves.
    pub(super) fn is_one_whole(&self, facts: &Facts, files: &[&Entry]) -> bool {
        let &[entry] = files else { return false };
        let is_alone = !self.history.is_together(&entry.path) && !self.saves.is_together(&entry.path);
        let peek = facts.scan.peek;
        is_alone && ends::shows_its_end(peek, entry) && self.history.whole(peek, entry).is_ok()
    }

    /// Whether a file was torn at the start and has not changed since. Such a file is ignored.
    pub(super) fn is_torn_since_start(&self, scan: &Scan, entry: &Entry) -> bool {
        let is_old =
            self.history.is_unchanged_since_start(entry) && !self.history.is_pushed && self.history.is_fresh(entry);
        is_old && !self.history.is_text(entry) && self.history.whole(scan.peek, entry).is_err()
    }
}

/// Why a part is not ready: the kind of problem, the path, and the text.
pub(super) type Trouble = (&'static str, String, String);

/// The path that each part waits for, and the number of looks.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    waits: BTreeMap<Option<String>, (String, u64)>,
    warned: BTreeSet<String>,
}

impl Warnings {
    /// Takes what a look found for each part, by its root. Returns a due warning, once for each path: one line that says what
    /// waits and what to do.
    pub(super) fn due(
        &mut self,
        parts: impl Iterator<Item = (Option<String>, Option<Trouble>)>,
        given_up: Option<(String, String)>,
    ) -> Option<String> {
        let given_up = given_up.filter(|(path, _)| self.warned.insert(path.clone()));
        let mut due = given_up.map(|(_, why)| {
            format!("{why}, and it has not changed for long: it is not committed, and everything else is; remove it, or set --checkpoint-exclude with its name")
        });
        for (root, trouble) in parts {
            let Some((code, path, why)) = trouble else {
                self.waits.remove(&root);
                continue;
            };
            let wait = self.waits.entry(root).or_default();
            if wait.0 != path {
                *wait = (path.clone(), 0);
            }
            wait.1 += 1;
            if wait.1 >= LOOKS && due.is_none() && self.warned.insert(path.clone()) {
                let way_out = match code {
                    "incomplete" => {
                        "if no more files are written, set --checkpoint-format tree, or --checkpoint-exclude with its name"
                    }
                    "torn" => "remove it, or set --checkpoint-exclude with its name",
                    _ => "if it is not part of a checkpoint, set --checkpoint-exclude with its name",
                };
                due = Some(format!("{why}, for {LOOKS} looks, so its new content is not committed; {way_out}"));
            }
        }
        due
    }

    pub(super) fn reset(&mut self) {
        self.waits.clear();
    }
}

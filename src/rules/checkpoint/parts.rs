//! Whether each root is ready: its complete units, the time since their last change, and what lies beside them.

use std::collections::BTreeSet;
use std::time::Duration;

use super::formats::engine::partition;
use super::formats::layouts::{Proof, is_numbered};
use super::formats::readers::{dcp, huggingface};
use super::formats::units::{Partition, Root, Unit, UnitState};
use super::listing::{Entry, Kind, around, end_of, is_below, is_of_unit, join, name_of, parent_of};
use super::saves::LONGEST_WAIT;
use super::tracker::{Facts, Tracker, Trouble, Writer};

/// Whether a part can be committed. The texts are one clause and name a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Nothing is new since the last commit.
    Committed,
    /// It can be committed now.
    Ready,
    /// It changed a moment ago.
    Settling(String),
    /// A file is missing, or the save is not proven.
    Incomplete(String),
    /// A file is cut short.
    Torn(String),
    /// Nothing proves that the save was finished: the writer died, or this is a single look.
    Unproven(String),
    /// It has no files.
    Empty,
}

/// The state of one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartState {
    /// The root's directory; `None` for the rest.
    pub root: Option<String>,
    /// The format's name.
    pub layout: Option<&'static str>,
    /// Its newest complete unit, or else its newest.
    pub unit: Option<String>,
    /// Its step.
    pub step: Option<u64>,
    /// Number of its files.
    pub files: usize,
    /// Their sizes together.
    pub bytes: u64,
    /// Whether it can be committed.
    pub state: State,
}

/// One part of a look.
pub(super) struct Part<'a> {
    /// `None` for the rest.
    pub(super) root: Option<&'a Root<'a>>,
    /// The units that a commit takes, the newest first; if it takes none, the newest unit.
    pub(super) units: Vec<&'a Unit<'a>>,
    /// The files and links that a commit takes from the directory.
    pub(super) files: Vec<&'a Entry>,
    /// Entries that no commit takes, because newer ones are kept.
    pub(super) older: Vec<&'a Entry>,
    pub(super) state: State,
    /// The path that keeps it from being ready.
    pub(super) blocker: Option<String>,
    /// Whether files other than texts are new.
    pub(super) has_content: bool,
    /// The time until it, or more of it, may be ready.
    pub(super) again: Option<Duration>,
    /// A torn path that holds nothing back any more, and why it is torn.
    pub(super) given_up: Option<(String, String)>,
}

/// Why something cannot be committed yet, the path, and the time until it may be.
pub(super) struct Held<'a> {
    pub(super) state: State,
    pub(super) path: &'a str,
    pub(super) again: Option<Duration>,
}

impl<'a> Part<'a> {
    pub(super) fn root_dir(&self) -> Option<&'a str> {
        self.root.map(|root| root.dir.as_str())
    }

    /// Whether it is ready as soon as nothing changes.
    pub(super) fn is_settled_only(&self) -> bool {
        self.root.is_none_or(Root::is_unprovable)
    }

    /// The newest unit.
    pub(super) fn unit(&self) -> Option<&'a Unit<'a>> {
        self.units.first().copied()
    }

    /// What it waits for, if something is new.
    pub(super) fn waits_for(&self) -> Option<Trouble> {
        let (code, why) = match &self.state {
            State::Committed | State::Ready | State::Empty => return None,
            State::Settling(why) => ("settling", why),
            State::Incomplete(why) => ("incomplete", why),
            State::Torn(why) => ("torn", why),
            State::Unproven(why) => ("unproven", why),
        };
        let path = self.blocker.clone().or_else(|| self.unit().map(|unit| unit.path.clone())).unwrap_or_default();
        Some((code, path, why.clone()))
    }

    pub(super) fn report(&self) -> PartState {
        let torn = self.given_up.as_ref().filter(|_| matches!(self.state, State::Committed | State::Empty));
        let files = self.files.iter().filter(|entry| entry.kind == Kind::File);
        PartState {
            root: self.root_dir().map(str::to_owned),
            layout: self.root.map(|root| root.layout.name),
            unit: self.unit().map(|unit| unit.path.clone()),
            step: self.unit().and_then(|unit| unit.step),
            files: files.clone().count(),
            bytes: files.map(|file| file.size).sum(),
            state: torn.map_or_else(|| self.state.clone(), |(_, why)| State::Torn(why.clone())),
        }
    }

    /// Marks the part as not ready.
    pub(super) fn held(&mut self, held: Held) {
        (self.state, self.blocker, self.again) = (held.state, Some(held.path.to_owned()), held.again);
    }
}

impl Tracker {
    /// The state of every part at a single look, which cannot see whether files still change. Complete are only the parts
    /// that a format proves, or one file with its known end.
    pub fn listed(&mut self, facts: &Facts) -> Vec<PartState> {
        self.update(facts);
        let found = partition(&facts.scan, &self.history);
        let mut parts = self.parts(facts, &found);
        for part in &mut parts {
            if let Some((path, why)) = part.given_up.take() {
                (part.state, part.blocker) = (State::Torn(why), Some(path));
                part.files.clone_from(&found.rest);
            }
        }
        for part in parts.iter_mut().filter(|part| part.state == State::Ready && part.is_settled_only()) {
            let is_counted = |entry: &&Entry| {
                entry.kind == Kind::File && self.history.is_fresh(entry) && !self.history.is_text(entry)
            };
            let files: Vec<&Entry> = part.files.iter().copied().filter(is_counted).collect();
            if let Some(entry) = files.first().filter(|_| !self.is_one_whole(facts, &files)) {
                let why = "nothing proves that it is finished; a run commits it once it stops changing".to_owned();
                part.held(Held { state: State::Unproven(why), path: &entry.path, again: None });
            }
        }
        parts.iter().map(Part::report).collect()
    }

    /// Every part, the roots first.
    pub(super) fn parts<'a>(&self, facts: &Facts, found: &'a Partition<'a>) -> Vec<Part<'a>> {
        let roots = found.roots.iter().map(|root| self.root_part(facts, found, root));
        roots.chain([self.rest_part(facts, found)]).collect()
    }

    fn root_part<'a>(&self, facts: &Facts, found: &'a Partition<'a>, root: &'a Root<'a>) -> Part<'a> {
        let record = self.history.part(Some(&root.dir));
        let is_fresh = |entry: &&Entry| entry.kind != Kind::Directory && self.history.is_fresh(entry);
        let is_committed = |unit: &Unit| {
            record.is_some_and(|record| record.units.contains_key(&unit.path)) && !unit.members.iter().any(is_fresh)
        };
        let (mut units, mut older, mut waits) = (Vec::new(), Vec::new(), None);
        let is_gone = |unit: &String| {
            let files = record.iter().flat_map(|record| &record.files);
            files.filter(|path| is_of_unit(path, unit)).all(|path| self.is_gone(facts, path))
        };
        // A newer save of the last commit that is being rewritten, or was deleted a moment ago, stays in the commit and takes
        // the place of an older one.
        let carried = |at: usize, taken: &[&Unit]| {
            let is_carried = |unit: &String, time: i64| match root.units.iter().position(|other| other.path == *unit) {
                Some(place) => place < at && !taken.iter().any(|taken| taken.path == *unit),
                None => time > root.units[at].place.1 && !is_gone(unit),
            };
            let committed = record.iter().flat_map(|record| &record.units);
            committed.filter(|(unit, time)| is_carried(unit, **time)).count()
        };
        for (at, unit) in root.units.iter().enumerate() {
            let is_kept = units.len() + carried(at, &units) < facts.scan.options.kept_units();
            let checked = match unit.state {
                UnitState::Incomplete(_) => continue,
                _ if !is_kept => Ok(()),
                _ if is_committed(unit) => Ok(()),
                _ => self.unit_ready(facts, root, at),
            };
            match checked {
                Err(held) => drop(waits.get_or_insert(held)),
                Ok(()) if is_kept => units.push(unit),
                Ok(()) => older.push(unit),
            }
            // The pointer names the newest unit, so an older one is not committed without it.
            if waits.is_some() && matches!(root.layout.proof, Proof::Pointed(_)) {
                break;
            }
        }
        let best = units.first().and_then(|newest| {
            let (file, field) = root.layout.best?;
            let name = huggingface::named(&facts.scan, &join(&newest.path, file), field)?;
            older.iter().position(|unit| unit.key == name && self.is_whole(facts, unit))
        });
        units.extend(best.map(|at| older.remove(at)));
        let pointers = self.pointers(facts, root, &units);
        let files: Vec<&Entry> = units.iter().flat_map(|unit| &unit.members).copied().chain(pointers).collect();
        let new = || files.iter().copied().filter(|entry| is_fresh(entry) && entry.kind == Kind::File);
        let mut part = Part {
            root: Some(root),
            has_content: new().any(|entry| !self.history.is_text(entry)),
            older: older.iter().flat_map(|unit| &unit.members).copied().collect(),
            state: State::Committed,
            blocker: None,
            again: waits.as_ref().and_then(|held| held.again),
            given_up: None,
            units,
            files,
        };
        let newest = &root.units[0];
        if let Some(held) = self.siblings(facts, found, root, &part.units) {
            part.held(held);
        } else if part.units.iter().any(|unit| !is_committed(unit)) || part.files.iter().any(is_fresh) {
            part.state = State::Ready;
        } else if let Some(held) = waits {
            part.held(held);
        } else if let UnitState::Incomplete(why) = &newest.state
            && (record.is_none() || newest.members.iter().any(is_fresh))
        {
            part.held(Held { state: State::Incomplete(why.clone()), path: &newest.path, again: None });
        }
        if part.units.is_empty() {
            let good = root.units.iter().find(|unit| unit.is_good()).unwrap_or(newest);
            (part.units, part.files) = (vec![good], good.members.clone());
        }
        part
    }

    /// Whether a complete unit can be committed now. It needs the time `--settle` without a change if its format, its
    /// known end or a newer unit shows that it is finished, no time if two of these do, and a quiet period otherwise.
    fn unit_ready<'a>(&self, facts: &Facts, root: &'a Root<'a>, at: usize) -> Result<(), Held<'a>> {
        let unit = &root.units[at];
        let is_proven = !root.is_unprovable() && !self.is_half_of_a_directory(facts, root);
        let newer = || root.units[..at].iter().filter(|newer| newer.series() == unit.series());
        let begun = |newer: &Unit| newer.leaves().map(|entry| entry.mtime_ns).min();
        let ended = unit.leaves().map(|entry| entry.mtime_ns).max();
        let later = newer().filter(|newer| begun(newer) > ended).count();
        let is_shown = is_proven || self.is_one_whole(facts, &unit.leaves().collect::<Vec<_>>());
        let wait = match (&unit.state, facts.writer) {
            (_, Writer::Finished) => Duration::ZERO,
            (UnitState::Unproven(_), _) => LONGEST_WAIT.max(facts.settle),
            (_, Writer::Killed) if is_shown => Duration::ZERO,
            _ if usize::from(is_shown) + later > 1 => Duration::ZERO,
            _ if is_shown || newer().next().is_some() => facts.settle,
            _ => self.wait(facts),
        };
        let is_pointed = matches!(root.layout.proof, Proof::Pointed(_));
        let pointers = root.pointers.iter().filter(|_| is_pointed).copied();
        self.settled(facts, unit.leaves().chain(pointers).filter(|entry| self.history.delays(entry)), wait).map_err(
            |held| match &unit.state {
                UnitState::Unproven(why) if matches!(held.state, State::Settling(_)) => {
                    Held { state: State::Incomplete(why.clone()), ..held }
                }
                _ => held,
            },
        )
    }

    fn is_whole(&self, facts: &Facts, unit: &Unit) -> bool {
        unit.members.iter().all(|entry| self.history.whole(facts.scan.peek, entry).is_ok())
    }

    /// Whether the root is a new directory that is itself one checkpoint of a series, such as `checkpoint-100` with
    /// `pytorch_model_fsdp_0` in it. Then a complete unit in it proves nothing about the rest of it.
    fn is_half_of_a_directory(&self, facts: &Facts, root: &Root) -> bool {
        is_numbered(name_of(&root.dir), true) && self.history.is_new_directory(facts.scan.listing, &root.dir)
    }

    /// Until a root has been committed, or has two units of one series, what lies beside its units may be of the same save:
    /// it must be quiet, and no unit of another series may be incomplete.
    fn siblings<'a>(
        &self,
        facts: &Facts,
        found: &'a Partition<'a>,
        root: &'a Root<'a>,
        units: &[&Unit],
    ) -> Option<Held<'a>> {
        let series: BTreeSet<String> = units.iter().map(|unit| unit.series()).collect();
        let is_shown = root.dir.is_empty() || series.len() < units.len() || units.is_empty();
        if is_shown || self.history.part(Some(&root.dir)).is_some() {
            return None;
        }
        let is_odd = |unit: &&Unit| matches!(unit.state, UnitState::Incomplete(_)) && !series.contains(&unit.series());
        if let Some(odd) = root.units.iter().find(is_odd)
            && let UnitState::Incomplete(why) = &odd.state
        {
            return Some(Held { state: State::Incomplete(why.clone()), path: &odd.path, again: None });
        }
        let is_taken = |unit: &&Unit| units.iter().any(|taken| taken.path == unit.path);
        let others = root.units.iter().filter(|unit| !is_taken(unit)).flat_map(|unit| &unit.members);
        let beside = others.chain(found.rest.iter().filter(|entry| is_below(&entry.path, &root.dir))).copied();
        let beside = beside.filter(|entry| self.history.delays(entry));
        self.settled(facts, beside, if facts.writer == Writer::Finished { Duration::ZERO } else { self.wait(facts) })
            .err()
    }

    /// The pointers that a commit of these units takes: unchanged ones, and those that have settled and lead to a unit.
    fn pointers<'a>(&self, facts: &Facts, root: &'a Root<'a>, units: &[&'a Unit<'a>]) -> Vec<&'a Entry> {
        let is_there = |entry: &Entry| {
            let Kind::Symlink(target) = &entry.kind else { return true };
            let all = || units.iter().flat_map(|unit| &unit.members);
            let end = end_of(&entry.path, target);
            end.is_some_and(|end| all().any(|entry| around(&entry.path).any(|outer| outer == end)))
        };
        let is_settled = |entry: &Entry| {
            facts.writer != Writer::Running || !self.history.is_fresh(entry) || self.still(facts, entry) >= facts.settle
        };
        let all = root.pointers.iter().copied();
        all.filter(|entry| !units.is_empty() && is_there(entry) && is_settled(entry)).collect()
    }

    /// Why the file is not whole. The shards of a distributed checkpoint are not whole without its metadata.
    pub(super) fn torn(&self, facts: &Facts, entry: &Entry) -> Option<String> {
        if let Err(why) = self.history.whole(facts.scan.peek, entry) {
            return Some(why);
        }
        if self.history.is_fresh(entry) && entry.kind == Kind::File && dcp::is_shard(entry.name()) {
            return dcp::whole(&facts.scan, parent_of(&entry.path)).err();
        }
        None
    }

    /// Checks that files have not changed for the time `wait`, and that none is open for writing.
    pub(super) fn settled<'a>(
        &self,
        facts: &Facts,
        files: impl Iterator<Item = &'a Entry> + Clone,
        wait: Duration,
    ) -> Result<(), Held<'a>> {
        let counted = || files.clone().filter(|entry| entry.kind != Kind::Directory && !self.history.is_hot(entry));
        let is_open = |entry: &&Entry| facts.writer == Writer::Running && facts.open.contains(&entry.path);
        if let Some(Entry { path, .. }) = counted().find(is_open) {
            let state = State::Settling(format!("{path} is open for writing"));
            return Err(Held { state, path, again: Some(facts.settle) });
        }
        let youngest = counted().map(|entry| (self.still(facts, entry), &entry.path)).min();
        let Some((still, path)) = youngest.filter(|(still, _)| *still < wait) else { return Ok(()) };
        Err(match facts.writer {
            Writer::Killed => Held {
                state: State::Unproven(format!("{path} changed just before the trainer died")),
                path,
                again: None,
            },
            _ => {
                let state = State::Settling(format!("{path} changed a moment ago"));
                Held { state, path, again: Some(wait - still) }
            }
        })
    }
}

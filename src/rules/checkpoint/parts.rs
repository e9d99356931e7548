//! Whether each part is ready: the time since its last change, torn files, and what is proven after a death of the
//! trainer.

use std::time::Duration;

use super::formats::engine::partition;
use super::formats::layouts::{Also, pattern};
use super::formats::readers::huggingface;
use super::formats::rest;
use super::formats::units::{Partition, Root, Scan, Unit, UnitState};
use super::listing::{Entry, Kind, join};
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
    /// The newest complete unit, else the newest.
    pub(super) unit: Option<&'a Unit<'a>>,
    /// Its files and links.
    pub(super) files: Vec<&'a Entry>,
    /// Entries that belong to the part but not to its unit: older units and pointers.
    pub(super) covered: Vec<&'a Entry>,
    pub(super) state: State,
    /// The path that keeps it from being ready.
    blocker: Option<String>,
    /// Whether files other than texts are new.
    pub(super) has_content: bool,
    /// Whether its files equal those of the last commit, so that the next commit can use them.
    is_intact: bool,
    /// The time until it may be ready.
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

    /// Whether a commit takes its files from the directory.
    pub(super) fn is_taken(&self) -> bool {
        self.state == State::Ready || self.state == State::Committed && self.is_intact
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
        let path = self.blocker.clone().or_else(|| self.unit.map(|unit| unit.path.clone())).unwrap_or_default();
        Some((code, path, why.clone()))
    }

    pub(super) fn report(&self) -> PartState {
        let files = self.files.iter().filter(|entry| entry.kind == Kind::File);
        PartState {
            root: self.root_dir().map(str::to_owned),
            layout: self.root.map(|root| root.layout.name),
            unit: self.unit.map(|unit| unit.path.clone()),
            step: self.unit.and_then(|unit| unit.step),
            files: files.clone().count(),
            bytes: files.map(|file| file.size).sum(),
            state: self.state.clone(),
        }
    }

    /// Marks the part as not ready, because of this path.
    fn held(&mut self, state: State, path: &str) {
        (self.state, self.blocker) = (state, Some(path.to_owned()));
    }
}

impl Tracker {
    /// The state of every part at a single look, which cannot see whether files still change. Complete are only the parts
    /// that a format proves, or one file with its known end.
    pub fn listed(&mut self, facts: &Facts) -> Vec<PartState> {
        self.update(facts);
        let found = partition(&facts.scan, &self.history);
        let mut parts = self.parts(facts, &found);
        for part in parts.iter_mut().filter(|part| part.state == State::Ready && part.is_settled_only()) {
            let is_counted = |entry: &&Entry| {
                entry.kind == Kind::File && self.history.is_fresh(entry) && !self.history.is_text(entry)
            };
            let files: Vec<&Entry> = part.files.iter().copied().filter(is_counted).collect();
            if let Some(entry) = files.first().filter(|_| !self.is_one_whole(facts, &files)) {
                let why = "nothing proves that it is finished; a run commits it once it stops changing".to_owned();
                part.held(State::Unproven(why), &entry.path);
            }
        }
        parts.iter().map(Part::report).collect()
    }

    /// Every part, the roots first.
    pub(super) fn parts<'a>(&self, facts: &Facts, found: &'a Partition<'a>) -> Vec<Part<'a>> {
        let roots = found.roots.iter().map(|root| self.root_part(facts, root));
        roots.chain([self.rest_part(facts, found)]).collect()
    }

    fn root_part<'a>(&self, facts: &Facts, root: &'a Root<'a>) -> Part<'a> {
        let (newest, at) = (&root.units[0], root.units.iter().position(Unit::is_good).unwrap_or(0));
        let unit = &root.units[at];
        let record = self.history.part(Some(&root.dir));
        let files: Vec<&Entry> = unit.members.iter().chain(&root.pointers).copied().collect();
        let is_fresh = |entry: &&Entry| entry.kind == Kind::File && self.history.is_fresh(entry);
        let older = root.units[at..].iter().flat_map(|unit| &unit.members);
        let mut part = Part {
            root: Some(root),
            unit: Some(unit),
            files: unit.members.clone(),
            covered: older.chain(&root.pointers).copied().collect(),
            state: State::Committed,
            blocker: None,
            has_content: files.iter().any(|entry| is_fresh(entry) && !self.history.is_text(entry)),
            is_intact: unit.is_good() && record.is_some_and(|record| record.unit.as_deref() == Some(&unit.path)),
            again: None,
        };
        if !unit.is_good() || record.is_some() && !files.iter().any(is_fresh) {
            if let UnitState::Incomplete(why) = &newest.state
                && (record.is_none() || newest.members.iter().any(is_fresh))
            {
                part.held(State::Incomplete(why.clone()), &newest.path);
            }
            return part;
        }
        let is_proven = unit.state == UnitState::Complete && !root.is_unprovable();
        let is_ended = || unit.state == UnitState::Complete && self.is_one_whole(facts, &unit.members);
        let wait = match (&unit.state, facts.writer) {
            (_, Writer::Finished) => Duration::ZERO,
            (UnitState::Complete, Writer::Killed) if is_proven || is_ended() => Duration::ZERO,
            (UnitState::Unproven(_), _) => LONGEST_WAIT.max(facts.settle),
            _ if is_proven => facts.settle,
            _ => self.wait(facts),
        };
        self.settle(facts, &mut part, &files, wait);
        if let (UnitState::Unproven(why), State::Settling(_)) = (&unit.state, &part.state) {
            part.held(State::Incomplete(why.clone()), &newest.path);
        }
        part
    }

    fn rest_part<'a>(&self, facts: &Facts, found: &'a Partition<'a>) -> Part<'a> {
        let scan = &facts.scan;
        let is_whole = |entry: &&Entry| !self.is_torn_since_start(scan, entry);
        let covered: Vec<&Entry> = found.rest.iter().copied().filter(is_whole).collect();
        let files = rest::kept(scan.options.keep_saves, &self.history, &covered);
        let (texts, save): (Vec<&Entry>, Vec<&Entry>) = files
            .iter()
            .copied()
            .filter(|entry| self.history.is_fresh(entry))
            .partition(|entry| self.history.is_text(entry));
        let wait = if facts.writer == Writer::Finished { Duration::ZERO } else { self.wait(facts) };
        let is_deleting = self.saves.is_deleting(facts.now, wait);
        let (has_content, is_intact) = (!save.is_empty(), !is_deleting);
        let state = if files.is_empty() { State::Empty } else { State::Committed };
        let (blocker, again) = (None, None);
        let mut part = Part { root: None, unit: None, files, covered, state, blocker, has_content, is_intact, again };
        if part.files.is_empty() {
            return part;
        }
        if let (Some(marker), true) = (&scan.options.marker, found.roots.is_empty()) {
            part.state = State::Incomplete(format!("no directory holds {marker} yet"));
            return part;
        }
        if save.is_empty() && !texts.iter().any(|text| self.still(facts, text) >= wait) {
            return part;
        }
        if facts.writer == Writer::Killed && self.is_one_whole(facts, &save) {
            part.state = State::Ready;
        } else {
            let files = part.files.clone();
            self.settle(facts, &mut part, &files, wait);
        }
        if is_deleting && part.state == State::Ready {
            (part.state, part.again) = (State::Settling("files are being deleted".to_owned()), Some(wait));
        }
        let torn = || save.iter().find_map(|entry| Some((entry, self.history.whole(scan.peek, entry).err()?)));
        if part.state == State::Ready
            && let Some((entry, why)) = torn()
        {
            part.held(State::Torn(why), &entry.path);
        }
        part
    }

    /// Checks that the files of a part have not changed for the time `wait`, and that none is open for writing.
    fn settle(&self, facts: &Facts, part: &mut Part, files: &[&Entry], wait: Duration) {
        let counted = || files.iter().filter(|entry| self.history.delays(entry));
        let is_open = |entry: &&&Entry| facts.writer == Writer::Running && facts.open.contains(&entry.path);
        if let Some(entry) = counted().find(is_open) {
            part.held(State::Settling(format!("{} is open for writing", entry.path)), &entry.path);
            part.again = Some(facts.settle);
            return;
        }
        let youngest = counted().map(|entry| (self.still(facts, entry), &entry.path)).min();
        let Some((still, path)) = youngest.filter(|(still, _)| *still < wait) else {
            part.state = State::Ready;
            return;
        };
        if facts.writer == Writer::Killed {
            part.held(State::Unproven(format!("{path} changed just before the trainer died")), path);
        } else {
            part.held(State::Settling(format!("{path} changed a moment ago")), path);
            part.again = Some(wait - still);
        }
    }

    /// The units of a root that are committed together with this one.
    pub(super) fn also<'a>(&self, scan: &Scan, root: &'a Root<'a>, unit: &Unit) -> Vec<&'a Unit<'a>> {
        let others = || root.units.iter().filter(|other| other.path != unit.path);
        let is_whole = |other: &&Unit| {
            !matches!(other.state, UnitState::Incomplete(_))
                && other.members.iter().all(|entry| self.history.whole(scan.peek, entry).is_ok())
        };
        let also = root.layout.also.iter().filter_map(|also| match also {
            Also::Named { file, field } => {
                let name = huggingface::named(scan, &join(&unit.path, file), field)?;
                others().find(|other| other.key == name)
            }
            Also::Newest(text) if pattern(text).is_match(&unit.key) => None,
            Also::Newest(text) => others().find(|other| pattern(text).is_match(&other.key)),
        });
        also.filter(is_whole).collect()
    }
}

//! The result of a look: the state of each part, the files of the next commit, and the parts carried over from the last
//! commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::formats::engine::partition;
use super::formats::units::{Partition, Scan, Unit, UnitState};
use super::formats::{ends, rest};
use super::history::{Committed, History, PartRecord, SaveTiming};
use super::listing::{Entry, Kind, around, is_of_unit};
use super::parts::{Part, PartState, State};
use super::tracker::{Facts, Tracker, Writer};

/// The result of a look.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// Each part, roots first.
    pub parts: Vec<PartState>,
    /// The next commit, if a part is ready.
    pub plan: Option<Plan>,
    /// The step of the newest unit, complete or not.
    pub newest_step: Option<u64>,
    /// The time until a part may be ready.
    pub again: Option<Duration>,
    /// A warning that something waits for too long: one line that says what to do.
    pub warning: Option<String>,
    /// A path whose present version is neither in the last commit nor in the plan.
    pub uncommitted: Option<String>,
}

/// The content of a commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Its parts.
    pub parts: Vec<PlanPart>,
    /// Every file of every part, sorted by path.
    pub files: Vec<PlanFile>,
    /// The step of the newest unit, from `--step-regex`, or from the heartbeat.
    pub step: Option<u64>,
    /// The checkpoint that a restore resumes from.
    pub resume: Resume,
    /// For the manifest.
    pub timing: SaveTiming,
    /// Whether there is new content other than texts, which counts as progress for the restart budget.
    pub is_new_content: bool,
    /// The walk that it was made from; [`Committed::entries`] after the commit.
    pub seen: Arc<BTreeMap<String, Entry>>,
    /// Complete checkpoints that are not in it, because `--keep-saves` newer ones are.
    pub older: Vec<String>,
}

impl Plan {
    /// The entries to take from the directory, and whether each is a text.
    pub fn local(&self) -> impl Iterator<Item = (&Entry, bool)> + Clone {
        self.files.iter().filter_map(|file| match file {
            PlanFile::Local { entry, is_text } => Some((entry, *is_text)),
            PlanFile::Carried(_) => None,
        })
    }

    /// The regular files to take from the directory.
    pub fn local_files(&self) -> impl Iterator<Item = &Entry> + Clone {
        self.local().map(|(entry, _)| entry).filter(|entry| entry.kind == Kind::File)
    }
}

/// One part of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanPart {
    /// For the manifest.
    pub record: PartRecord,
    /// Whether it is carried over unchanged from the last commit.
    pub carried: bool,
}

/// One file of a commit.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanFile {
    /// A file of the directory.
    Local {
        /// As it was seen.
        entry: Entry,
        /// Copied once, at the size seen; a change during the upload does not matter.
        is_text: bool,
    },
    /// The last commit's item of this path, unchanged.
    Carried(String),
}

/// The checkpoint that the trainer resumes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// The unit; `None` for the checkpoint directory itself.
    pub unit: Option<String>,
    /// Its step.
    pub step: Option<u64>,
}

impl Tracker {
    /// The state of the directory, and the next commit.
    pub fn look(&mut self, facts: &Facts) -> Look {
        self.update(facts);
        self.has_run |= facts.writer == Writer::Running;
        self.has_finished = facts.writer == Writer::Finished;
        let found = partition(&facts.scan, &self.history);
        self.note_units(&found);
        self.saves.note_changes(facts.now, facts.settle, &found, &self.history);
        if self.writes_again(&found) {
            self.unproven.clear();
        }
        let parts = self.parts(facts, &found);
        let waits = parts.iter().map(|part| (part.root_dir().map(str::to_owned), part.waits_for()));
        let given_up = parts.iter().find_map(|part| part.given_up.clone());
        let warning = self.warnings.due(waits, given_up);
        let newest = found.roots.iter().filter_map(|root| root.units.first());
        let plan = self.plan(facts, &found, &parts);
        let seen = plan.as_ref().map(|plan| plan.seen.as_ref()).or(self.last().map(|last| &last.entries));
        let older: BTreeSet<&str> =
            parts.iter().flat_map(|part| &part.older).map(|entry| entry.path.as_str()).collect();
        let is_in = |entry: &Entry| {
            let is_seen = seen.is_some_and(|seen| seen.get(&entry.path).is_some_and(|then| then.same_bytes(entry)));
            is_seen || entry.kind == Kind::Directory || older.contains(entry.path.as_str())
        };
        let units = found.roots.iter().flat_map(|root| root.units.iter().filter(|unit| unit.state != UnitState::Older));
        let leaves = units.flat_map(|unit| &unit.members).chain(&found.rest);
        Look {
            uncommitted: leaves.copied().find(|entry| !is_in(entry)).map(|entry| entry.path.clone()),
            plan,
            newest_step: newest.max_by_key(|unit| unit.age()).and_then(|unit| unit.step),
            again: parts.iter().filter_map(|part| part.again).min(),
            warning,
            parts: parts.iter().map(Part::report).collect(),
        }
    }

    /// The plan was committed: its manifest is in the store.
    pub fn committed(&mut self, plan: &Plan) {
        let parts = plan.parts.iter().map(|part| part.record.clone()).collect();
        let entries = plan.seen.as_ref().clone();
        self.history.last = Some(Committed { parts, entries, timing: plan.timing.clone() });
        self.history.save += 1;
        if self.has_finished {
            self.beside = self.history.beside();
        }
        self.beside.extend(plan.seen.values().map(|entry| (entry.path.clone(), entry.signature())));
        self.saves.committed();
        self.warnings.reset();
    }

    /// Keeps the place of each unit that is complete, or was and is too old to be judged.
    fn note_units(&mut self, found: &Partition) {
        let units = found.roots.iter().flat_map(|root| &root.units);
        let kept = units.filter(|unit| !matches!(unit.state, UnitState::Incomplete(_)));
        self.history.keep_places(kept.map(|unit| (unit.path.clone(), unit.place)));
    }

    /// Whether the trainer has written more of the rest, so that what a killed trainer left is judged with it.
    fn writes_again(&self, found: &Partition) -> bool {
        let is_written = |entry: &&&Entry| self.history.is_new(entry) && self.history.delays(entry);
        self.has_run && found.rest.iter().any(|entry| is_written(&entry))
    }

    /// The next commit, if a part has something new and is ready, or if something was deleted.
    fn plan(&self, facts: &Facts, found: &Partition, parts: &[Part]) -> Option<Plan> {
        let last = self.history.last.as_ref();
        let ready = || parts.iter().filter(|part| part.state == State::Ready);
        let mut files: BTreeMap<String, PlanFile> = BTreeMap::new();
        let mut planned = Vec::new();
        for part in ready() {
            let names: BTreeSet<&str> = part.files.iter().map(|entry| entry.path.as_str()).collect();
            let pointers = part.root.iter().flat_map(|root| &root.pointers).map(|entry| &entry.path);
            let units = part.units.iter().map(|unit| (unit.path.clone(), unit.place.1));
            let record = PartRecord {
                root: part.root_dir().map(str::to_owned),
                layout: part.root.map(|root| root.layout.name.to_owned()),
                unit: part.unit().map(|unit| unit.path.clone()),
                step: part.unit().and_then(|unit| unit.step),
                files: names.iter().map(|path| (*path).to_owned()).collect(),
                pointers: pointers.filter(|path| names.contains(path.as_str())).cloned().collect(),
                units: units.collect(),
            };
            files.extend(part.files.iter().map(|entry| {
                let is_text = self.history.is_text(entry) || self.is_log(facts, entry);
                (entry.path.clone(), PlanFile::Local { entry: (*entry).clone(), is_text })
            }));
            planned.push(PlanPart { record, carried: false });
        }
        let mut is_deleted = false;
        for record in last.iter().flat_map(|last| &last.parts) {
            let mut is_carried = |path: &String| {
                let is_over = self.is_dropped(facts, found, parts, record, path);
                let is_in = files.contains_key(path);
                is_deleted |= is_over && !is_in && facts.scan.listing.get(path).is_none();
                !is_over && !is_in
            };
            let carried: Vec<String> = record.files.iter().filter(|path| is_carried(path)).cloned().collect();
            files.extend(carried.iter().map(|path| (path.clone(), PlanFile::Carried(path.clone()))));
            let is_there = |path: &String| files.contains_key(path);
            let pointers: Vec<String> = record.pointers.iter().filter(|path| carried.contains(path)).cloned().collect();
            let holds = |unit: &String| unit.is_empty() || carried.iter().any(|path| is_of_unit(path, unit));
            let units: BTreeMap<String, i64> =
                record.units.iter().filter(|(unit, _)| holds(unit)).map(|(unit, time)| (unit.clone(), *time)).collect();
            match planned.iter_mut().find(|part| part.record.root == record.root) {
                Some(part) => {
                    part.record.files.extend(carried);
                    part.record.files.sort();
                    part.record.pointers.extend(pointers);
                    let new =
                        units.into_iter().filter(|(unit, _)| is_there(unit) || record.layout == part.record.layout);
                    for (unit, time) in new {
                        part.record.units.entry(unit).or_insert(time);
                    }
                }
                None if carried.is_empty() => {}
                None => {
                    let unit = record.unit.clone().filter(|unit| units.contains_key(unit) || record.units.is_empty());
                    let record = PartRecord { files: carried, pointers, units, unit, ..record.clone() };
                    planned.push(PlanPart { record, carried: true });
                }
            }
        }
        if planned.iter().all(|part| part.carried) && !(is_deleted && self.keeps_the_newest(&files)) {
            return None;
        }
        let resume = self.resume_of(facts, parts, &planned);
        let mut timing = last.map(|last| last.timing.clone()).unwrap_or_default();
        if let Some(part) = ready().find(|part| part.is_settled_only()) {
            self.saves.add_timing(&mut timing, &part.files);
        }
        let local = || {
            files.values().filter_map(|file| if let PlanFile::Local { entry, .. } = file { Some(entry) } else { None })
        };
        let rewritten = local().filter(|entry| entry.kind == Kind::File && self.history.differs(entry) == Some(true));
        let rewritten: Vec<&Entry> = rewritten.collect();
        if rewritten.len() > 1 {
            timing.together.extend(rewritten.iter().map(|entry| rest::series(&entry.path)));
        }
        let seen = self.seen_by(facts, &files, parts);
        let older = parts.iter().filter_map(|part| part.root.map(|root| (root, &part.older)));
        let older = older.flat_map(|(root, older)| {
            let is_older = |unit: &&Unit| unit.members.first().is_some_and(|first| older.contains(first));
            root.units.iter().filter(is_older).map(|unit| unit.path.clone())
        });
        Some(Plan {
            older: older.collect(),
            parts: planned,
            files: files.into_values().collect(),
            step: resume.step,
            resume,
            timing,
            is_new_content: ready().any(|part| part.has_content),
            seen: Arc::new(seen),
        })
    }

    /// Whether the file is copied as it stands, as a log: it changes all the time, and no end shows that it is whole.
    fn is_log(&self, facts: &Facts, entry: &Entry) -> bool {
        self.history.is_hot(entry) && !ends::shows_its_end(facts.scan.peek, entry)
    }

    /// Whether a commit drops this path of the last one: it has been gone for a quiet period, it is excluded now, or newer
    /// saves are kept in its place. A unit stays while one of its files does.
    fn is_dropped(&self, facts: &Facts, found: &Partition, parts: &[Part], record: &PartRecord, path: &String) -> bool {
        let is_gone = |path: &String| self.is_gone(facts, path);
        let is_excluded = || found.excluded.iter().any(|(what, _)| around(path).any(|outer| outer == what));
        let is_older = || {
            parts.iter().filter(|part| part.state == State::Ready).flat_map(|part| &part.older).any(|e| e.path == *path)
        };
        let unit = record.units.keys().find(|unit| is_of_unit(path, unit));
        let is_unit_gone = || match unit {
            Some(unit) if !self.is_complete(found, unit) => {
                record.files.iter().filter(|other| is_of_unit(other, unit)).all(is_gone)
            }
            _ => true,
        };
        is_gone(path) && is_unit_gone() || is_older() || is_excluded()
    }

    /// Whether a path of the last commit has been missing for a quiet period.
    pub(super) fn is_gone(&self, facts: &Facts, path: &str) -> bool {
        let wait = if facts.writer == Writer::Finished { Duration::ZERO } else { self.wait(facts) };
        self.history.gone_for(facts.now, path).is_some_and(|gone| gone >= wait)
    }

    fn is_complete(&self, found: &Partition, unit: &str) -> bool {
        found.roots.iter().flat_map(|root| &root.units).any(|other| other.path == unit && other.is_good())
    }

    /// Whether a commit of these files still has the newest save of the last commit and what names it. Without them, a
    /// deletion alone is not committed, because a trainer may delete a save before it writes the next one.
    fn keeps_the_newest(&self, files: &BTreeMap<String, PlanFile>) -> bool {
        let Some(last) = &self.history.last else { return false };
        let units: Vec<&String> =
            last.parts.iter().filter_map(|part| part.unit.as_ref()).filter(|u| !u.is_empty()).collect();
        if !last.parts.iter().flat_map(|part| &part.pointers).all(|path| files.contains_key(path)) {
            return false;
        }
        if !units.is_empty() {
            return units.iter().all(|unit| files.keys().any(|path| is_of_unit(path, unit)));
        }
        let committed = last.parts.iter().flat_map(|part| &part.files).filter_map(|path| last.entries.get(path));
        let weights =
            committed.filter(|entry| entry.kind == Kind::File && !rest::is_text_name(entry.name()) && entry.size > 0);
        weights.max_by_key(|entry| entry.mtime_ns).is_none_or(|newest| files.contains_key(&newest.path))
    }

    /// The walk that later looks are compared with: the present entries of what the commit takes from the directory and of
    /// older saves, and for everything else the entries of the last commit.
    fn seen_by(&self, facts: &Facts, files: &BTreeMap<String, PlanFile>, parts: &[Part]) -> BTreeMap<String, Entry> {
        let before = self.history.last.iter().flat_map(|last| &last.entries);
        let before = before.filter(|(path, _)| facts.scan.listing.get(path).is_some() || files.contains_key(*path));
        let before = before.map(|(path, entry)| (path.clone(), entry.clone()));
        let older = parts.iter().flat_map(|part| &part.older).filter(|entry| entry.kind != Kind::Directory);
        let local = files.values().filter_map(|file| match file {
            PlanFile::Local { entry, .. } if entry.kind != Kind::Directory => Some(entry),
            _ => None,
        });
        before.chain(older.copied().chain(local).map(|entry| (entry.path.clone(), entry.clone()))).collect()
    }

    /// The most recently saved unit among the parts of a commit, or else the directory.
    fn resume_of(&self, facts: &Facts, parts: &[Part], planned: &[PlanPart]) -> Resume {
        let taken = parts.iter().filter(|part| matches!(part.state, State::Ready | State::Committed));
        let taken = taken.filter_map(|part| part.root.and(part.unit())).map(Unit::age);
        let is_taken = |record: &PartRecord| {
            parts.iter().any(|part| part.root_dir() == record.root.as_deref() && part.state == State::Committed)
        };
        let carried = planned.iter().filter(|part| part.carried && !is_taken(&part.record));
        let carried = carried.filter_map(|PlanPart { record, .. }| {
            let unit = record.unit.as_ref()?;
            Some((0, record.units.get(unit).copied().unwrap_or(0), record.step, unit.as_str()))
        });
        let newest = taken.chain(carried).max().map(|(_, _, step, unit)| (unit.to_owned(), step));
        let files = parts.iter().flat_map(|part| part.files.iter().copied());
        let resume = resume_from(newest, || step_of_paths(&facts.scan, &self.history, files));
        Resume { step: resume.step.or(facts.heartbeat_step), ..resume }
    }
}

/// The newest unit and its step, if there is a unit. `of_paths` finds the step for the directory.
fn resume_from(newest: Option<(String, Option<u64>)>, of_paths: impl FnOnce() -> Option<u64>) -> Resume {
    let (unit, step) = newest.unwrap_or_default();
    Resume { unit: Some(unit).filter(|unit| !unit.is_empty()), step: step.or_else(of_paths) }
}

/// The step that `--step-regex` finds in the youngest matching path.
fn step_of_paths<'a>(scan: &Scan, history: &History, files: impl Iterator<Item = &'a Entry>) -> Option<u64> {
    let steps =
        files.filter_map(|entry| Some((history.look_of(entry), entry.mtime_ns, scan.options.step_in(&entry.path)?)));
    steps.max().map(|(_, _, step)| step)
}

/// The checkpoint to resume from in the present directory. `None`: no complete unit and no file of the rest.
pub fn resume(scan: &Scan, tracker: &Tracker) -> Option<Resume> {
    let found = partition(scan, &tracker.history);
    let good = found.roots.iter().filter_map(|root| root.units.iter().find(|unit| Unit::is_good(unit)));
    let newest = good.max_by_key(|unit| unit.age());
    if newest.is_none() && found.rest.is_empty() {
        return None;
    }
    let newest = newest.map(|unit| (unit.path.clone(), unit.step));
    Some(resume_from(newest, || step_of_paths(scan, &tracker.history, found.rest.iter().copied())))
}

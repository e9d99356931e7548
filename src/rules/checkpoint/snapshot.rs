//! The result of a look: the state of each part, the files of the next commit, and the parts carried over from the last
//! commit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::formats::engine::partition;
use super::formats::units::{Scan, Unit};
use super::history::{Committed, History, PartRecord, SaveTiming};
use super::listing::{Entry, Kind, around, end_of};
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
        let found = partition(&facts.scan, &self.history);
        self.saves.note_changes(facts.now, facts.settle, &found, &self.history);
        let parts = self.parts(facts, &found);
        let warning =
            self.warnings.due(parts.iter().map(|part| (part.root_dir().map(str::to_owned), part.waits_for())));
        self.note_vanished(facts.now, &parts);
        let newest = found.roots.iter().filter_map(|root| root.units.first());
        Look {
            plan: self.plan(facts, &parts),
            newest_step: newest.max_by_key(|unit| unit.age(&self.history)).and_then(|unit| unit.step),
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
        self.saves.end();
        self.warnings.reset();
    }

    /// Notes committed parts that no longer exist.
    fn note_vanished(&mut self, now: Duration, parts: &[Part]) {
        let is_here = |root: &Option<String>| parts.iter().any(|part| part.root_dir() == root.as_deref());
        self.vanished.retain(|root, _| !is_here(root));
        let last = self.history.last.iter().flat_map(|last| &last.parts);
        for record in last.filter(|record| !is_here(&record.root)) {
            self.vanished.entry(record.root.clone()).or_insert(now);
        }
    }

    /// The next commit, if a part has something new and is ready.
    fn plan(&self, facts: &Facts, parts: &[Part]) -> Option<Plan> {
        let last = self.history.last.as_ref();
        let ready = || parts.iter().filter(|part| part.state == State::Ready);
        ready().next()?;
        let mut files: BTreeMap<String, PlanFile> = BTreeMap::new();
        let mut planned = Vec::new();
        for part in parts.iter().filter(|part| part.is_taken()) {
            let taken = self.taken(&facts.scan, part);
            let pointers = part.root.iter().flat_map(|root| &root.pointers).map(|entry| &entry.path);
            let record = PartRecord {
                root: part.root_dir().map(str::to_owned),
                layout: part.root.map(|root| root.layout.name.to_owned()),
                unit: part.unit.map(|unit| unit.path.clone()),
                step: part.unit.and_then(|unit| unit.step),
                files: taken.keys().map(|path| (*path).to_owned()).collect(),
                pointers: pointers.filter(|path| taken.contains_key(path.as_str())).cloned().collect(),
            };
            files.extend(taken.into_iter().map(|(path, entry)| {
                (path.to_owned(), PlanFile::Local { entry: entry.clone(), is_text: self.history.is_text(entry) })
            }));
            planned.push(PlanPart { record, carried: false });
        }
        let is_over = |root: &Option<String>| {
            let is_long = |since: &Duration| facts.now - *since >= self.wait(facts);
            self.vanished.get(root).is_some_and(|since| facts.writer == Writer::Finished || is_long(since))
        };
        let is_here = |record: &PartRecord| planned.iter().any(|part: &PlanPart| part.record.root == record.root);
        let records = last.iter().flat_map(|last| &last.parts);
        let carried: Vec<&PartRecord> = records.filter(|record| !is_here(record) && !is_over(&record.root)).collect();
        for record in carried {
            let mut record = record.clone();
            record.files.retain(|path| !files.contains_key(path));
            record.pointers.retain(|path| !files.contains_key(path));
            files.extend(record.files.iter().map(|path| (path.clone(), PlanFile::Carried(path.clone()))));
            if !record.files.is_empty() {
                planned.push(PlanPart { record, carried: true });
            }
        }
        let resume = self.resume_of(facts, parts, &planned);
        let mut timing = last.map(|last| last.timing.clone()).unwrap_or_default();
        if let Some(part) = ready().find(|part| part.is_settled_only()) {
            self.saves.add_timing(&mut timing, &part.files);
        }
        Some(Plan {
            parts: planned,
            files: files.into_values().collect(),
            step: resume.step,
            resume,
            timing,
            is_new_content: ready().any(|part| part.has_content),
            seen: Arc::new(self.seen_by(&facts.scan, parts)),
        })
    }

    /// The walk that later looks are compared with. A part that the commit takes has its present entries, without units newer
    /// than the committed one. Any other part has the entries of the last commit.
    fn seen_by(&self, scan: &Scan, parts: &[Part]) -> BTreeMap<String, Entry> {
        let last = self.history.last.as_ref();
        let is_committed = |path: &String| {
            last.is_some_and(|last| last.parts.iter().any(|part| part.files.binary_search(path).is_ok()))
        };
        let before = last.iter().flat_map(|last| &last.entries);
        let before = before.filter(|(path, _)| scan.listing.get(path).is_some() || is_committed(path));
        let before = before.map(|(path, entry)| (path.clone(), entry.clone()));
        let taken = parts.iter().filter(|part| part.is_taken()).flat_map(|part| &part.covered);
        let taken = taken.filter(|entry| entry.kind != Kind::Directory);
        before.chain(taken.map(|entry| (entry.path.clone(), (*entry).clone()))).collect()
    }

    /// The files of a part that a commit takes, with the pointers that name its unit, and the units that are committed
    /// with it.
    fn taken<'a>(&self, scan: &Scan, part: &Part<'a>) -> BTreeMap<&'a str, &'a Entry> {
        let mut all: BTreeMap<&str, &Entry> = part.files.iter().map(|entry| (entry.path.as_str(), *entry)).collect();
        let (Some(root), Some(unit)) = (part.root, part.unit) else { return all };
        for other in self.also(scan, root, unit) {
            all.extend(other.members.iter().map(|entry| (entry.path.as_str(), *entry)));
        }
        let is_there = |entry: &&&Entry| {
            let Kind::Symlink(target) = &entry.kind else { return true };
            let end = end_of(&entry.path, target);
            end.is_some_and(|end| all.keys().any(|path| around(path).any(|outer| outer == end)))
        };
        let pointers: Vec<&Entry> = root.pointers.iter().filter(is_there).copied().collect();
        all.extend(pointers.into_iter().map(|entry| (entry.path.as_str(), entry)));
        all
    }

    /// The most recently saved unit among the parts of a commit, or else the directory.
    fn resume_of(&self, facts: &Facts, parts: &[Part], planned: &[PlanPart]) -> Resume {
        let taken = parts.iter().filter(|part| part.is_taken()).filter_map(|part| part.unit);
        let taken = taken.map(|unit| unit.age(&self.history));
        let time = |path: &String| self.last()?.entries.get(path).map(|entry| entry.mtime_ns);
        let carried = planned.iter().filter(|part| part.carried).filter_map(|PlanPart { record, .. }| {
            let newest = record.files.iter().filter_map(time).max().unwrap_or(0);
            Some((0, newest, record.step, record.unit.clone()?))
        });
        let newest = taken.chain(carried).max().map(|(_, _, step, unit)| (unit, step));
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
    let newest = good.max_by_key(|unit| unit.age(&tracker.history));
    if newest.is_none() && found.rest.is_empty() {
        return None;
    }
    let newest = newest.map(|unit| (unit.path.clone(), unit.step));
    Some(resume_from(newest, || step_of_paths(scan, &tracker.history, found.rest.iter().copied())))
}

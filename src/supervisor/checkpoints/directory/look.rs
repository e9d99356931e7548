//! Scans the checkpoint directory: the walk, the files that are open for writing, and the verdict of the rules. It runs on a
//! thread for file work, so the state of the rules is behind a lock.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::edge::fs::links::{self, Files};
use crate::edge::fs::rooted_dir::RootedDir;
use crate::edge::fs::walk;
use crate::edge::host::limits;
use crate::edge::process::open_files;
use crate::edge::transfer::blocking::blocking;
use crate::rules::checkpoint::{
    Beside, Committed, Earlier, Entry, Explanation, Facts, Kind, Listing, Look, Options, PartState, Peek, Plan, Resume,
    Rewind, Rollback, Root, Scan, State, Tracker, Unit, UnitState, Writer, explain, partition, restorable, resume,
    rewind,
};
use crate::supervisor::checkpoints::config::Config;
use crate::supervisor::checkpoints::directory::record::{Record, lacks_the_newest};
use crate::supervisor::job::heartbeat::Heartbeat;

/// The state of the processes that write, and how long a part must be unchanged before it is ready.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    pub(crate) writer: Writer,
    pub(crate) settle: Duration,
    /// The file system's time of the trainer's death, nanoseconds since 1970, if it was observed.
    pub(crate) died_ns: Option<i64>,
}

impl How {
    pub(crate) const AT_REST: How = How { writer: Writer::Finished, settle: Duration::ZERO, died_ns: None };

    pub(crate) fn running(settle: Duration) -> How {
        How { writer: Writer::Running, settle, died_ns: None }
    }
}

/// A checkpoint directory and the state from earlier looks.
#[derive(Debug, Clone)]
pub(crate) struct Watcher {
    dir: PathBuf,
    options: Arc<Options>,
    clock: Clock,
    heartbeat: Heartbeat,
    known: Arc<Mutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    tracker: Tracker,
    /// What the record of the life before says, until its half of a save is dealt with.
    earlier: Earlier,
}

/// Files that are open at once to check one.
const OPEN_FILES: usize = 4;

impl Watcher {
    pub(crate) fn new(config: &Config, clock: Clock) -> Watcher {
        Watcher {
            dir: config.dir.clone(),
            options: Arc::clone(&config.options),
            clock,
            heartbeat: config.heartbeat.clone(),
            known: Arc::default(),
        }
    }

    /// The state of the directory and the plan of a commit. Errors, here and below: the directory cannot be read.
    pub(crate) async fn look(&self, how: How) -> io::Result<Look> {
        self.with(how, |tracker, facts| tracker.look(facts)).await
    }

    /// The state of every part, for a caller that looks only once.
    pub(crate) async fn listed(&self) -> io::Result<Vec<PartState>> {
        self.with(How::AT_REST, |tracker, facts| tracker.listed(facts)).await
    }

    /// The files to move away before the next attempt, and to put back.
    pub(crate) async fn after_death(&self, how: How) -> io::Result<Rollback> {
        self.with(how, |tracker, facts| tracker.after_death(facts)).await
    }

    /// The checkpoint to resume from in the present directory.
    pub(crate) async fn resume(&self) -> io::Result<Option<Resume>> {
        self.with(How::AT_REST, |tracker, facts| resume(&facts.scan, tracker)).await
    }

    /// The checkpoints of the directory, the newest first.
    pub(crate) async fn restorable(&self) -> io::Result<Vec<Resume>> {
        self.with(How::AT_REST, |tracker, facts| restorable(&facts.scan, tracker)).await
    }

    /// The files to move away so that this unit is the newest; `None`: it does not exist.
    pub(crate) async fn rewind(&self, unit: String) -> io::Result<Option<Rewind>> {
        self.with(How::AT_REST, move |tracker, facts| rewind(&facts.scan, tracker, &unit)).await
    }

    /// The rule that decides about each of these paths, or about every path if the list is empty.
    pub(crate) async fn explain(&self, how: How, paths: Vec<String>) -> io::Result<Vec<Explanation>> {
        let explained = move |tracker: &mut Tracker, facts: &Facts| {
            tracker.look(facts);
            let all = || facts.scan.listing.entries().iter().filter(|e| e.kind != Kind::Directory);
            let paths = if paths.is_empty() { all().map(|entry| entry.path.clone()).collect() } else { paths };
            paths.iter().map(|path| explain(facts, tracker, path)).collect()
        };
        self.with(how, explained).await
    }

    /// Paths that are never committed, each with the reason.
    pub(crate) async fn excluded(&self) -> io::Result<Vec<(String, String)>> {
        self.with(How::AT_REST, |tracker, facts| partition(&facts.scan, tracker.history()).excluded).await
    }

    /// Units that are newer than the newest complete one of their root, each with what it lacks.
    pub(crate) async fn passed_over(&self) -> io::Result<Vec<PartState>> {
        let passed = |tracker: &mut Tracker, facts: &Facts| {
            let roots = partition(&facts.scan, tracker.history()).roots;
            roots.iter().flat_map(newer).collect()
        };
        self.with(How::AT_REST, passed).await
    }

    /// Forgets earlier looks. `last`: the newest commit, if the directory has it.
    pub(crate) async fn begin(&self, last: Option<Committed>) -> io::Result<()> {
        let (this, now) = (self.clone(), self.clock.now());
        let earlier = self.lock().earlier.clone();
        blocking(move || {
            let tracker = with_listing(&this.dir, &this.options, |listing, peek| {
                Tracker::begin(now, listing, peek, last, earlier.clone())
            });
            *this.lock() = Known { tracker: tracker?, earlier };
            Ok(())
        })
        .await
    }

    /// The record of the life before was read.
    pub(crate) fn recorded(&self, record: &Record) {
        self.lock().earlier = Earlier { before: Some(record.beside.clone()), unproven: record.unproven.clone() };
    }

    /// The files that the life before left half finished are dealt with; these stay and are not proven.
    pub(crate) fn dealt_with(&self, unproven: Beside) {
        self.lock().earlier = Earlier { before: None, unproven };
    }

    /// Whole files of a save that a killed trainer left half finished.
    pub(crate) fn unproven(&self) -> Beside {
        self.lock().tracker.unproven().clone()
    }

    /// The same for a caller that looks only once.
    pub(crate) async fn begin_once(&self) -> io::Result<()> {
        let (this, now) = (self.clone(), self.clock.now());
        blocking(move || {
            let tracker = with_listing(&this.dir, &this.options, |listing, peek| Tracker::pushed(now, listing, peek));
            this.lock().tracker = tracker?;
            Ok(())
        })
        .await
    }

    /// The plan's manifest exists.
    pub(crate) fn committed(&self, plan: &Plan) {
        self.lock().tracker.committed(plan);
    }

    pub(crate) fn beside(&self) -> Beside {
        self.lock().tracker.beside().clone()
    }

    /// Whether a file of the last commit was deleted and no file is new.
    pub(crate) async fn lacks_the_newest(&self) -> io::Result<bool> {
        let this = self.clone();
        blocking(move || {
            let listing = walked(&this.dir, &this.options)?;
            let known = this.lock();
            let before = known.tracker.beside();
            Ok(known.tracker.last().is_some_and(|last| lacks_the_newest(last, before, &listing, &this.options)))
        })
        .await
    }

    pub(crate) fn last(&self) -> Option<Committed> {
        self.lock().tracker.last().cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn with<T: Send + 'static>(
        &self,
        how: How,
        act: impl FnOnce(&mut Tracker, &Facts) -> T + Send + 'static,
    ) -> io::Result<T> {
        let (this, now) = (self.clone(), self.clock.now());
        let look = move |listing: &Listing, peek: &dyn Peek| {
            let mut known = this.lock();
            let open = match how.writer {
                Writer::Running => open_for_writing(listing, known.tracker.last()),
                Writer::Finished | Writer::Killed => BTreeSet::new(),
            };
            let facts = Facts {
                now,
                scan: Scan { listing, peek, options: &this.options },
                open: &open,
                heartbeat_step: this.heartbeat.step(),
                writer: how.writer,
                died_ns: how.died_ns,
                settle: how.settle,
            };
            check_open_files(&this.dir)?;
            Ok(act(&mut known.tracker, &facts))
        };
        let (dir, options) = (self.dir.clone(), self.options.clone());
        blocking(move || with_listing(&dir, &options, look).flatten()).await
    }
}

/// Walks the directory, and calls `act` with the listing and a reader of its files.
fn with_listing<T>(dir: &Path, options: &Options, act: impl FnOnce(&Listing, &dyn Peek) -> T) -> io::Result<T> {
    let listing = walked(dir, options)?;
    let rooted_dir = match RootedDir::open(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        opened => Some(opened?),
    };
    let files = rooted_dir.as_ref().map(|rooted_dir| Files { rooted_dir, listing: &listing });
    Ok(act(&listing, &files))
}

/// Fails if no more files can be opened, because complete files would then look torn.
fn check_open_files(dir: &Path) -> io::Result<()> {
    let all: io::Result<Vec<File>> = (0..OPEN_FILES).map(|_| File::open(dir)).collect();
    all.map_or_else(|error| if limits::of_files(&error) { Err(error) } else { Ok(()) }, |_| Ok(()))
}

/// The directory's listing. With `follow`, links that lead out of it are followed.
pub(crate) fn walked(dir: &Path, options: &Options) -> io::Result<Listing> {
    let listing = walk::walk(dir)?;
    if !options.follow {
        return Ok(listing);
    }
    Ok(links::follow(dir, &listing, &links::leading_out(dir, &listing)))
}

/// The changed files that a process has open for writing.
fn open_for_writing(listing: &Listing, last: Option<&Committed>) -> BTreeSet<String> {
    let is_changed = |entry: &&Entry| {
        let then = last.and_then(|last| last.entries.get(&entry.path));
        then.is_none_or(|then| !then.same_bytes(entry))
    };
    let changed: HashMap<_, &str> =
        listing.files().filter(is_changed).map(|e| ((e.device, e.inode), e.path.as_str())).collect();
    let open = open_files::open_for_writing(&changed.keys().copied().collect());
    open.iter().filter_map(|file| changed.get(file)).map(|path| (*path).to_owned()).collect()
}

/// The root's units that are newer than its newest complete one. Empty if none is complete: its part then names the newest.
fn newer(root: &Root) -> Vec<PartState> {
    let whole = root.units.iter().position(|unit| unit.state == UnitState::Complete).unwrap_or(0);
    let state = |unit: &Unit| match &unit.state {
        UnitState::Incomplete(why) => Some(State::Incomplete(why.clone())),
        UnitState::Unproven(why) => Some(State::Unproven(why.clone())),
        UnitState::Complete | UnitState::Older => None,
    };
    let part = |unit: &Unit| {
        let files = unit.members.iter().filter(|entry| entry.kind == Kind::File);
        Some(PartState {
            root: Some(root.dir.clone()),
            layout: Some(root.layout.name),
            unit: Some(unit.path.clone()),
            step: unit.step,
            files: files.clone().count(),
            bytes: files.map(|file| file.size).sum(),
            state: state(unit)?,
        })
    };
    root.units[..whole].iter().filter_map(part).collect()
}

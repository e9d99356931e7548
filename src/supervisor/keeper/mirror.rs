//! The mirror: a checkpoint directory on one side, a store on the other. Opening it claims this run's attempt; `restore`
//! and `commit` are in the files beside this one.
//!
//! Everything here runs on the worker's runtime and reports outcomes; when to commit, how often, and what an outcome
//! means for the job is decided elsewhere.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::claim::claim;
pub use super::config::{MirrorConfig, Restore};
use super::doubt::CutOff;
use super::inbox::Haste;
use super::known::Known;
use super::look::{Lacking, Local, Look, same_bytes};
use super::made::Made;
use super::names::Names;
use super::nook::sweep;
use super::remarks::Remarks;
use super::rest::Restless;
use super::restore::Brought;
use super::retention::Retiring;
use super::transfer::Transfer;
use super::unrestored::IN_THE_WAY;
use crate::edge::beneath::Beneath;
pub(crate) use crate::edge::blocking::blocking;
use crate::edge::clock::Clock;
use crate::edge::limits;
use crate::edge::places;
use crate::edge::store::{Store, StoreError, Trouble};
use crate::rules::checkpoint::address::{Address, Nearness};
use crate::rules::checkpoint::names::{Attempt, OWN, Stamp, hash16};
use crate::rules::checkpoint::plan::{self, Age};
use crate::rules::checkpoint::{Entry, Layout, is_of_the_next};
use crate::rules::exit;

/// Why the mirror cannot do what it must, and the exit code that goes with it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct MirrorError {
    /// One line: what, where, why it matters, what to do.
    pub message: String,
    /// [`exit::NOT_STARTED`], [`exit::STORE`] or [`exit::FENCED`].
    pub code: u8,
}

impl MirrorError {
    pub(crate) fn store(message: String) -> MirrorError {
        MirrorError { message, code: exit::STORE }
    }

    /// For people who ask the store by hand.
    pub fn asking(error: &StoreError) -> MirrorError {
        let way_out = match error.trouble {
            Trouble::NoDirectory | Trouble::Absent => "see that this is the store that the run was given",
            Trouble::NoCredentials => "then ask again",
            Trouble::Unreachable => "see that it is well and can be reached from here, then ask again",
            Trouble::Unsupported | Trouble::Other => {
                "see that the store, and what is between here and there, is well, then ask again"
            }
            _ => way_out(error),
        };
        MirrorError::store(format!("{error}; {way_out}"))
    }
}

/// What to resume from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// What the framework loads: a file, a directory or a common prefix inside the checkpoint directory, absolute.
    pub from: PathBuf,
    /// The same as the layout names it, relative to the checkpoint directory.
    pub unit: String,
    /// The training step, where known.
    pub step: Option<u64>,
    /// When it was written, nanoseconds since 1970.
    pub written_ns: i64,
    /// The commit it came from or equals; `None` for a local one that was never committed.
    pub commit: Option<Stamp>,
}

/// The mirror of one run.
#[derive(Debug)]
pub struct Mirror {
    pub(crate) config: MirrorConfig,
    pub(crate) clock: Clock,
    pub(crate) store: Option<Arc<Store>>,
    /// Our claim; `None` when nothing is to be committed.
    pub(crate) attempt: Option<Attempt>,
    /// What it says in the store.
    pub(super) claim: Vec<u8>,
    /// Whether the store held commits when it was claimed.
    pub(crate) saw_commits: bool,
    /// Of the last commit that was tried.
    pub(crate) seq: u64,
    /// The attempt that last used the directory with this store.
    pub(crate) lineage: Option<Attempt>,
    /// When the run before this one last restored into it, nanoseconds since 1970, as far as that is known.
    pub(super) used_ns: i64,
    /// Local units that were passed over for an older one, with their newest modification time: not to be committed or
    /// resumed from unless written again, or asked for by their step.
    pub(crate) ignored: BTreeMap<String, i64>,
    /// The commit that the run resumed from.
    pub(crate) parent: Option<Stamp>,
    /// The newest commit of runs before that this one may go back to.
    pub(crate) origin: Option<Stamp>,
    /// Commits that the trainer failed from twice: never to be restored again by this run.
    pub(crate) bad: Vec<Stamp>,
    /// What the store holds of the local directory.
    pub(crate) committed: Option<Committed>,
    /// A commit whose manifest was on its way: whether it stands is the store's to say.
    pub(super) naming: Option<Committed>,
    /// What was written for a commit that has no manifest yet.
    pub(super) made: Made,
    pub(super) retiring: Retiring,
    /// The files of the last commit: not to be sent again.
    pub(super) known: Known,
    /// What the next commit goes by, where somebody has looked already.
    pub(super) foreseen: Option<Look>,
    /// What was seen at the last look, and since when it has been so.
    pub(crate) seen: Option<(Vec<Entry>, Duration)>,
    pub(super) restless: Restless,
    /// Whether what may lack something is waited for: its writer runs beside us.
    pub(super) is_patient: bool,
    /// Bytes a second of the last commit.
    pub(crate) throughput: Option<f64>,
    /// Whether another of an earlier step lay beside the newest when it was last found out what to resume from.
    pub(super) has_older: bool,
    /// Whether the first restore is behind us.
    pub(crate) begun: bool,
    /// Whether the first restore is under way: another run's trainer may still write.
    pub(super) is_first: bool,
    /// How far a restore is.
    pub(crate) transfer: Transfer,
    /// Why checkpoints that may be newer were not taken at the last look, newest first.
    pub(crate) passed: Vec<String>,
    /// The newest of them that this run's trainer wrote.
    pub(super) lacking: Option<Lacking>,
    /// How the checkpoints of the last look are written.
    pub(crate) layout: Option<&'static Layout>,
    /// A complete checkpoint that is not in the store: its step, and since when it is known.
    pub(crate) waiting: Option<(Option<u64>, Duration)>,
    /// What the last restore did, or would do.
    pub(crate) brought: Cell<Option<Brought>>,
    pub(super) remarks: Remarks,
    pub(super) cut_off: Arc<CutOff>,
    pub(super) haste: Arc<Haste>,
    notes: RefCell<Vec<String>>,
}

/// A local checkpoint that is in the store.
#[derive(Debug)]
pub(crate) struct Committed {
    pub(crate) unit: String,
    /// Every unit that lay there then, and how new it was.
    pub(crate) beside: BTreeMap<String, Age>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) names: Names,
    pub(crate) age: Age,
    /// Those of its files that each save writes over.
    pub(crate) fixed: Vec<String>,
    pub(crate) stamp: Stamp,
}

impl Committed {
    /// Whether it is this one, but for what the next save has written over already: mixed with that it would be none.
    pub(crate) fn holds(&self, local: &Local) -> bool {
        let fixed = &local.candidate.fixed;
        let is_own = |entry: &&Entry| !fixed.contains(&entry.path) && !self.fixed.contains(&entry.path);
        let own = |entries: &[Entry]| entries.iter().filter(is_own).cloned().collect::<Vec<Entry>>();
        let is_held = |now: &Entry| {
            let held = self.entries.iter().find(|entry| entry.path == now.path);
            held.is_some_and(|held| held.same_bytes(now) || is_of_the_next(held, now, local.age.newest_ns))
        };
        let mut written_over = local.entries.iter().filter(|entry| fixed.contains(&entry.path));
        same_bytes(&own(&self.entries), &own(&local.entries)) && written_over.all(is_held)
    }

    /// Whether this one is to be committed after it: newer, or written since, which no clock need tell.
    pub(crate) fn is_before(&self, unit: &str, age: Age) -> bool {
        self.unit == unit || self.beside.get(unit) != Some(&age) || plan::supersedes(age, self.age)
    }
}

/// Names the units of a restore that may be half in place.
pub(crate) const RESTORING: &str = ".trainit/restoring.json";
pub(crate) const TEMPORARY: &str = ".trainit/tmp";
pub(crate) const PINS: &str = ".trainit/pin";
/// Locked by whoever puts a restore in place.
pub(crate) const OURS: &str = ".trainit/lock";
/// Small files of our own are read up to here, bytes.
pub(crate) const SMALL: u64 = 1 << 20;

impl Mirror {
    /// Opens both sides. With a store and `claim`: makes the checkpoint directory, tries the store out and claims the
    /// attempt. Errors: 125 for a directory that cannot be used, 204 for a store that cannot.
    pub async fn open(config: MirrorConfig) -> Result<Mirror, MirrorError> {
        let mut mirror = Mirror {
            config,
            clock: Clock::start(),
            store: None,
            attempt: None,
            claim: Vec::new(),
            saw_commits: false,
            seq: 0,
            lineage: None,
            used_ns: i64::MAX,
            ignored: BTreeMap::new(),
            parent: None,
            origin: None,
            bad: Vec::new(),
            committed: None,
            naming: None,
            made: Made::default(),
            retiring: Retiring::default(),
            known: Known::default(),
            foreseen: None,
            seen: None,
            restless: Restless::default(),
            is_patient: false,
            throughput: None,
            has_older: false,
            begun: false,
            is_first: false,
            transfer: Transfer::default(),
            passed: Vec::new(),
            lacking: None,
            layout: None,
            waiting: None,
            brought: Cell::new(None),
            remarks: Remarks::default(),
            cut_off: Arc::default(),
            haste: Arc::default(),
            notes: RefCell::default(),
        };
        let Some(address) = mirror.config.store.clone() else { return Ok(mirror) };
        let (dir, store) = (mirror.config.dir.clone(), address.clone());
        let lie = blocking(move || Ok(apart(&dir, &store, &places::real))).await;
        lie.map_err(|error| MirrorError::store(format!("{address} cannot be looked at: {error}; start again")))??;
        mirror.prepare_directory(&address).await?;
        let store = Store::open(&address, mirror.config.claim, &mirror.config.access).await;
        let store = store.map_err(|error| mirror.away(&error))?;
        if mirror.config.claim {
            let claim = claim(&store, &address).await.map_err(|error| mirror.away(&error))?;
            if !claim.honest {
                mirror.note(format!(
                    "{address} ignores put-if-absent: two runs at once are told apart by a random tag only"
                ));
            }
            mirror.attempt = Some(claim.attempt);
            mirror.claim = claim.body;
            mirror.saw_commits = claim.saw_commits;
        }
        mirror.config.faults.point(1);
        mirror.store = Some(Arc::new(store));
        Ok(mirror)
    }

    /// The line for a store that does not answer as it must. A run claims its store and restores from it; who does less
    /// asks by hand, and no training hangs on the answer.
    pub(crate) fn away(&self, error: &StoreError) -> MirrorError {
        match self.config.claim && !self.config.only_sends {
            true => MirrorError::store(format!(
                "{error}; without the store no checkpoint survives this machine; {}",
                way_out(error)
            )),
            false => MirrorError::asking(error),
        }
    }

    async fn prepare_directory(&mut self, address: &Address) -> Result<(), MirrorError> {
        let dir = self.config.dir.clone();
        let refused = |error: io::Error| MirrorError {
            code: if error.raw_os_error() == Some(libc::ENOSPC) { exit::STORE } else { exit::NOT_STARTED },
            message: format!(
                "cannot use the checkpoint directory {}: {error}; trainit restores into it, and holds in its .trainit what it sends; {}",
                dir.display(),
                match error.raw_os_error() {
                    Some(libc::ENOTDIR | libc::ELOOP) => IN_THE_WAY,
                    _ => limits::way_out(&error, "give a --checkpoint-dir that can be written"),
                }
            ),
        };
        self.read_lineage(address).await;
        if self.config.claim {
            let (at, pins) = (dir.clone(), self.pins());
            let beneath = blocking(move || Beneath::create(&at).map(Arc::new)).await.map_err(refused)?;
            let ours = Arc::clone(&beneath);
            // A run that is still committing to this store has lost it to this one.
            let ready = blocking(move || ours.create_directory(OWN).and_then(|()| ours.remove_tree(&pins)));
            match ready.await {
                Ok(()) => self.sweep(&beneath).await,
                Err(error) if self.config.only_sends && is_read_only(&error) => {}
                Err(error) => return Err(refused(error)),
            }
        }
        Ok(())
    }

    /// Makes the checkpoint directory where there is no store, and nothing depends on it but the command.
    pub(super) async fn make_directory(&self) {
        let dir = self.config.dir.clone();
        if let Err(error) = blocking(move || Beneath::create(&dir)).await {
            self.note(format!(
                "cannot make the checkpoint directory {}: {error}; unless the command can, it saves nothing there to go on from; give a --checkpoint-dir that can be made or written",
                self.config.dir.display()
            ));
        }
    }

    /// Removes what killed processes left.
    pub(super) async fn sweep(&self, dir: &Arc<Beneath>) {
        let dir = Arc::clone(dir);
        let swept = blocking(move || {
            let pins = dir.names(PINS).unwrap_or_default();
            let places = pins.iter().map(|store| format!("{PINS}/{store}")).chain([TEMPORARY.to_owned()]);
            let failed: Vec<_> = places.filter_map(|within| Some((sweep(&dir, &within).err()?, within))).collect();
            let _ = dir.remove_empty(PINS);
            Ok(failed)
        });
        for (error, within) in swept.await.unwrap_or_default() {
            self.note(format!("cannot remove what a killed run left in {within}: {error}; it takes up room"));
        }
    }

    /// Where the pins of all runs with this store are.
    pub(super) fn pins(&self) -> String {
        let address = self.config.store.as_ref().map_or(String::new(), Address::to_string);
        format!("{PINS}/{}", hash16(address.as_bytes()))
    }

    /// The attempt number claimed in the store, for `TRAINIT_INCARNATION`; `None` without a store.
    pub fn incarnation(&self) -> Option<u64> {
        self.attempt.as_ref().map(|a| a.number)
    }

    /// The step of the newest commit of the local directory's contents, and its stamp.
    pub fn committed(&self) -> Option<(Option<u64>, &Stamp)> {
        self.committed.as_ref().map(|c| (c.age.step, &c.stamp))
    }

    /// A commit that the store must hold, if it is ours.
    pub(crate) fn known_commit(&self) -> Option<&Stamp> {
        self.committed.as_ref().map(|committed| &committed.stamp)
    }

    /// The store's address, if there is one.
    pub fn place(&self) -> Option<&Address> {
        self.config.store.as_ref()
    }

    /// The checkpoint directory.
    pub fn directory(&self) -> &Path {
        &self.config.dir
    }

    /// What people should know and no outcome says, one line each; emptied by the call.
    pub fn take_notes(&self) -> Vec<String> {
        self.notes.take()
    }

    pub(crate) fn note(&self, line: String) {
        self.notes.borrow_mut().push(line);
    }

    /// The line for a store that does not know this run, although it was claimed.
    pub(crate) fn unclaimed(&self, ours: &Attempt) -> String {
        let place = self.config.store.as_ref().map_or(String::new(), ToString::to_string);
        format!(
            "{place} does not show this run's claim {}: it was emptied, is not mounted any more, or does not list what it holds; nothing is committed or restored until it shows it again; see that the store is the one of the start",
            ours.key()
        )
    }

    pub(crate) fn resume(&self, unit: &str, age: Age, commit: Option<Stamp>) -> Resume {
        let dir = std::path::absolute(&self.config.dir).unwrap_or_else(|_| self.config.dir.clone());
        Resume { from: dir.join(unit), unit: unit.to_owned(), step: age.step, written_ns: age.newest_ns, commit }
    }
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES | libc::EPERM))
}

/// The directory opened, for file work.
pub(crate) fn beneath(dir: &Path) -> io::Result<Arc<Beneath>> {
    Beneath::open(dir).map(Arc::new)
}

/// What to do about it.
pub(crate) fn way_out(error: &StoreError) -> &'static str {
    match error.trouble {
        Trouble::Full => "free space in the store, by trainit checkpoint prune with a smaller --keep-last if need be",
        Trouble::Denied => {
            "whoever runs this must be allowed to list, read, create and delete there; a directory must be mounted, and not read-only"
        }
        Trouble::NotBelieved => {
            "give credentials that hold now (a variable's stay what they are, a role's are renewed), and see that this machine's clock is right"
        }
        Trouble::Outdated => "give credentials that hold now, and see that this machine's clock is right",
        Trouble::NoBucket => "make the bucket, or name the right one and its region",
        // The error says it.
        Trouble::NoCredentials => "then start again",
        Trouble::Unreachable => "see that it is well and can be reached from here, then start again",
        Trouble::NoDirectory => "name a directory, or one to be made",
        Trouble::Limit(way_out) => way_out,
        Trouble::Absent | Trouble::Unsupported => "see that the store is there, then start again",
        Trouble::Other => "see that the store, and what is between here and there, is well, then start again",
    }
}

/// The store and the checkpoint directory must not lie in each other, or copies would be taken for checkpoints. `real` frees
/// a path of symbolic links.
pub fn apart(dir: &Path, store: &Address, real: &dyn Fn(&Path) -> PathBuf) -> Result<(), MirrorError> {
    if store.nearness(dir, real) == Nearness::Apart {
        return Ok(());
    }
    let message = store.nested("the checkpoint store", dir, "copies would be taken for checkpoints");
    Err(MirrorError { message, code: exit::NOT_STARTED })
}

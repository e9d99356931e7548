//! The mirror of a checkpoint directory in a store. Opening it claims this run's attempt. Commits, restores and rollbacks are
//! in the folders beside this file.
//!
//! Everything here runs on the background thread's runtime and reports outcomes. Deliberately absent: when to commit, and what
//! an outcome means for the job.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::edge::fs::real_path;
use crate::edge::fs::rooted_dir::RootedDir;
use crate::edge::host::limits;
use crate::edge::store::{Store, StoreError};
use crate::edge::transfer::blocking::blocking;
use crate::rules::checkpoint::listing::OWN;
use crate::rules::checkpoint::{Listing, PartState};
use crate::rules::job::Novelty;
use crate::rules::process::exit;
use crate::rules::store::address::{Address, Nearness};
use crate::rules::store::names::{Attempt, CommitName, Stamp, hash16};
use crate::rules::store::plan::Hold;
use crate::supervisor::checkpoints::commit::dedup::Known;
use crate::supervisor::checkpoints::commit::publish::Unconfirmed;
use crate::supervisor::checkpoints::config::{Config, Role};
use crate::supervisor::checkpoints::directory::disk::{HARD_LINKS, TEMPORARY, is_read_only};
use crate::supervisor::checkpoints::directory::look::Watcher;
use crate::supervisor::checkpoints::directory::record::{self, Record};
use crate::supervisor::checkpoints::directory::scratch_dir::sweep;
use crate::supervisor::checkpoints::failure::{Failure, IN_THE_WAY};
use crate::supervisor::checkpoints::progress::Listeners;
use crate::supervisor::checkpoints::restore::offered::GangProgress;
use crate::supervisor::checkpoints::store::claim::{Remote, claim};
use crate::supervisor::checkpoints::store::retention::{Pruned, RetentionProgress};

/// What to resume from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// The absolute path that the framework loads: a file, a directory or a common prefix inside the checkpoint directory,
    /// or the directory itself.
    pub from: PathBuf,
    /// The training step, where known.
    pub step: Option<u64>,
    /// The commit that it equals, if any.
    pub commit: Option<Stamp>,
}

/// A commit of this directory.
#[derive(Debug, Clone)]
pub(crate) struct LastCommit {
    pub(crate) stamp: Stamp,
    pub(crate) step: Option<u64>,
    /// The hash in its name. Stamps repeat in a store that was emptied.
    pub(crate) hash: String,
}

impl LastCommit {
    pub(crate) fn of(name: &CommitName, step: Option<u64>) -> LastCommit {
        LastCommit { stamp: name.stamp.clone(), step, hash: name.hash.clone() }
    }
}

/// State between commits.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// The sequence number of the last commit that was tried.
    pub(crate) seq: u64,
    /// Keys written for a commit that has no manifest yet.
    pub(crate) uncommitted: RefCell<Vec<String>>,
    /// The files of the last commit, which are not sent again.
    pub(crate) known: Known,
    /// A commit whose manifest was sent and may exist.
    pub(crate) unconfirmed: Option<Arc<Unconfirmed>>,
    /// Commits in a row that a change of their files has spoilt.
    pub(crate) changes: u32,
    /// Bytes a second of the last commit.
    pub(crate) throughput: Option<f64>,
}

/// Which commits this run may go back to.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The commit that the run resumed from.
    pub(crate) parent: Option<Stamp>,
    /// The newest commit of earlier runs that this one may go back to.
    pub(crate) origin: Option<Stamp>,
    /// Commits from which the trainer failed twice: this run does not restore them again.
    pub(crate) bad: Vec<Stamp>,
    /// Commits that the store showed or this run made.
    pub(crate) known: Vec<Stamp>,
    /// Without a store: there was new content since the last check.
    pub(crate) is_further: bool,
    /// What its commits had.
    pub(crate) novelty: Novelty,
}

/// The results of the last look.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) parts: Vec<PartState>,
    /// A path that differs from what was committed.
    pub(crate) uncommitted: Option<String>,
    /// The newest checkpoint that the last commit left out.
    pub(crate) older: Option<String>,
    /// New content that is not in the store: its step, and since when.
    pub(crate) waiting: Option<(Option<u64>, Duration)>,
    /// Paths that can never be committed and were already reported.
    pub(crate) unfit: BTreeSet<String>,
}

/// The mirror of one run.
pub struct Mirror {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) remote: Option<Remote>,
    pub(crate) watcher: Watcher,
    pub(crate) last: Option<LastCommit>,
    pub(crate) sender: Sender,
    pub(crate) retiring: RetentionProgress,
    pub(crate) history: History,
    pub(crate) seen: Seen,
    pub(crate) listeners: Listeners,
    /// Bytes that the last restore fetched; `None`: it installed no commit.
    pub(crate) fetched: Option<u64>,
    /// With `--restore none`: the directory at the start, from which no attempt resumes.
    pub(crate) ignored: Option<Listing>,
    pub(crate) in_gang: GangProgress,
}

impl Mirror {
    /// Opens the directory and the store. A role that commits also creates the directory and claims an attempt. Errors: 125
    /// for an unusable directory, 204 for an unusable store.
    pub async fn open(config: Config) -> Result<Mirror, Failure> {
        let clock = Clock::start();
        let hold = if config.gang.is_some() { Hold::EveryStep } else { Hold::Nothing };
        let mut mirror = Mirror {
            watcher: Watcher::new(&config, clock),
            retiring: RetentionProgress::new(config.retention, hold, config.faults.clone()),
            config,
            clock,
            remote: None,
            last: None,
            sender: Sender::default(),
            history: History::default(),
            seen: Seen::default(),
            listeners: Listeners::default(),
            fetched: None,
            ignored: None,
            in_gang: GangProgress::default(),
        };
        let Some(address) = mirror.config.store.clone() else { return Ok(mirror) };
        let (dir, store) = (mirror.config.dir.clone(), address.clone());
        let checked = blocking(move || Ok(check_not_nested(&dir, &store, &real_path::real)));
        let checked = mirror.config.access.watched(&address, checked).await;
        let checked = checked.map_err(|error| mirror.config.away(&error))?;
        checked.map_err(|error| Failure::store(format!("{address} cannot be looked at: {error}; start again")))??;
        if mirror.config.claims() {
            mirror.prepare_directory().await?;
        }
        let store = Store::open(&address, mirror.config.claims(), &mirror.config.access).await;
        let store = store.map_err(|error| mirror.config.away(&error))?;
        let mut remote = Remote { store: Arc::new(store), address, claim: None };
        if mirror.config.claims() {
            let claim = claim(&remote.store).await.map_err(|error| mirror.config.away(&error))?;
            if !claim.honest {
                mirror.note(format!(
                    "{} ignores put-if-absent: only a random tag distinguishes two runs at once",
                    remote.address
                ));
            }
            remote.claim = Some(claim);
        }
        mirror.config.faults.point(1);
        mirror.remote = Some(remote);
        Ok(mirror)
    }

    /// Opens both read-only: nothing is claimed or created, and an absent store counts as empty.
    pub async fn open_to_look(mut config: Config) -> Result<Mirror, Failure> {
        config.role = Role::Looks;
        if let Some(store) = &config.store {
            check_not_nested(&config.dir, store, &real_path::real)?;
        }
        if let Some(Address::Directory(root)) = &config.store
            && !root.exists()
        {
            config.store = None;
        }
        Mirror::open(config).await
    }

    async fn prepare_directory(&mut self) -> Result<(), Failure> {
        let dir = self.config.dir.clone();
        let refused = |error: io::Error| Failure {
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
        let (at, links) = (dir.clone(), self.links_place());
        let within = links.clone();
        let rooted_dir = blocking(move || RootedDir::create(&at).map(Arc::new)).await.map_err(refused)?;
        let opened = Arc::clone(&rooted_dir);
        // A run that still commits to this store loses it to this one.
        let ready = blocking(move || opened.create_directory(OWN).map(|()| opened.remove_tree(&links)));
        match ready.await {
            Ok(removed) => {
                removed.err().into_iter().for_each(|error| self.note_left(&error, &within));
                self.sweep(&rooted_dir).await;
            }
            Err(error) if self.config.role == Role::Pushes && is_read_only(&error) => {}
            Err(error) => return Err(refused(error)),
        }
        Ok(())
    }

    /// Runs the work in the checkpoint directory on a thread for files. Errors: as open(2); those of the work.
    pub(crate) async fn in_dir<T: Send + 'static>(
        &self,
        work: impl FnOnce(Arc<RootedDir>) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let dir = self.config.dir.clone();
        blocking(move || work(Arc::new(RootedDir::open(&dir)?))).await
    }

    /// Creates the checkpoint directory of a run without a store. Returns a line for the log on failure.
    pub(crate) async fn make_directory(&self) -> Option<String> {
        let dir = self.config.dir.clone();
        let error = blocking(move || RootedDir::create(&dir)).await.err()?;
        Some(format!(
            "cannot make the checkpoint directory {}: {error}; unless the command can, it saves nothing there to resume from; give a --checkpoint-dir that can be made or written",
            self.config.dir.display()
        ))
    }

    /// Removes the files of killed processes.
    pub(crate) async fn sweep(&self, dir: &Arc<RootedDir>) {
        let dir = Arc::clone(dir);
        let swept = blocking(move || {
            let links = dir.names(HARD_LINKS).unwrap_or_default();
            let places = links.iter().map(|store| format!("{HARD_LINKS}/{store}")).chain([TEMPORARY.to_owned()]);
            let failed: Vec<_> = places.filter_map(|within| Some((sweep(&dir, &within).err()?, within))).collect();
            let _ = dir.remove_empty(HARD_LINKS);
            Ok(failed)
        });
        for (error, within) in swept.await.unwrap_or_default() {
            self.note_left(&error, &within);
        }
    }

    fn note_left(&self, error: &io::Error, within: &str) {
        self.note(format!("cannot remove what a killed run left in {within}: {error}; it takes up room"));
    }

    /// The directory for the hard links of all runs with this store.
    pub(crate) fn links_place(&self) -> String {
        let address = self.config.store.as_ref().map_or(String::new(), Address::to_string);
        format!("{HARD_LINKS}/{}", hash16(address.as_bytes()))
    }

    /// Deletes what retention no longer keeps, for at most `turn`.
    pub async fn retire(&mut self, turn: Duration, is_last: bool) {
        let Some(remote) = &self.remote else { return };
        let lines = self.retiring.retire(remote, self.history.parent.as_ref(), turn, is_last).await;
        lines.into_iter().for_each(|line| self.note(line));
    }

    /// Deletes what retention does not keep, and old orphans and temporary files; `dry` only lists them.
    pub async fn prune(&self, dry: bool) -> Result<Pruned, StoreError> {
        match &self.remote {
            Some(remote) => self.retiring.prune(remote, dry).await,
            None => Ok(Pruned::default()),
        }
    }

    /// Records the last commit of the directory. Without a record the next start restores from the store.
    pub(crate) async fn write_record(&self) {
        let record = Record {
            beside: self.watcher.beside(),
            unproven: self.watcher.unproven(),
            attempt: self.attempt().or(self.last.as_ref().map(|last| &last.stamp.attempt)).cloned(),
            stamp: self.last.as_ref().map(|last| last.stamp.clone()),
            hash: self.last.as_ref().map(|last| last.hash.clone()),
            committed: self.watcher.last().unwrap_or_default(),
        };
        let (store, node) = (self.recorded_store(), self.config.node);
        let written = self.in_dir(move |dir| record::write(&dir, store.as_ref(), node, record)).await;
        if let Err(error) = written
            && !(self.config.role == Role::Pushes && is_read_only(&error))
        {
            self.note(format!(
                "cannot write {} in {}: {error}; the next start treats this directory as older than the store's commit",
                record::path(node),
                self.config.dir.display()
            ));
        }
    }

    /// The store of the directory's last commit.
    pub(crate) fn recorded_store(&self) -> Option<Address> {
        if self.in_gang.follows_chief { self.config.chiefs_store.clone() } else { self.config.store.clone() }
    }

    pub(crate) fn attempt(&self) -> Option<&Attempt> {
        self.remote.as_ref().and_then(Remote::attempt)
    }

    /// The attempt number claimed in the store, for `TRAINIT_INCARNATION`; `None` without a store.
    pub fn incarnation(&self) -> Option<u64> {
        self.attempt().map(|attempt| attempt.number)
    }

    /// The step and the stamp of the directory's last commit.
    pub fn committed(&self) -> Option<(Option<u64>, &Stamp)> {
        self.last.as_ref().map(|last| (last.step, &last.stamp))
    }

    /// Whether the store has a commit that is older than the last one.
    pub(crate) fn has_older(&self) -> bool {
        let Some(last) = &self.last else { return false };
        self.history.known.iter().any(|stamp| *stamp < last.stamp && !self.history.bad.contains(stamp))
    }

    pub(crate) fn last_commit_clause(&self) -> String {
        match self.last.as_ref().map(|last| last.step) {
            Some(Some(step)) => format!("the last commit (step {step}) remains"),
            Some(None) => "the last commit remains".to_owned(),
            None => "this run has committed nothing yet".to_owned(),
        }
    }

    pub(crate) fn note(&self, line: String) {
        (self.config.note)(&line);
    }
}

/// Fails if the store and the checkpoint directory are inside each other, because copies would be taken for checkpoints. `real`
/// resolves symbolic links.
pub fn check_not_nested(dir: &Path, store: &Address, real: &dyn Fn(&Path) -> PathBuf) -> Result<(), Failure> {
    if store.nearness(dir, real) == Nearness::Apart {
        return Ok(());
    }
    let message = store.nested("the checkpoint store", dir, "copies would be taken for checkpoints");
    Err(Failure { message, code: exit::NOT_STARTED })
}

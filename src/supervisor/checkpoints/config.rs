//! The configuration of a mirror: the directory, the store and the limits.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::edge::fault::Faults;
use crate::edge::store::Access;
use crate::rules::checkpoint::Options;
use crate::rules::gang::agreement::Mode;
use crate::rules::store::address::Address;
use crate::rules::store::pace::Pace;
use crate::rules::store::plan::Retention;
use crate::supervisor::job::heartbeat::Heartbeat;

/// Whether to resume at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restore {
    /// From the newest commit, if there is one.
    Latest,
    /// From one, or not at all.
    Required,
    /// From scratch.
    Never,
}

/// What the process does with the directory and the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Restores, claims an attempt and commits.
    Keeps,
    /// Claims an attempt for one commit and restores nothing, so that a directory which can only be read will do.
    Pushes,
    /// Only reads the store.
    Looks,
    /// Writes nothing: another trainit keeps these checkpoints.
    Watches,
}

/// What to restore.
#[derive(Debug, Clone, Copy)]
pub struct Restoring {
    /// Whether to resume.
    pub what: Restore,
    /// From which step, if not the newest.
    pub step: Option<u64>,
}

/// This node's part in a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GangNode {
    /// How the nodes keep their checkpoints.
    pub mode: Mode,
    /// Whether this is node 0, whose checkpoints may hold for all.
    pub is_chief: bool,
}

/// The configuration of a mirror.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the trainer writes its checkpoints.
    pub dir: PathBuf,
    /// Where they are committed, this node's corner already chosen; `None` looks at local ones only.
    pub store: Option<Address>,
    /// Where node 0 commits.
    pub chiefs_store: Option<Address>,
    /// Its part in a gang, if the replicas form one.
    pub gang: Option<GangNode>,
    /// What this process does.
    pub role: Role,
    /// What the environment says about stores.
    pub access: Access,
    /// What is known about the checkpoints' form.
    pub options: Arc<Options>,
    /// A part must have lain unchanged for this long.
    pub settle: Duration,
    /// Whether other nodes train as well: each may use the same directory.
    pub has_other_nodes: bool,
    /// What to keep in the store.
    pub retention: Retention,
    /// What to restore.
    pub restoring: Restoring,
    /// The limit for the rate of commits while the trainer runs.
    pub pace: Arc<Mutex<Pace>>,
    /// The job's name, for the manifest.
    pub job: String,
    /// This node's rank, for the manifest.
    pub node: u32,
    /// Where the trainer says its step.
    pub heartbeat: Heartbeat,
    /// Says one line that no outcome says.
    pub note: fn(&str),
    /// For tests.
    pub faults: Faults,
}

impl Config {
    /// For a run that keeps these, with the defaults of its settings.
    pub fn new(dir: PathBuf, store: Option<Address>) -> Config {
        Config {
            dir,
            chiefs_store: store.clone(),
            store,
            gang: None,
            role: Role::Keeps,
            access: Access::default(),
            options: Arc::default(),
            settle: Duration::from_secs(2),
            has_other_nodes: false,
            retention: Retention { last: 3, every: None, orphan_age: Duration::from_secs(86_400) },
            restoring: Restoring { what: Restore::Latest, step: None },
            pace: Arc::new(Mutex::new(Pace::new(None))),
            job: String::new(),
            node: 0,
            heartbeat: Heartbeat::default(),
            note: |line| tracing::warn!(code = "checkpoint", "{line}"),
            faults: Faults::default(),
        }
    }

    /// Whether an attempt is claimed, so as to commit; else the store is only read.
    pub(crate) fn claims(&self) -> bool {
        self.store.is_some() && matches!(self.role, Role::Keeps | Role::Pushes)
    }

    /// Whether a person asks by hand: a run claims the store that it has.
    pub(crate) fn is_by_hand(&self) -> bool {
        self.store.is_some() && !self.claims()
    }

    /// What came of a restore that cannot be done.
    pub(crate) fn nothing_done(&self) -> &'static str {
        if self.is_by_hand() { "nothing was pulled" } else { "nothing was started" }
    }

    /// The checkpoint directory, absolute.
    pub(crate) fn home(&self) -> PathBuf {
        std::path::absolute(&self.dir).unwrap_or_else(|_| self.dir.clone())
    }
}

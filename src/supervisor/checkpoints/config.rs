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
    /// From the newest commit, or fail.
    Required,
    /// From scratch.
    Never,
}

/// What the process does with the directory and the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Restores, claims an attempt and commits.
    Keeps,
    /// Claims an attempt for one commit and restores nothing; the directory may be read-only.
    Pushes,
    /// Only reads the store.
    Looks,
    /// Writes nothing: another trainit process keeps these checkpoints.
    Watches,
}

/// What to restore.
#[derive(Debug, Clone, Copy)]
pub struct Restoring {
    /// Whether to resume.
    pub what: Restore,
    /// The step, if not the newest.
    pub step: Option<u64>,
}

/// This node's part in a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GangNode {
    /// How the nodes keep their checkpoints.
    pub mode: Mode,
    /// Whether this is node 0, whose checkpoints may be those of all nodes.
    pub is_chief: bool,
}

/// The configuration of a mirror.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the trainer writes its checkpoints.
    pub dir: PathBuf,
    /// The store for this node's commits; `None`: only local checkpoints.
    pub store: Option<Address>,
    /// The store of node 0.
    pub chiefs_store: Option<Address>,
    /// This node's part in a gang, if the replicas form one.
    pub gang: Option<GangNode>,
    /// What this process does.
    pub role: Role,
    /// The environment's settings for stores.
    pub access: Access,
    /// How to recognise checkpoints.
    pub options: Arc<Options>,
    /// A part must be unchanged for this long.
    pub settle: Duration,
    /// Whether other nodes train as well and may use the same directory.
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
    /// The trainer's step.
    pub heartbeat: Heartbeat,
    /// Logs a line that is not part of an outcome.
    pub note: fn(&str),
    /// For tests.
    pub faults: Faults,
}

impl Config {
    /// For a run that keeps checkpoints, with default settings.
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

    /// Whether to claim an attempt and commit. Otherwise the store is only read.
    pub(crate) fn claims(&self) -> bool {
        self.store.is_some() && matches!(self.role, Role::Keeps | Role::Pushes)
    }

    /// Whether a subcommand uses the store: a run claims its store.
    pub(crate) fn is_by_hand(&self) -> bool {
        self.store.is_some() && !self.claims()
    }

    /// The effect of a failed restore.
    pub(crate) fn nothing_done(&self) -> &'static str {
        if self.is_by_hand() { "nothing was pulled" } else { "nothing was started" }
    }

    /// The checkpoint directory, absolute.
    pub(crate) fn home(&self) -> PathBuf {
        std::path::absolute(&self.dir).unwrap_or_else(|_| self.dir.clone())
    }
}

//! What a mirror is told: the two sides, and how it is to go about it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::edge::fault::Faults;
use crate::edge::store::Access;
use crate::rules::checkpoint::Options;
use crate::rules::checkpoint::address::Address;
use crate::rules::checkpoint::pace::Pace;
use crate::rules::checkpoint::plan::Retention;

/// Whether to resume at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restore {
    /// From the newest complete checkpoint, if there is one.
    Latest,
    /// From one, or not at all.
    Required,
    /// From scratch.
    Never,
}

/// What the mirror is told.
#[derive(Debug, Clone)]
pub struct MirrorConfig {
    /// Where the trainer writes its checkpoints.
    pub dir: PathBuf,
    /// Where they are committed, this node's corner already chosen; `None` looks at local ones only.
    pub store: Option<Address>,
    /// Where node 0 commits, if this is another node.
    pub chief: Option<Address>,
    /// What the environment says about stores.
    pub access: Access,
    /// How fast commits may go while the trainer runs.
    pub pace: Arc<Mutex<Pace>>,
    /// What is known about the checkpoints' form.
    pub options: Options,
    /// What to keep in the store.
    pub retention: Retention,
    /// Whether to resume.
    pub restore: Restore,
    /// From which step, if not the newest.
    pub restore_step: Option<u64>,
    /// Whether manifests shall have a BLAKE3 of each file.
    pub strong: bool,
    /// Whether each file shall be an object of its own, however many and small they are.
    pub apart: bool,
    /// Which step to commit, if not the newest.
    pub push_step: Option<u64>,
    /// Whether to find out only what a restore would do.
    pub dry: bool,
    /// The job's name, for the manifest.
    pub job: String,
    /// This node's rank, for the manifest.
    pub node: u32,
    /// Whether to claim an attempt, so as to commit; else the store is only read.
    pub claim: bool,
    /// Whether one commit is all, and nothing is ever restored, so that a directory which can only be read will do.
    pub only_sends: bool,
    /// For tests.
    pub faults: Faults,
}

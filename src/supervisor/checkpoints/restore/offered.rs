//! The checkpoints that this node of a gang has offered.

use std::collections::BTreeSet;

use crate::rules::gang::message::Step;
use crate::rules::store::names::{CommitName, Stamp};

/// The place of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// The present directory.
    Directory,
    /// An older checkpoint in the directory.
    Unit(String),
    Store(CommitName),
}

/// The state of the mirror in a gang.
#[derive(Debug, Default)]
pub(crate) struct GangProgress {
    /// The last offer, with the place of each checkpoint.
    pub(crate) offered: Vec<(Step, Source)>,
    /// Whether the directory's checkpoints may be resumed from and committed.
    pub(crate) directory_counts: bool,
    /// Whether the directory has the checkpoint of node 0, which this node does not commit.
    pub(crate) follows_chief: bool,
    /// The newest step that all nodes have.
    pub(crate) kept: Option<u64>,
    pub(super) has_offered: bool,
    /// Commits that were found complete.
    pub(super) whole: BTreeSet<Stamp>,
}

//! What this node of a gang has offered.

use std::collections::BTreeSet;

use crate::rules::gang::message::Step;
use crate::rules::store::names::{CommitName, Stamp};

/// Where a checkpoint comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// The directory as it is.
    Here,
    /// An older checkpoint in the directory.
    Unit(String),
    /// A commit.
    Store(CommitName),
}

/// What the mirror knows as the node of a gang.
#[derive(Debug, Default)]
pub(crate) struct GangProgress {
    /// What was offered last, and where it comes from.
    pub(crate) offered: Vec<(Step, Source)>,
    /// Whether the directory's checkpoints may be resumed from and committed.
    pub(crate) directory_counts: bool,
    /// Whether the directory has what node 0 restored: this node commits nothing of it.
    pub(crate) follows_chief: bool,
    /// The newest step that all have.
    pub(crate) kept: Option<u64>,
    pub(super) has_offered: bool,
    /// Commits that were found complete.
    pub(super) whole: BTreeSet<Stamp>,
}

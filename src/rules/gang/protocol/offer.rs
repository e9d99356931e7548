//! The checkpoints that members offer, and the leader's choice.

use serde::{Deserialize, Serialize};

/// A checkpoint that a member can restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Step {
    /// The training step; `None` if neither the format, `--step-regex` nor the heartbeat has it.
    pub step: Option<u64>,
    /// The first 64 bits of the manifest's hash, which distinguishes two checkpoints of one node.
    pub hash: u64,
    /// Whether it is a commit in the store, which other nodes can read.
    pub is_stored: bool,
}

/// The checkpoints that a member can restore, sent while its process tree is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Offer {
    /// At most [`MOST_STEPS`](super::message::MOST_STEPS), newest first, and the kept one.
    pub steps: Vec<Step>,
    /// Whether this node has checkpoint files or commits of its own, not only those of node 0.
    pub has_own_checkpoints: bool,
    /// Whether the leader's file is in this node's checkpoint directory.
    pub sees_leaders_file: bool,
}

/// The checkpoint from which a generation starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// None: training starts from the beginning.
    Start,
    /// Each node's own commit of this step.
    Own(u64),
    /// Node 0's commit.
    Chiefs(Step),
    /// The checkpoint in the shared directory, which node 0 restores.
    Shared(Step),
}

impl Choice {
    /// The training step; `None` at the beginning.
    pub fn step(self) -> Option<u64> {
        match self {
            Choice::Start => None,
            Choice::Own(step) => Some(step),
            Choice::Chiefs(step) | Choice::Shared(step) => step.step,
        }
    }

    /// The hash of node 0's checkpoint, if that was chosen.
    pub fn hash(self) -> Option<u64> {
        match self {
            Choice::Start | Choice::Own(_) => None,
            Choice::Chiefs(step) | Choice::Shared(step) => Some(step.hash),
        }
    }
}

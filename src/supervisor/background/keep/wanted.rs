//! What the background thread receives about a run's checkpoints and model.

use std::time::Duration;

use crate::rules::status::sibling::Kept;
use crate::supervisor::background::keep::sibling::{Others, Sibling};
use crate::supervisor::background::model::LeftModel;
use crate::supervisor::checkpoints::config::{Config, GangNode};
use crate::supervisor::job::heartbeat::Heartbeat;

/// What to keep of a run.
#[derive(Debug)]
pub struct Keep {
    /// Its checkpoints: to restore and to commit.
    pub checkpoints: Option<Checkpoints>,
    /// What to copy when the job has finished.
    pub model: Option<LeftModel>,
}

impl Keep {
    /// Where the model is to be copied when the job has finished; `None`: there is none.
    pub fn model_goes_to(&self) -> Option<String> {
        self.model.as_ref().map(|model| model.store.to_string())
    }

    /// The replicas form a gang: what is restored is agreed on.
    pub fn join_gang(&mut self, gang: GangNode) {
        if let Some(checkpoints) = &mut self.checkpoints {
            let config = &mut checkpoints.config;
            config.gang = Some(gang);
            // What the agreed checkpoint does not have is moved aside, or a trainer might go on from it.
            config.has_other_nodes = false;
        }
    }

    /// Whether checkpoints are committed, but for those that turn out to be kept by another.
    pub fn has_store(&self) -> bool {
        self.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.config.store.is_some())
    }

    /// Which checkpoints are committed, and where to; `None`: none are.
    pub fn kept(&self) -> Option<Kept> {
        self.checkpoints.as_ref()?.kept.clone()
    }

    /// Where the trainer says its step.
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        self.checkpoints.as_ref().map(|checkpoints| checkpoints.config.heartbeat.clone()).unwrap_or_default()
    }
}

/// What to keep, and how often to look.
#[derive(Debug)]
pub struct Checkpoints {
    /// The directory, the store, and the rules between them.
    pub config: Config,
    /// Between two looks while training.
    pub interval: Duration,
    /// Which they are, for other processes that ask; `None`: they are not committed.
    pub kept: Option<Kept>,
    /// The trainit beside this one that keeps them; `None`: this one does, or none.
    pub sibling: Option<Sibling>,
    /// Those whose checkpoints this one keeps beside its own.
    pub others: Option<Others>,
}

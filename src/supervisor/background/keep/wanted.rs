//! The configuration of the background thread for a run's checkpoints and model.

use std::path::PathBuf;
use std::time::Duration;

use crate::rules::life::run::Identity;
use crate::rules::status::sibling::Kept;
use crate::supervisor::background::keep::sibling::{Others, Sibling};
use crate::supervisor::background::model::LeftModel;
use crate::supervisor::checkpoints::config::{Config, GangNode};
use crate::supervisor::job::heartbeat::Heartbeat;

/// The checkpoints and the model of a run.
#[derive(Debug)]
pub struct Keep {
    /// The checkpoints to restore and to commit.
    pub checkpoints: Option<Checkpoints>,
    /// The model to copy when the job has finished.
    pub model: Option<LeftModel>,
    /// This replica, for the object about this run beside the checkpoints; `None`: there is no such object.
    pub identity: Option<Identity>,
    /// The directory of the compilation caches.
    pub cache_dir: Option<PathBuf>,
}

impl Keep {
    /// The destination of the model when the job has finished; `None`: there is no model.
    pub fn model_goes_to(&self) -> Option<String> {
        self.model.as_ref().map(|model| model.store.to_string())
    }

    /// The replicas form a gang, which agrees on the checkpoint to restore.
    pub fn join_gang(&mut self, gang: GangNode) {
        if let Some(checkpoints) = &mut self.checkpoints {
            let config = &mut checkpoints.config;
            config.gang = Some(gang);
            // Files that are not part of the agreed checkpoint are moved aside, because a trainer might resume from
            // them.
            config.has_other_nodes = false;
        }
    }

    /// Whether checkpoints are committed, unless another run turns out to keep them.
    pub fn has_store(&self) -> bool {
        self.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.config.store.is_some())
    }

    /// The committed checkpoints and their store; `None`: none are committed.
    pub fn kept(&self) -> Option<Kept> {
        self.checkpoints.as_ref()?.kept.clone()
    }

    /// The heartbeat file with the trainer's step.
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        self.checkpoints.as_ref().map(|checkpoints| checkpoints.config.heartbeat.clone()).unwrap_or_default()
    }
}

/// The checkpoints, and the interval of scans.
#[derive(Debug)]
pub struct Checkpoints {
    /// The directory, the store, and the rules between them.
    pub config: Config,
    /// The interval of scans during training.
    pub interval: Duration,
    /// Their identity for other processes that ask; `None`: they are not committed.
    pub kept: Option<Kept>,
    /// The other trainit that keeps them; `None`: this one keeps them, or none does.
    pub sibling: Option<Sibling>,
    /// The other runs whose checkpoints this one keeps, too.
    pub others: Option<Others>,
}

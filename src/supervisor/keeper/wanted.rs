//! What is to be kept of a run, as it is handed to the keeper.

use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

use super::mirror::MirrorConfig;
use super::sibling::{Others, Sibling};
use super::{Keeper, LeftModel};
use crate::edge::clock::Clock;
use crate::rules::status::sibling::Kept;
use crate::supervisor::background::{Order, Teller};

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

    /// Whether checkpoints are committed, but for those that turn out to be kept by another.
    pub fn has_store(&self) -> bool {
        self.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.mirror.store.is_some())
    }

    /// Which checkpoints are committed, and where to; `None`: none are.
    pub fn kept(&self) -> Option<Kept> {
        self.checkpoints.as_ref()?.kept.clone()
    }

    /// Carries out orders until the supervisor is gone; between them, looks for new checkpoints.
    pub(in crate::supervisor) async fn work(self, orders: UnboundedReceiver<Order>, teller: Teller, clock: Clock) {
        Keeper::new(self, teller, clock).work(orders).await;
    }
}

/// What to keep, and how often to look.
#[derive(Debug)]
pub struct Checkpoints {
    /// The directory, the store, and the rules between them.
    pub mirror: MirrorConfig,
    /// Between two looks while training.
    pub interval: Duration,
    /// A checkpoint must have lain unchanged for this long.
    pub settle: Duration,
    /// Which they are, for who asks; `None`: they are not committed.
    pub kept: Option<Kept>,
    /// Whether nobody but this one's command writes into the directory.
    pub alone: bool,
    /// The trainit beside this one that keeps them; `None`: this one does, or nobody.
    pub sibling: Option<Sibling>,
    /// Those whose checkpoints this one keeps beside its own.
    pub others: Option<Others>,
}

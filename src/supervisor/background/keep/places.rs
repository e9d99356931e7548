//! What waits for the opened store, beside the checkpoints: the run's object and the compilation caches.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::supervisor::background::keep::run::CheckpointThread;
use crate::supervisor::background::ledger::Place;
use crate::supervisor::checkpoints::mirror::Mirror;

/// How long the first start waits for the compilation caches after the restore, beside the time that the restore took.
const CACHES: Duration = Duration::from_millis(800);

/// What waits for the opened store, and what the first start waits for.
pub(in crate::supervisor::background) struct Places {
    /// Each receives the place once.
    pub(in crate::supervisor::background) found: Vec<oneshot::Sender<Place>>,
    /// Disconnects when the compilation caches are fetched.
    pub(in crate::supervisor::background) caches: oneshot::Receiver<()>,
}

impl CheckpointThread {
    /// The store is open.
    pub(super) fn tell_place(&self, mirror: &Mirror) {
        if let Some(places) = self.places.borrow_mut().as_mut() {
            places.found.drain(..).for_each(|found| _ = found.send(Place::of(mirror)));
        }
    }

    /// The first start waits for the compilation caches at most as long as the restore took, and a moment.
    pub(super) async fn await_caches(&self, restored: Duration) {
        let places = self.places.take();
        if let Some(Places { found, caches }) = places {
            drop(found);
            let _ = tokio::time::timeout(restored + CACHES, caches).await;
        }
    }
}

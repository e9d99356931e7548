//! The orders of a gang: list the checkpoints that can be restored, and restore the agreed one.

use crate::rules::checkpoint::Writer;
use crate::rules::gang::Incarnation;
use crate::rules::gang::message::{Choice, Offer};
use crate::rules::job::Event;
use crate::supervisor::background::keep::run::{CheckpointThread, given_up};
use crate::supervisor::background::keep::wanted::Checkpoints;
use crate::supervisor::background::keep::watchdog::Watchdog;
use crate::supervisor::checkpoints::config::Restore;
use crate::supervisor::checkpoints::failure::Failure;
use crate::supervisor::checkpoints::mirror::Mirror;

impl CheckpointThread {
    /// The tree is empty: commits the settled files, and reports the checkpoints that can be restored.
    pub(super) async fn survey(&mut self, leader: Option<Incarnation>) {
        let surveyed = match self.checkpoints.take() {
            Some(checkpoints) => self.open_in_gang(checkpoints).await,
            None => self.settle_in_gang().await,
        };
        let offered = match (surveyed, &mut self.mirror) {
            (Ok(true), Some(mirror)) => {
                let watchdog = Watchdog::new(&mirror.config, self.clock, &self.is_pressed);
                let offered = watchdog.watch("survey", None, mirror.offer(leader)).await;
                offered.unwrap_or_else(|why| Err(given_up(why)))
            }
            (Ok(true), None) => Ok(Offer::default()),
            // A newer run has taken over, and that was reported.
            (Ok(false), _) => return,
            (Err(failure), _) => Err(failure),
        };
        (self.writer, self.died_ns) = (Writer::Finished, None);
        match offered {
            Ok(offer) => self.report.send(Event::Surveyed(offer)),
            Err(failure) => self.report.not_restored(failure),
        }
    }

    /// Opens both sides, and claims the store. False: a newer run has taken over.
    async fn open_in_gang(&mut self, checkpoints: Checkpoints) -> Result<bool, Failure> {
        let watchdog = Watchdog::new(&checkpoints.config, self.clock, &self.is_pressed);
        let opened = async {
            let (mut mirror, unmade) = self.open(checkpoints.config).await?;
            mirror.begin_in_gang().await?;
            unmade.into_iter().for_each(|line| mirror.note(line));
            Ok::<Mirror, Failure>(mirror)
        };
        let mirror = watchdog.watch("start", None, opened).await.map_err(given_up)??;
        if let Some(number) = mirror.incarnation() {
            self.report.incarnation(number);
        }
        let restoring = mirror.config.restoring;
        self.mirror = Some(mirror);
        // Uncommitted files of an earlier run are committed before they are offered.
        let continues = restoring.what != Restore::Never && restoring.step.is_none();
        Ok(!continues || self.save_what_is_left().await)
    }

    /// After an attempt: commits the settled files, and moves torn files away. False: a newer run has taken over.
    async fn settle_in_gang(&mut self) -> Result<bool, Failure> {
        if !self.save_what_is_left().await {
            return Ok(false);
        }
        let how = self.how();
        if let Some(mirror) = self.mirror.as_mut().filter(|mirror| mirror.may_commit())
            && mirror.roll_back(how).await?.is_some()
        {
            // The torn files cannot be restored from the last commit here, so only the store has a complete checkpoint.
            mirror.in_gang.directory_counts = false;
        }
        self.writer = Writer::Finished;
        let was_held_back = self.mirror.as_ref().is_some_and(|mirror| !mirror.left_out().is_empty());
        // The torn files have been moved away.
        Ok(!was_held_back || self.save_what_is_left().await)
    }

    /// Restores the agreed checkpoint. Returns whether there is a store to commit to from now on.
    pub(super) async fn restore_agreed(&mut self, choice: Choice) -> bool {
        let Some(mirror) = &mut self.mirror else {
            self.report.restored(None, None);
            return false;
        };
        let (watchdog, begun) = (Watchdog::new(&mirror.config, self.clock, &self.is_pressed), self.clock.now());
        let restored = watchdog.watch("restore", None, mirror.restore_agreed(choice)).await;
        match restored.unwrap_or_else(|why| Err(Failure::store(why))) {
            Ok(resume) => {
                mirror.mark_unfinished(true).await;
                let has_store = mirror.config.store.is_some() && !mirror.leaves_commits_to_chief();
                self.await_caches(self.clock.now().saturating_sub(begun)).await;
                self.report.restored(self.mirror.as_mut(), resume);
                has_store
            }
            Err(failure) => {
                self.report.not_restored(failure);
                false
            }
        }
    }
}

//! The checks between an upload and a commit: whether this run still owns the store, and whether the store holds the upload.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Duration;

use crate::edge::store::{StoreError, Trouble};
use crate::rules::store::manifest::Manifest;
use crate::rules::store::names::{Attempt, CommitName, Stamp, stamp_of_data};
use crate::rules::store::plan::ClaimState;
use crate::supervisor::checkpoints::failure::Stop;
use crate::supervisor::checkpoints::store::claim::Remote;
use crate::supervisor::checkpoints::store::commits::{attempts, commits};

/// How long to wait for the store if there is another way.
pub(crate) const SOON: Duration = Duration::from_secs(5);
/// How long to wait for the store if its answer is optional.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(1);

impl Remote {
    pub(crate) async fn answers(&self) -> bool {
        match tokio::time::timeout(SOON, attempts(&self.store)).await {
            Err(_) => false,
            Ok(Err(error)) => error.trouble != Trouble::Unreachable,
            Ok(Ok(_)) => true,
        }
    }

    /// The newer run that has taken over; `None` also if the store does not answer.
    pub(crate) async fn overtaken(&self) -> Option<Attempt> {
        match self.standing(None).await {
            Ok(Some(ClaimState::Overtaken(by))) => Some(by),
            _ => None,
        }
    }

    /// Fails if a newer run has taken over. A slow store is not waited for; `left` is the time that is left.
    pub(crate) async fn check_not_fenced(&self, left: Option<Duration>) -> Result<(), Stop> {
        let time_limit = left.map_or(AT_ONCE, |left| AT_ONCE.min(left / 4));
        match tokio::time::timeout(time_limit, self.overtaken()).await {
            Ok(Some(by)) => Err(Stop::Fenced(by)),
            _ => Ok(()),
        }
    }

    /// Fails unless this run may still commit. `known`: a commit that the store must have; `sent`: the uploaded keys, cleared
    /// if they belong to another run with the same number.
    pub(crate) async fn fence(&self, known: Option<&Stamp>, sent: &RefCell<Vec<String>>) -> Result<(), Stop> {
        let Some(claim) = &self.claim else { return Err(Stop::Failed("no --checkpoint-store is set".to_owned())) };
        match self.standing(known).await? {
            Some(ClaimState::Overtaken(by)) => return Err(Stop::Fenced(by)),
            Some(ClaimState::Gone) => return Err(Stop::Failed(self.unclaimed())),
            Some(ClaimState::Newest) | None => {}
        }
        // A store that checks for the key and writes it in two steps lets two runs claim one number; the later write stays. A
        // run that has committed has passed this check.
        let has_committed = known.is_some_and(|stamp| stamp.attempt == claim.attempt);
        if has_committed {
            return Ok(());
        }
        match self.store.holds(&claim.attempt.key(), &claim.body).await? {
            Some(true) => return Ok(()),
            Some(false) => {}
            None => return Err(Stop::Failed(self.unclaimed())),
        }
        // The other run's objects have the same keys.
        sent.take();
        Err(Stop::Fenced(claim.attempt.clone()))
    }

    /// Fails if the store acknowledged the manifest and does not have it. A store that does not answer is trusted, and so is a
    /// listing that shows the manifest.
    pub(crate) async fn confirm_manifest(&self, name: &CommitName, text: &[u8]) -> Result<(), Stop> {
        let key = name.key();
        let asked = async {
            Ok(match self.store.holds(&key, text).await? {
                None => commits(&self.store).await?.contains(name),
                Some(is_it) => is_it,
            })
        };
        match tokio::time::timeout(SOON, asked).await {
            Ok(Ok::<bool, StoreError>(false)) => Err(Stop::Lost(format!(
                "the store said that it took {key} and does not hold it; earlier commits remain; see that this is the store and nothing between, then start again"
            ))),
            _ => Ok(()),
        }
    }

    /// The newer run that has committed, if this commit shares files with an older one: that run may have decided to delete
    /// the files before it could see this commit. The caller then deletes this commit.
    pub(crate) async fn find_newer_run(&self, name: &CommitName, manifest: &Manifest) -> Option<Attempt> {
        shared(name, manifest).next()?;
        let newest = commits(&self.store).await.ok()?.into_iter().next()?;
        (newest.stamp.attempt > name.stamp.attempt).then_some(newest.stamp.attempt)
    }
}

/// The keys of a commit that an earlier commit wrote.
pub(crate) fn shared<'a>(name: &'a CommitName, manifest: &'a Manifest) -> impl Iterator<Item = &'a str> {
    let keys: HashSet<&str> = manifest.regular().map(|item| item.key.as_str()).collect();
    keys.into_iter().filter(|key| stamp_of_data(key).as_ref() != Some(&name.stamp))
}

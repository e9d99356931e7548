//! The checks between an upload and a commit: whether this run still owns the store, and whether the store holds the upload.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Duration;

use crate::edge::store::Trouble;
use crate::rules::store::manifest::{LIMIT, Manifest};
use crate::rules::store::names::{Attempt, CommitName, Stamp, stamp_of_data};
use crate::rules::store::plan::Standing;
use crate::supervisor::checkpoints::failure::Stop;
use crate::supervisor::checkpoints::store::claim::Remote;
use crate::supervisor::checkpoints::store::commits::{attempts, commits};

/// A store that answers later than this is not waited for where there is a way without it.
pub(crate) const SOON: Duration = Duration::from_secs(5);
/// The same where the answer is worth no wait.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(1);

impl Remote {
    /// Whether the store answers soon.
    pub(crate) async fn answers(&self) -> bool {
        match tokio::time::timeout(SOON, attempts(&self.store)).await {
            Err(_) => false,
            Ok(Err(error)) => error.trouble != Trouble::Unreachable,
            Ok(Ok(_)) => true,
        }
    }

    /// The newer run that has taken over, if one has and can be asked for.
    pub(crate) async fn overtaken(&self) -> Option<Attempt> {
        match self.standing(None).await {
            Ok(Some(Standing::Overtaken(by))) => Some(by),
            _ => None,
        }
    }

    /// Fails where a newer run has taken over. Nothing is sent, so that a store which does not say so at once holds nothing
    /// up; `left` is the time there is.
    pub(crate) async fn give_way(&self, left: Option<Duration>) -> Result<(), Stop> {
        let time_limit = left.map_or(AT_ONCE, |left| AT_ONCE.min(left / 4));
        match tokio::time::timeout(time_limit, self.overtaken()).await {
            Ok(Some(by)) => Err(Stop::Fenced(by)),
            _ => Ok(()),
        }
    }

    /// Fails unless this run may still commit. `known`: a commit that the store must hold if it is ours; `sent`: keys that
    /// are not ours where another run has claimed the same number.
    pub(crate) async fn fence(&self, known: Option<&Stamp>, sent: &RefCell<Vec<String>>) -> Result<(), Stop> {
        let Some(claim) = &self.claim else { return Err(Stop::Failed("no --checkpoint-store is set".to_owned())) };
        match self.standing(known).await? {
            Some(Standing::Overtaken(by)) => return Err(Stop::Fenced(by)),
            Some(Standing::Gone) => return Err(Stop::Failed(self.unclaimed())),
            Some(Standing::Newest) | None => {}
        }
        // A store that looks whether a name is free, and writes then, lets two runs claim one number; what the later of them
        // wrote stays. A run that has committed with it has passed this check.
        let has_committed = known.is_some_and(|stamp| stamp.attempt == claim.attempt);
        if has_committed || self.store.get(&claim.attempt.key(), LIMIT).await? == claim.body {
            return Ok(());
        }
        // The other run's objects have the same keys.
        sent.take();
        Err(Stop::Fenced(claim.attempt.clone()))
    }

    /// Fails where the store only said that it took the manifest. One that cannot be asked any more did take it.
    pub(crate) async fn is_there(&self, name: &CommitName) -> Result<(), Stop> {
        let key = name.key();
        let is_it = match tokio::time::timeout(SOON, self.store.get(&key, LIMIT + 1)).await {
            Err(_) => true,
            Ok(Ok(text)) => CommitName::of(name.stamp.clone(), Some(name.step), &text) == *name,
            Ok(Err(error)) => error.trouble != Trouble::Absent,
        };
        if is_it {
            return Ok(());
        }
        Err(Stop::Lost(format!(
            "the store said that it took {key} and does not hold it; earlier commits remain; see that this is the store and nothing between, then start again"
        )))
    }

    /// The newer run that has committed, where this commit shares files with an older one: a process that listed what may
    /// go before this commit was there, and deletes after it, takes them away. The caller then takes the commit back.
    pub(crate) async fn is_outdone(&self, name: &CommitName, manifest: &Manifest) -> Option<Attempt> {
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

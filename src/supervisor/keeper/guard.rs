//! What stands between an upload and a commit: whose turn it is, whether everything was copied, and whether the store holds
//! what it took.

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use super::claim::{attempts, standing};
use super::look::Local;
use super::mirror::Mirror;
use super::retention::{commits, data_of};
use super::send::Stop;
use crate::edge::store::{Store, Trouble};
use crate::rules::checkpoint::manifest::{LIMIT, Manifest};
use crate::rules::checkpoint::names::{Attempt, CommitName, stamp_of_data};
use crate::rules::checkpoint::plan::Standing;

/// A store that answers later than this is not waited for where there is a way without it.
pub(super) const SOON: Duration = Duration::from_secs(5);
/// The same where the answer is worth no wait.
pub(super) const AT_ONCE: Duration = Duration::from_secs(1);

/// What comes of asking a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// Be it a refusal.
    Came,
    /// Not soon; a busy one may still give it.
    Late,
    Unreachable,
}

/// Whether the store answers soon.
pub(super) async fn answers(store: &Store) -> Answer {
    match tokio::time::timeout(SOON, attempts(store)).await {
        Err(_) => Answer::Late,
        Ok(Err(error)) if error.trouble == Trouble::Unreachable => Answer::Unreachable,
        Ok(_) => Answer::Came,
    }
}

/// Says once that what a run goes on from is waited for, where the store owes an answer and nothing moves.
pub(super) async fn tell_of_standstill(store: &Store, address: &str) -> Infallible {
    loop {
        let before = store.motion();
        tokio::time::sleep(SOON).await;
        if store.motion().is_stuck_since(before) {
            break;
        }
    }
    tracing::warn!(
        code = "store",
        "{address} does not send what it was asked for: the checkpoint to go on from is waited for about a minute more; see that it is well and can be reached from here"
    );
    pending().await
}

impl Mirror {
    /// Whether the store answers soon, if there is one.
    pub async fn answers(&self) -> bool {
        match &self.store {
            Some(store) => answers(store).await == Answer::Came,
            None => true,
        }
    }

    /// The newer run that has taken over, if one has and can be asked for.
    pub(super) async fn overtaken(&self) -> Option<Attempt> {
        let (store, attempt) = (self.store.as_ref()?, self.attempt.as_ref()?);
        match standing(store, attempt, &self.claim, None).await.ok()? {
            Standing::Overtaken(by) => Some(by),
            _ => None,
        }
    }

    /// Fails where a newer run has taken over. Nothing is sent, so that a store which does not say so at once holds nothing
    /// up; `left` is the time there is.
    pub(super) async fn give_way(&self, left: Option<Duration>) -> Result<(), Stop> {
        let patience = left.map_or(AT_ONCE, |left| AT_ONCE.min(left / 4));
        match tokio::time::timeout(patience, self.overtaken()).await {
            Ok(Some(by)) => Err(Stop::Fenced(by)),
            _ => Ok(()),
        }
    }

    /// May we still commit?
    pub(super) async fn fence(&self, store: &Store, ours: &Attempt) -> Result<(), Stop> {
        match standing(store, ours, &self.claim, self.known_commit()).await? {
            Standing::Newest => self.is_alone(store, ours).await,
            Standing::Overtaken(by) => Err(Stop::Fenced(by)),
            Standing::Gone => Err(Stop::Failed(self.unclaimed(ours))),
        }
    }

    /// A store that looks whether a name is free, and writes then, lets two runs claim one number; what the later of them
    /// wrote stays. Whoever has committed by it has come through here.
    async fn is_alone(&self, store: &Store, ours: &Attempt) -> Result<(), Stop> {
        let has_committed = self.known_commit().is_some_and(|stamp| stamp.attempt == *ours);
        if has_committed || store.get(&ours.key(), LIMIT).await? == self.claim {
            return Ok(());
        }
        // The other's lie under the same keys.
        self.made.take();
        Err(Stop::Fenced(ours.clone()))
    }

    /// Fails where the unit has got more files than were copied. That it is gone is no harm.
    pub(super) async fn is_all(&self, local: &Local) -> Result<(), Stop> {
        let unit = &local.candidate.unit;
        let now = self.entries_of(unit).await.map_err(|error| self.unreadable(&error))?.unwrap_or_default();
        let copied: HashSet<&str> = local.entries.iter().map(|e| e.path.as_str()).collect();
        match now.iter().find(|e| !copied.contains(e.path.as_str())) {
            Some(new) => Err(Stop::Changed(format!("{} came into {unit} while it was copied", new.path))),
            None => Ok(()),
        }
    }

    /// Fails where the store only said that it took the manifest. One that cannot be asked any more did take it.
    pub(super) async fn is_there(&self, store: &Store, name: &CommitName) -> Result<(), Stop> {
        let key = name.key();
        let is_it = match tokio::time::timeout(SOON, store.get(&key, LIMIT + 1)).await {
            Err(_) => true,
            Ok(Ok(text)) => CommitName::of(name.stamp.clone(), Some(name.step), &text) == *name,
            Ok(Err(error)) => error.trouble != Trouble::Absent,
        };
        let why = || {
            format!(
                "the store said that it took {} and does not hold it; what was before still is; see that this is the store and nothing between, then start again",
                name.key()
            )
        };
        if is_it { Ok(()) } else { Err(Stop::Lost(why())) }
    }

    /// Takes our commit back where it shares files with an older one and a newer run has committed too: whoever listed
    /// what may go before ours was there, and deletes after it, takes them away.
    pub(super) async fn make_way(&self, store: &Store, name: &CommitName, manifest: &Manifest) -> Result<(), Stop> {
        let shared = manifest.regular().map(|item| item.key.clone());
        let shared: HashSet<String> = shared.filter(|key| stamp_of_data(key).as_ref() != Some(&name.stamp)).collect();
        if shared.is_empty() {
            return Ok(());
        }
        let newest = commits(store).await.ok().and_then(|names| names.into_iter().next());
        let Some(newest) = newest.filter(|newest| newest.stamp.attempt > name.stamp.attempt) else { return Ok(()) };
        self.delete(store, name, data_of(name, Some(manifest), |key| shared.contains(key))).await?;
        Err(Stop::Fenced(newest.stamp.attempt))
    }
}

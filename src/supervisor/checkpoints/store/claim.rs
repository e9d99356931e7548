//! Claims this run's attempt number in the store, and tests whether the store supports conditional writes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, try_join3};

use crate::edge::clock;
use crate::edge::store::{Created, Store, StoreError};
use crate::rules::store::address::Address;
use crate::rules::store::names::{Attempt, COMMITS, CommitName, PROBES, Stamp};
use crate::rules::store::plan::{self, ClaimState};
use crate::supervisor::checkpoints::directory::disk::nonce;
use crate::supervisor::checkpoints::store::commits::{attempts, commits};

/// How often commits that the store has shown before are requested.
const LOOKS: u32 = 4;
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// Temporary files stay for this long, because a process may be writing them.
pub(crate) const STAGED: Duration = Duration::from_secs(600);

/// The store of a run, and the run's claim.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    pub(crate) store: Arc<Store>,
    pub(crate) address: Address,
    /// This run's claim; `None` if it does not commit.
    pub(crate) claim: Option<Claim>,
}

impl Remote {
    pub(crate) fn attempt(&self) -> Option<&Attempt> {
        self.claim.as_ref().map(|claim| &claim.attempt)
    }

    /// The error for a store without this run's claim.
    pub(crate) fn unclaimed(&self) -> String {
        let claim = self.attempt().map_or(String::new(), Attempt::key);
        format!(
            "{} does not show this run's claim {claim}: it was emptied, is not mounted any more, or does not list what it holds; nothing is committed or restored until it shows it again; see that the store is the one of the start",
            self.address
        )
    }

    /// The state of this run's claim; `None` if it does not commit. A claim that is gone is created again if the store has
    /// the `known` commit: a rule of the bucket may delete old objects.
    pub(crate) async fn standing(&self, known: Option<&Stamp>) -> Result<Option<ClaimState>, StoreError> {
        let Some(Claim { attempt, body, .. }) = &self.claim else { return Ok(None) };
        let standing = plan::standing(attempt, &attempts(&self.store).await?);
        if standing != ClaimState::Gone || !commits(&self.store).await?.iter().any(|name| Some(&name.stamp) == known) {
            return Ok(Some(standing));
        }
        Ok(Some(match self.store.create(&attempt.key(), body.clone()).await? {
            Created::Own => ClaimState::Newest,
            // Another run has taken the number meanwhile.
            Created::Taken => ClaimState::Overtaken(attempt.clone()),
        }))
    }
}

/// An attempt number that only this run has.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) attempt: Attempt,
    /// Its content in the store.
    pub(crate) body: Vec<u8>,
    /// Whether put-if-absent works, so that two runs never claim the same number.
    pub(crate) honest: bool,
    pub(crate) saw_commits: bool,
}

/// Claims the next free attempt number, and tests put-if-absent. If the store ignores it, a random tag distinguishes this run
/// from another one with the same number.
pub(crate) async fn claim(store: &Store) -> Result<Claim, StoreError> {
    let probe = format!("{PROBES}/{}", nonce());
    let asked = try_join3(store.create(&probe, nonce().into_bytes()), attempts(store), commits(store));
    let (first, mut before, commits) = asked.await?;
    let saw_commits = !commits.is_empty();
    // Claims may have been deleted; a number that was used may never be used again.
    before.extend(commits.into_iter().map(|name| name.stamp.attempt));
    let honest = first == Created::Own && store.create(&probe, nonce().into_bytes()).await? == Created::Taken;
    let body = body();
    // A probe that cannot be deleted is no error.
    let (attempt, _) = join(claim_from(store, plan::next_number(&before), honest, &body), store.delete(&probe)).await;
    Ok(Claim { attempt: attempt?, body, honest, saw_commits })
}

async fn claim_from(store: &Store, mut number: u64, honest: bool, body: &[u8]) -> Result<Attempt, StoreError> {
    let tag = if honest { None } else { u32::from_str_radix(&nonce()[..8], 16).ok() };
    loop {
        if number > Attempt::LAST {
            let last = Attempt { number: Attempt::LAST, tag: None };
            let why = "there is no number above it; if no run of this job made it, delete it and start again";
            return Err(store.useless("claim an attempt after", &last.key(), why));
        }
        let attempt = Attempt { number, tag };
        match store.create(&attempt.key(), body.to_vec()).await? {
            Created::Own => return Ok(attempt),
            Created::Taken => number += 1,
        }
    }
}

fn body() -> Vec<u8> {
    let unix = clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    serde_json::json!({ "nonce": nonce(), "started_unix": unix }).to_string().into_bytes()
}

/// The commits of a store that had some when it was claimed. Retention always leaves one, so an empty listing is requested
/// again. Errors: it stays empty, and training would begin from scratch beside the commits.
pub(crate) async fn expected_commits(store: &Store) -> Result<Vec<CommitName>, StoreError> {
    for _ in 0..LOOKS {
        let names = commits(store).await?;
        if !names.is_empty() {
            return Ok(names);
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    Err(store.useless("list", COMMITS, "it showed commits when this run claimed it, and now it shows none"))
}

//! Claims this run's attempt number in the store, and finds out whether the store keeps conditional writes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, try_join3};

use crate::edge::clock;
use crate::edge::store::{Created, Store, StoreError};
use crate::rules::store::address::Address;
use crate::rules::store::names::{Attempt, COMMITS, CommitName, PROBES, Stamp};
use crate::rules::store::plan::{self, Standing};
use crate::supervisor::checkpoints::directory::disk::nonce;
use crate::supervisor::checkpoints::store::commits::{attempts, commits};

/// How often a store is asked for commits that it has shown before.
const LOOKS: u32 = 4;
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// What was written half is left alone for this long: a process may be writing it.
pub(crate) const STAGED: Duration = Duration::from_secs(600);

/// The store of a run, and the run's place in it.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    pub(crate) store: Arc<Store>,
    pub(crate) address: Address,
    /// Our claim; `None` where nothing is to be committed.
    pub(crate) claim: Option<Claim>,
}

impl Remote {
    /// Our attempt; `None` where nothing is to be committed.
    pub(crate) fn attempt(&self) -> Option<&Attempt> {
        self.claim.as_ref().map(|claim| &claim.attempt)
    }

    /// The line for a store that does not know this run, although it was claimed.
    pub(crate) fn unclaimed(&self) -> String {
        let claim = self.attempt().map_or(String::new(), Attempt::key);
        format!(
            "{} does not show this run's claim {claim}: it was emptied, is not mounted any more, or does not list what it holds; nothing is committed or restored until it shows it again; see that the store is the one of the start",
            self.address
        )
    }

    /// Where our attempt stands; `None` where nothing is to be committed. A claim that is gone is made again where the store
    /// still has a commit that we know of: a rule of the bucket may delete what is old.
    pub(crate) async fn standing(&self, known: Option<&Stamp>) -> Result<Option<Standing>, StoreError> {
        let Some(Claim { attempt, body, .. }) = &self.claim else { return Ok(None) };
        let standing = plan::standing(attempt, &attempts(&self.store).await?);
        if standing != Standing::Gone || !commits(&self.store).await?.iter().any(|name| Some(&name.stamp) == known) {
            return Ok(Some(standing));
        }
        Ok(Some(match self.store.create(&attempt.key(), body.clone()).await? {
            Created::Own => Standing::Newest,
            // Another has taken the number meanwhile.
            Created::Taken => Standing::Overtaken(attempt.clone()),
        }))
    }
}

/// An attempt number that is this run's alone.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) attempt: Attempt,
    /// What it says in the store.
    pub(crate) body: Vec<u8>,
    /// Whether the store keeps two runs apart.
    pub(crate) honest: bool,
    /// Whether it held commits.
    pub(crate) saw_commits: bool,
}

/// Claims the next free attempt number, and finds out whether the store keeps two runs apart. A store that lets the same key
/// be put twice does not; then a random tag tells this run from another of the same number.
pub(crate) async fn claim(store: &Store) -> Result<Claim, StoreError> {
    let probe = format!("{PROBES}/{}", nonce());
    let asked = try_join3(store.create(&probe, nonce().into_bytes()), attempts(store), commits(store));
    let (first, mut before, commits) = asked.await?;
    let saw_commits = !commits.is_empty();
    // Claims may have been deleted; a number that was used may never be used again.
    before.extend(commits.into_iter().map(|name| name.stamp.attempt));
    let honest = first == Created::Own && store.create_or_exists(&probe, nonce().into_bytes()).await?;
    let body = body();
    // What is left of a probe costs little: failing to delete it is no reason to stop.
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

/// The commits of a store that held some when it was claimed. Whatever retention runs meanwhile leaves one; a store that
/// shows none is asked again. Errors: it goes on showing none, and training would begin from scratch beside them.
pub(crate) async fn still_shown(store: &Store) -> Result<Vec<CommitName>, StoreError> {
    for _ in 0..LOOKS {
        let names = commits(store).await?;
        if !names.is_empty() {
            return Ok(names);
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    Err(store.useless("list", COMMITS, "it showed commits when this run claimed it, and now it shows none"))
}

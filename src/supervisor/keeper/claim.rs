//! A run's place in the store: whether the store keeps two runs apart, and the attempt number that is this run's alone.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use futures_util::future::{join, try_join3};

use super::guard::{Answer, SOON, answers};
use super::retention::{STAGED, commits};
use crate::edge::clock;
use crate::edge::store::{Created, Store, StoreError};
use crate::rules::checkpoint::address::Address;
use crate::rules::checkpoint::names::{ATTEMPTS, Attempt, COMMITS, CommitName, PROBES, Stamp, hash16};
use crate::rules::checkpoint::plan::{self, Standing};

/// How often a store is asked for commits that it has shown before.
const LOOKS: u32 = 4;
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// A claim that takes longer makes us ask whether the store is there; with [`SOON`] it is told.
const LATE: Duration = Duration::from_secs(2);

/// What came of claiming an attempt.
pub(super) struct Claim {
    pub(super) attempt: Attempt,
    /// What it says in the store.
    pub(super) body: Vec<u8>,
    /// Whether the store keeps two runs apart.
    pub(super) honest: bool,
    /// Whether it held commits.
    pub(super) saw_commits: bool,
}

/// Claims the next free attempt number, and says whether the store keeps two runs apart. A store that lets the same key
/// be put twice does not; then a random tag tells this run from another of the same number. A store that keeps us waiting
/// is told of.
pub(super) async fn claim(store: &Store, address: &Address) -> Result<Claim, StoreError> {
    tokio::select! {
        biased;
        claim = try_to_claim(store) => claim,
        never = tell_of_waiting(store, address) => match never {},
    }
}

async fn tell_of_waiting(store: &Store, address: &Address) -> Infallible {
    tokio::time::sleep(LATE).await;
    let (answer, ()) = join(answers(store), tokio::time::sleep(SOON - LATE)).await;
    let what = if answer == Answer::Came { "take what it is sent" } else { "answer" };
    tracing::warn!(
        code = "store",
        "{address} does not {what}: this run's claim of it is tried for about a minute, and nothing is started before; see that it is well and can be reached from here"
    );
    pending().await
}

async fn try_to_claim(store: &Store) -> Result<Claim, StoreError> {
    let probe = probe();
    let asked = try_join3(store.create(&probe, nonce().into_bytes()), attempts(store), commits(store));
    let (first, mut before, commits) = asked.await?;
    let saw_commits = !commits.is_empty();
    // Claims may have been deleted; a number that was used may never be used again.
    before.extend(commits.into_iter().map(|name| name.stamp.attempt));
    let honest = first == Created::Ours && store.refuses(&probe, nonce().into_bytes()).await?;
    let body = body();
    let (attempt, _) =
        join(claim_from(store, plan::next_number(&before), honest, &body), take_away(store, &probe)).await;
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
            Created::Ours => return Ok(attempt),
            Created::Taken => number += 1,
        }
    }
}

/// Whether somebody else may be creating an object just now: each has a probe there before, and until it is done. A store
/// that looks whether a name is free, and writes then, lets two create one. Who asks this after it has created one, and then
/// reads it, finds the other's probe, or else what it was written over with. A probe may be what a kill has left.
pub(super) async fn others_create(store: &Store, ours: &str) -> Result<bool, StoreError> {
    let probes = store.list(PROBES).await?;
    let others = probes.iter().filter(|probe| probe.key != ours);
    let Some(newest) = others.map(|probe| probe.modified).max() else { return Ok(false) };
    Ok(store.time().await.unwrap_or_default().saturating_sub(newest) < STAGED)
}

/// The key of a probe.
pub(super) fn probe() -> String {
    format!("{PROBES}/{}", nonce())
}

/// What is left of a probe costs little: failing to delete it is no reason to stop.
pub(super) async fn take_away(store: &Store, probe: &str) {
    let _ = store.delete(probe).await;
}

fn body() -> Vec<u8> {
    let unix = clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    serde_json::json!({ "nonce": nonce(), "started_unix": unix }).to_string().into_bytes()
}

/// Where our attempt stands. A claim that is gone is made again where the store still has a commit that we know of: a
/// rule of the bucket may delete what is old.
pub(super) async fn standing(
    store: &Store,
    ours: &Attempt,
    body: &[u8],
    known: Option<&Stamp>,
) -> Result<Standing, StoreError> {
    let standing = plan::standing(ours, &attempts(store).await?);
    if standing != Standing::Gone || !commits(store).await?.iter().any(|name| Some(&name.stamp) == known) {
        return Ok(standing);
    }
    Ok(match store.create(&ours.key(), body.to_vec()).await? {
        Created::Ours => Standing::Newest,
        // Another has taken the number meanwhile.
        Created::Taken => Standing::Overtaken(ours.clone()),
    })
}

/// The commits of a store that held some when it was claimed. Whatever retention runs meanwhile leaves one; a store that
/// shows none is asked again. Errors: it goes on showing none, and training would begin from scratch beside them.
pub(super) async fn still_shown(store: &Store) -> Result<Vec<CommitName>, StoreError> {
    for _ in 0..LOOKS {
        let names = commits(store).await?;
        if !names.is_empty() {
            return Ok(names);
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    Err(store.useless("list", COMMITS, "it showed commits when this run claimed it, and now it shows none"))
}

/// Every attempt that was ever claimed.
pub(crate) async fn attempts(store: &Store) -> Result<Vec<Attempt>, StoreError> {
    let objects = store.list(ATTEMPTS).await?;
    Ok(objects.iter().filter_map(|o| Attempt::from_key(&o.key)).collect())
}

/// Sixteen hex digits that nobody else has.
pub(super) fn nonce() -> String {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    hash16(format!("{random} {} {:?}", std::process::id(), clock::wall()).as_bytes())
}

//! A run's place in the store: whether the store keeps two runs apart, and the attempt number that is this run's alone.

use super::mirror::{MirrorError, away};
use crate::edge::clock;
use crate::edge::store::{Created, Store, StoreError};
use crate::rules::checkpoint::names::{ATTEMPTS, Attempt, PROBES, hash16};
use crate::rules::checkpoint::plan;

/// Puts the same key twice: a store that lets both succeed does not keep two runs apart.
pub(super) async fn probe(store: &Store) -> Result<bool, MirrorError> {
    let key = format!("{PROBES}/{}", nonce());
    let (first, second) = (nonce(), nonce());
    let first = store.create(&key, first.into_bytes()).await.map_err(|e| away(&e))?;
    let second = store.create(&key, second.into_bytes()).await.map_err(|e| away(&e))?;
    // What is left of a probe costs nothing; failing to delete it is no reason to stop.
    let _ = store.delete(&key).await;
    Ok(first == Created::Ours && second == Created::Taken)
}

/// Claims the next free attempt number.
pub(super) async fn claim(store: &Store, honest: bool) -> Result<Attempt, MirrorError> {
    let tag = if honest { None } else { u32::from_str_radix(&nonce()[..8], 16).ok() };
    let mut number = plan::next_number(&attempts(store).await.map_err(|e| away(&e))?);
    loop {
        let attempt = Attempt { number, tag };
        let unix = clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
        let body = serde_json::json!({ "nonce": nonce(), "started_unix": unix }).to_string();
        match store.create(&attempt.key(), body.into_bytes()).await.map_err(|e| away(&e))? {
            Created::Ours => return Ok(attempt),
            Created::Taken => number += 1,
        }
    }
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

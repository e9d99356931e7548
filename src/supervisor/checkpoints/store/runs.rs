//! The objects that the runs of a job leave about themselves: of one replica at the root, of the others below their nodes.

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::edge::store::{Access, Store, StoreError};
use crate::rules::life::run::{LIMIT, RUNS, Run, Unread};
use crate::rules::store::address::Address;
use crate::rules::store::names::Attempt;

/// The replicas whose objects are read.
const MOST_NODES: u32 = 16_384;

/// The key of a run's object.
pub(crate) fn key_of(attempt: &Attempt) -> String {
    format!("{RUNS}/{attempt}.json")
}

/// The attempt of such a key.
pub(crate) fn attempt_of(key: &str) -> Option<Attempt> {
    Attempt::parse(key.strip_prefix(RUNS)?.strip_prefix('/')?.strip_suffix(".json")?)
}

/// The runs of all replicas, and the objects that tell about no run.
pub(crate) async fn runs(address: &Address, access: &Access) -> Result<(Vec<Run>, Vec<(String, Unread)>), StoreError> {
    let store = Store::open(address, false, access).await?;
    let (mut runs, mut unread) = (Vec::new(), Vec::new());
    let mut take = |prefix: &str, objects: Vec<(String, bytes::Bytes)>| {
        for (key, bytes) in objects {
            let attempt = attempt_of(&key[prefix.len()..]).map_or(0, |attempt| attempt.number);
            match Run::read(attempt, &bytes) {
                Ok(run) => runs.push(run),
                Err(why) => unread.push((key, why)),
            }
        }
        runs.iter().map(|run| run.identity.nodes).max().unwrap_or(0)
    };
    let nodes = take("", store.read_all(RUNS, LIMIT).await?);
    let others = (1..nodes.min(MOST_NODES)).map(|rank| {
        let (prefix, store) = (format!("node-{rank:05}/"), &store);
        async move { Ok::<_, StoreError>((store.read_all(&format!("{prefix}{RUNS}"), LIMIT).await?, prefix)) }
    });
    let others: Vec<_> = stream::iter(others).buffered(store.part_sizes().at_once).try_collect().await?;
    for (objects, prefix) in others {
        take(&prefix, objects);
    }
    Ok((runs, unread))
}

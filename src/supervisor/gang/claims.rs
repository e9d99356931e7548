//! The leader's claims on generations, in the job's store. Without a store every claim is granted at once.

use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use super::{STORE_PAUSE, SharedStore};
use crate::edge::store::{Created, Store, StoreError, Trouble};
use crate::rules::gang::claim::{Claim, FOLDER, JobState, LIMIT, common_name, end_name, generation_of, name, read};
use crate::rules::gang::leader::Event;
use crate::rules::gang::{Generation, Incarnation};

/// The limit for reading the newest claim when a leader starts.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// A request of the leader to the store.
#[derive(Debug, Clone, Copy)]
pub(super) enum Request {
    /// Claim a generation; retried until the store answers.
    Claim { generation: Generation, job: JobState },
    /// Check whether another leader has claimed the generation.
    Check(Generation),
}

/// The leader's identity in its claims.
#[derive(Debug, Clone)]
pub(super) struct Claimant {
    pub(super) leader: Incarnation,
    pub(super) host: String,
    pub(super) job_id: String,
}

/// The newest claim in the store, if there is one, and whether its gang has ended. `None`: the store did not answer in time.
pub(super) async fn newest(shared: &SharedStore) -> Option<Option<(Claim, bool)>> {
    let read = timeout(READ_TIMEOUT, async {
        let store = shared.open().await?;
        let objects = store.list(FOLDER).await?;
        let names: Vec<&str> = objects.iter().filter_map(|object| object.key.rsplit('/').next()).collect();
        let Some(generation) = names.iter().filter_map(|name| generation_of(name)).max() else {
            return Ok::<_, StoreError>(None);
        };
        let has_ended = names.contains(&end_name(generation).as_str());
        let is_common = names.contains(&common_name(generation).as_str());
        let claim = read_claim(&store, generation).await?;
        Ok(claim.map(|claim| (with_common(claim, is_common), has_ended)))
    });
    match read.await {
        Ok(Ok(found)) => Some(found),
        Ok(Err(error)) => {
            tracing::warn!(code = "gang", "earlier generations cannot be read: {error}");
            None
        }
        Err(_) => None,
    }
}

/// The claim, without `from_nothing` if a step of its generation is common.
fn with_common(claim: Claim, is_common: bool) -> Claim {
    let from_nothing = claim.job.from_nothing && !is_common;
    Claim { job: JobState { from_nothing, ..claim.job }, ..claim }
}

/// Marks the end of this generation's gang, so that the next leader does not wait for it. Without the mark, the next start is
/// slower.
pub(super) async fn end(shared: &SharedStore, generation: Generation) {
    if let Err(error) = put_mark(shared, &end_name(generation)).await {
        tracing::debug!("the end of generation {generation} is not in the store: {error}");
    }
}

/// Marks that all members have committed a step of this generation; retried until the store answers.
pub(super) fn mark_common(shared: Option<SharedStore>, generation: Generation) {
    let Some(shared) = shared else { return };
    tokio::spawn(async move {
        while let Err(error) = put_mark(&shared, &common_name(generation)).await {
            tracing::debug!("the common step of generation {generation} is not marked in the store yet: {error}");
            sleep(STORE_PAUSE).await;
        }
    });
}

async fn put_mark(shared: &SharedStore, name: &str) -> Result<Created, StoreError> {
    shared.open().await?.create(&format!("{FOLDER}{name}"), b"{}".to_vec()).await
}

/// Answers requests until their sender is dropped. A newer request replaces the one before.
pub(super) fn start(
    shared: Option<SharedStore>,
    claimant: Claimant,
) -> (UnboundedSender<Request>, UnboundedReceiver<Event>) {
    let (request_sender, mut requests) = unbounded_channel();
    let (answer_sender, answers) = unbounded_channel();
    tokio::spawn(async move {
        let mut next = requests.recv().await;
        while let Some(request) = next {
            let answer = tokio::select! {
                biased;
                newer = requests.recv() => {
                    next = newer;
                    continue;
                }
                answer = answer(shared.as_ref(), &claimant, request) => answer,
            };
            if let Some(event) = answer
                && answer_sender.send(event).is_err()
            {
                return;
            }
            next = requests.recv().await;
        }
    });
    (request_sender, answers)
}

async fn answer(shared: Option<&SharedStore>, claimant: &Claimant, request: Request) -> Option<Event> {
    let Some(shared) = shared else {
        return match request {
            Request::Claim { generation, .. } => Some(Event::Claimed(generation)),
            Request::Check(_) => None,
        };
    };
    match request {
        Request::Check(generation) => newer_claim(shared, claimant, generation).await.ok().flatten(),
        Request::Claim { generation, job } => {
            let mut is_logged = false;
            loop {
                match claim(shared, claimant, generation, job).await {
                    Ok(event) => return Some(event),
                    Err(error) if !std::mem::replace(&mut is_logged, true) => tracing::warn!(
                        code = "gang",
                        "generation {generation} of the gang cannot be claimed: {error}; it is tried again, and nothing starts \
                         before"
                    ),
                    Err(_) => {}
                }
                sleep(STORE_PAUSE).await;
            }
        }
    }
}

async fn claim(
    shared: &SharedStore,
    claimant: &Claimant,
    generation: Generation,
    job: JobState,
) -> Result<Event, StoreError> {
    let store = shared.open().await?;
    let Claimant { leader, host, job_id } = claimant.clone();
    let body = serde_json::to_vec(&Claim { generation, leader, host, job_id, job }).unwrap_or_default();
    if store.create(&key(generation), body).await? == Created::Own {
        return Ok(Event::Claimed(generation));
    }
    Ok(newer_claim(shared, claimant, generation).await?.unwrap_or(Event::Claimed(generation)))
}

/// The newest claim from this number on, if it belongs to another leader.
async fn newer_claim(
    shared: &SharedStore,
    claimant: &Claimant,
    generation: Generation,
) -> Result<Option<Event>, StoreError> {
    let store = shared.open().await?;
    let (mut newest, mut next): (Option<Claim>, _) = (None, generation);
    while let Some(found) = read_claim(&store, next).await? {
        (newest, next) = (Some(found), next + 1);
    }
    let Some(newest) = newest.filter(|claim| claim.leader != claimant.leader) else { return Ok(None) };
    if !newest.job.from_nothing {
        return Ok(Some(Event::ClaimedByOther(newest)));
    }
    let is_common = match store.get(&format!("{FOLDER}{}", common_name(newest.generation)), LIMIT as u64).await {
        Ok(_) => true,
        Err(error) if error.trouble == Trouble::Absent => false,
        Err(error) => return Err(error),
    };
    Ok(Some(Event::ClaimedByOther(with_common(newest, is_common))))
}

async fn read_claim(store: &Store, generation: Generation) -> Result<Option<Claim>, StoreError> {
    let key = key(generation);
    match store.get(&key, LIMIT as u64 + 1).await {
        Ok(bytes) => read(generation, &bytes).map(Some).map_err(|why| store.useless("read", &key, &why)),
        Err(error) if error.trouble == Trouble::Absent => Ok(None),
        Err(error) => Err(error),
    }
}

fn key(generation: Generation) -> String {
    format!("{FOLDER}{}", name(generation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::store::Access;
    use crate::edge::transfer::blocking;
    use crate::rules::store::address::Address;

    fn claimant(number: u128) -> Claimant {
        Claimant { leader: Incarnation(number), host: "h".to_owned(), job_id: String::new() }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        blocking::runtime(true).expect("a runtime").block_on(future)
    }

    #[test]
    fn a_generation_has_one_leader_and_a_later_leader_finds_the_newest_claim() {
        let place = tempfile::tempdir().expect("a directory");
        let address = Address::Directory(place.path().join("store"));
        let shared = SharedStore { address, access: Access::default() };
        block_on(async {
            assert_eq!(newest(&shared).await, Some(None));
            let (old, new) = (claimant(1), claimant(2));
            let job = JobState::default();
            for generation in [1, 2] {
                assert_eq!(claim(&shared, &old, generation, job).await.ok(), Some(Event::Claimed(generation)));
            }
            assert_eq!(claim(&shared, &old, 2, job).await.ok(), Some(Event::Claimed(2)), "claimed by an earlier try");
            let Ok(Event::ClaimedByOther(found)) = claim(&shared, &new, 1, job).await else { panic!("it is taken") };
            assert_eq!((found.generation, found.leader), (2, old.leader));
            assert_eq!(claim(&shared, &new, 3, job).await.ok(), Some(Event::Claimed(3)));
            let seen = newer_claim(&shared, &old, 2).await.ok().flatten();
            assert!(matches!(seen, Some(Event::ClaimedByOther(claim)) if claim.leader == new.leader));
            let seen = async || newest(&shared).await.flatten().map(|(claim, has_ended)| (claim.generation, has_ended));
            assert_eq!(seen().await, Some((3, false)));
            end(&shared, 3).await;
            assert_eq!(seen().await, Some((3, true)));
        });
    }

    #[test]
    fn a_claim_has_from_nothing_until_a_step_is_common() {
        let place = tempfile::tempdir().expect("a directory");
        let address = Address::Directory(place.path().join("store"));
        let shared = SharedStore { address, access: Access::default() };
        block_on(async {
            let found = async || {
                let Ok(Some(Event::ClaimedByOther(found))) = newer_claim(&shared, &claimant(2), 1).await else {
                    panic!("it is there")
                };
                let newest = newest(&shared).await.flatten().map(|(claim, _)| claim.job.from_nothing);
                assert_eq!(newest, Some(found.job.from_nothing));
                found.job.from_nothing
            };
            claim(&shared, &claimant(1), 1, JobState { from_nothing: true, ..JobState::default() })
                .await
                .expect("claimed");
            assert!(found().await);
            put_mark(&shared, &common_name(1)).await.expect("marked");
            assert!(!found().await);
        });
    }

    #[test]
    fn without_a_store_each_claim_is_granted() {
        block_on(async {
            let (requests, mut answers) = start(None, claimant(1));
            requests.send(Request::Check(4)).expect("requested");
            requests.send(Request::Claim { generation: 5, job: JobState::default() }).expect("requested");
            assert_eq!(answers.recv().await, Some(Event::Claimed(5)));
        });
    }
}

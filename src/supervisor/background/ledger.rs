//! Writes the run's object in the store (`rules/life/run.rs`): at the start, with each commit, now and then, and at the end.
//!
//! Only this run writes its object, because only it has its number. Without a store the objects are in the checkpoint
//! directory. A failure is logged once, and the run goes on.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, UNIX_EPOCH};

use tokio::sync::oneshot;

use crate::edge::clock;
use crate::edge::store::{Access, Created, Store, StoreError};
use crate::rules::life::account::Began;
use crate::rules::life::run::{Earlier, Identity, LIMIT, RUNS, Run};
use crate::rules::store::address::Address;
use crate::rules::store::names::Attempt;
use crate::supervisor::checkpoints::mirror::Mirror;
use crate::supervisor::checkpoints::store::runs::{attempt_of, key_of};
use crate::supervisor::job::heartbeat::Heartbeat;
use crate::supervisor::status::history::History;

/// The shortest and the longest pause between two writes, and the pause as a share of the run's age.
const SHORTEST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const PAUSE_SHARE: u32 = 10;
/// How many of the newest earlier objects are read to find one that can be used.
const EARLIER: usize = 64;

/// Where the object is.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The run's store and its number there.
    store: Option<(Address, Attempt)>,
    /// Without a store: the checkpoint directory.
    local: Address,
    access: Access,
    heartbeat: Heartbeat,
    /// The store of node 0, and this node.
    chiefs: Option<Address>,
    node: u32,
}

impl Place {
    /// For the run that keeps these checkpoints.
    pub(super) fn of(mirror: &Mirror) -> Place {
        let remote = mirror.remote.as_ref();
        Place {
            store: remote.and_then(|remote| Some((remote.address.clone(), remote.attempt()?.clone()))),
            local: Address::Directory(mirror.config.home()),
            access: mirror.config.access.apart(),
            heartbeat: mirror.config.heartbeat.clone(),
            chiefs: mirror.config.chiefs_store.clone(),
            node: mirror.config.node,
        }
    }

    /// The store that all replicas share, and whether this one is node 0; `None`: there is no store.
    pub(super) async fn shared_store(&self) -> Option<Result<(Arc<Store>, bool), StoreError>> {
        let (own, _) = self.store.as_ref()?;
        let is_own = self.node == 0;
        let address = if is_own { own } else { self.chiefs.as_ref()? };
        let opened = Store::open(address, false, &self.access).await;
        Some(opened.map(|store| (Arc::new(store), is_own)))
    }
}

/// The object of a run.
struct Ledger {
    identity: Identity,
    began: Began,
    store: Store,
    /// The key of the run's claim. Without it the store is another one, or not mounted any more.
    claim: Option<String>,
    key: String,
    heartbeat: Heartbeat,
    history: History,
    is_failure_logged: bool,
}

/// Keeps the run's object until the run has ended; `_done` is dropped when the last one is written.
pub(super) async fn keep(
    identity: Identity,
    place: oneshot::Receiver<Place>,
    history: History,
    _done: mpsc::Sender<()>,
) {
    let mut changes = history.changes();
    let place = tokio::select! {
        biased;
        place = place => place,
        () = ended(&history) => return,
    };
    let Ok(place) = place else { return };
    let mut ledger = match Ledger::open(identity, place, history).await {
        Ok(ledger) => ledger,
        Err(error) => return complain(&error),
    };
    ledger.write().await;
    ledger.read_earlier().await;
    while !ledger.write().await {
        let pause = (ledger.history.now() / PAUSE_SHARE).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        let _ = tokio::time::timeout(pause, changes.changed()).await;
    }
}

async fn ended(history: &History) {
    let mut changes = history.changes();
    while !history.has_ended() && changes.changed().await.is_ok() {}
}

impl Ledger {
    async fn open(identity: Identity, place: Place, history: History) -> Result<Ledger, StoreError> {
        let since_1970 = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut began = Began { attempt: 0, at: since_1970.saturating_sub(history.now()) };
        let (store, attempt, claim) = match place.store {
            Some((address, attempt)) => {
                let store = Store::open(&address, false, &place.access).await?;
                let claim = attempt.key();
                (store, attempt, Some(claim))
            }
            None => {
                let store = Store::open(&place.local, true, &place.access).await?;
                let attempt = claim(&store).await?;
                (store, attempt, None)
            }
        };
        began.attempt = attempt.number;
        let (heartbeat, key) = (place.heartbeat, key_of(&attempt));
        Ok(Ledger { identity, began, store, claim, key, heartbeat, history, is_failure_logged: false })
    }

    /// Writes the object. Returns whether it has the end of the run.
    async fn write(&mut self) -> bool {
        if let Some((at, step)) = self.heartbeat.beat() {
            self.history.step(at, step);
        }
        let run = self.history.run(&self.identity, self.began);
        let is_last = run.ended.is_some();
        if let Some(advice) = run.advice().filter(|advice| is_last && advice.is_worth_it && run.stall_seconds.is_some())
        {
            tracing::info!("when to save: {}", advice.text);
        }
        if let Err(error) = self.store.replace(&self.key, run.bytes(), self.claim.as_deref()).await
            && !std::mem::replace(&mut self.is_failure_logged, true)
        {
            complain(&error);
        }
        is_last
    }

    /// Finds what the newest run of this replica before this one tells.
    async fn read_earlier(&self) {
        let Ok(objects) = self.store.list(RUNS).await else { return };
        let mut keys: Vec<(u64, String)> =
            objects.into_iter().filter_map(|object| Some((attempt_of(&object.key)?.number, object.key))).collect();
        keys.retain(|(attempt, _)| *attempt < self.began.attempt);
        keys.sort();
        for (attempt, key) in keys.iter().rev().take(EARLIER) {
            let Ok(bytes) = self.store.get(key, LIMIT).await else { continue };
            if let Ok(run) = Run::read(*attempt, &bytes)
                && run.identity.seat == self.identity.seat
            {
                let earlier: Earlier = run.tells();
                return self.history.follows(earlier);
            }
        }
    }
}

/// The next free number in a checkpoint directory.
async fn claim(store: &Store) -> Result<Attempt, StoreError> {
    let taken = store.list(RUNS).await?;
    let mut number =
        taken.iter().filter_map(|object| attempt_of(&object.key)).map(|attempt| attempt.number).max().unwrap_or(0);
    loop {
        number += 1;
        let attempt = Attempt { number, tag: None };
        // A file system without hard links has no put-if-absent, and the number is free as far as the listing tells.
        match store.create(&key_of(&attempt), Vec::new()).await {
            Ok(Created::Taken) => {}
            Ok(Created::Own) | Err(_) => return Ok(attempt),
        }
    }
}

fn complain(error: &StoreError) {
    tracing::warn!(
        code = "ledger",
        "{error}; trainit goodput will lack part of this run, training continues; this user must be allowed to create and replace objects there"
    );
}

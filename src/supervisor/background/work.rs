//! The work of the background thread, as futures of its runtime.

use std::sync::Arc;
use std::sync::mpsc;

use futures_util::future::join_all;
use tokio::sync::{Notify, mpsc as orders, oneshot};

use super::peers::Peers;
use super::preemption_watch::PreemptionWatch;
use crate::edge::clock::Clock;
use crate::edge::transfer::blocking;
use crate::rules::push::Receiver;
use crate::supervisor::background::fetch::{self, Fetch};
use crate::supervisor::background::keep::{Keep, Places};
use crate::supervisor::background::orders::{EventSender, Order};
use crate::supervisor::background::{cache, ledger};
use crate::supervisor::status::history::History;
use crate::supervisor::status::page::Page;
use crate::supervisor::status::push;

/// The work of the thread.
#[derive(Debug, Default)]
pub struct Work {
    /// Training data to fetch before the first start.
    pub fetches: Vec<Fetch>,
    /// Checkpoints to restore and commit, the model to copy.
    pub keep: Option<Keep>,
    /// The preemption sources to poll besides SIGTERM.
    pub preemption_watch: Option<PreemptionWatch>,
    /// The peers that must be reachable before the first start.
    pub peers: Option<Peers>,
    /// The HTTP page for scrapers.
    pub page: Option<Page>,
    /// The systems that progress is sent to.
    pub receivers: Vec<Receiver>,
}

impl Work {
    /// Whether there is no work.
    pub(super) fn is_none(&self) -> bool {
        let Work { fetches, keep, preemption_watch, peers, page, receivers } = self;
        let has_one = keep.is_some() || preemption_watch.is_some() || peers.is_some() || page.is_some();
        fetches.is_empty() && receivers.is_empty() && !has_one
    }

    /// Whether the work needs a thread for files.
    pub(super) fn has_files(&self) -> bool {
        self.keep.is_some() || !self.fetches.is_empty() || !self.receivers.is_empty()
    }
}

/// The notifications that start parts of the work.
pub(super) struct Begins {
    pub(super) fetch: Arc<Notify>,
    pub(super) gather: Arc<Notify>,
}

/// Does all the work, until there are no more orders.
pub(super) async fn carry_out(
    work: Work,
    orders: orders::UnboundedReceiver<Order>,
    begins: Begins,
    events: EventSender,
    clock: Clock,
    history: History,
    ledger_done: mpsc::Sender<()>,
) {
    let watch = async {
        if let Some(preemption_watch) = work.preemption_watch {
            let events = events.clone();
            preemption_watch.watch(move |event| events.send(event)).await;
        }
        std::future::pending::<()>().await;
    };
    let meet = async {
        if let Some(peers) = work.peers {
            begins.gather.notified().await;
            events.send(peers.wait().await);
        }
        std::future::pending::<()>().await;
    };
    let fetch = async {
        if !work.fetches.is_empty() {
            begins.fetch.notified().await;
            tokio::select! {
                event = fetch::all(work.fetches) => events.send(event),
                never = blocking::keep_a_thread() => match never {},
            }
        }
        std::future::pending::<()>().await;
    };
    let identity = work.keep.as_ref().and_then(|keep| keep.identity.clone());
    let cache_dir = work.keep.as_ref().and_then(|keep| keep.cache_dir.clone());
    let ((found, place), (found_cache, cache_place)) = (oneshot::channel(), oneshot::channel());
    let (ready, caches) = oneshot::channel();
    let cache_done = ledger_done.clone();
    let cache = async {
        match cache_dir {
            Some(dir) => cache::keep(dir, cache_place, history.clone(), ready, cache_done).await,
            None => drop((cache_place, ready, cache_done)),
        }
        std::future::pending::<()>().await;
    };
    let ledger = async {
        match identity {
            Some(identity) => ledger::keep(identity, place, history.clone(), ledger_done).await,
            None => drop(ledger_done),
        }
        std::future::pending::<()>().await;
    };
    let show = async {
        if let Some(page) = work.page {
            page.serve(events.clone(), history.clone()).await;
        }
        std::future::pending::<()>().await;
    };
    let push = async {
        join_all(work.receivers.into_iter().map(|receiver| push::push(receiver, &events))).await;
        std::future::pending::<()>().await;
    };
    let keep = async {
        match work.keep {
            Some(keep) => tokio::select! {
                () = keep.work(orders, events.clone(), clock, Places { found: vec![found, found_cache], caches }) => {}
                never = blocking::keep_a_thread() => match never {},
            },
            None => {
                // Close the channel, so that an order fails at once instead of waiting for an answer.
                drop(orders);
                std::future::pending().await
            }
        }
    };
    tokio::select! {
        () = watch => {}
        () = fetch => {}
        () = meet => {}
        () = show => {}
        () = push => {}
        () = ledger => {}
        () = cache => {}
        () = keep => {}
    }
}

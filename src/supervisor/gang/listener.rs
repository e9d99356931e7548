//! The leader's listener: binds the gang's port, authenticates connections, and carries the messages of members.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::borrowed_port::open;
use super::thread::{News, NewsSender};
use crate::edge::clock::Clock;
use crate::edge::net::gang::{self, Cut, NoLink, authenticate};
use crate::rules::gang::handshake::GangKey;
use crate::rules::gang::leader::Link;
use crate::rules::gang::message::{Referral, ToLeader, ToMember};
use crate::rules::gang::place::Place;
use crate::rules::gang::unproven::{self, Admission};

/// The maximum number of queued messages to one member. A member with a full queue is disconnected.
const QUEUE: usize = 256;
/// The maximum number of messages to one member in one write.
const AT_ONCE: usize = 32;
/// The pause before a retry if bind or accept fails.
const PAUSE: Duration = Duration::from_secs(1);

/// An event of a connection.
pub(super) enum ConnectionEvent {
    Opened(Link, mpsc::Sender<ToMember>),
    Received(Link, Box<ToLeader>),
    Closed(Link),
    Refused(SocketAddr, NoLink),
}

/// Binds the port, with retries, and accepts connections. If the published port is borrowed, it binds another one and sends its
/// address to `bound`.
pub(super) async fn listen_and_accept(
    place: Place,
    clock: Clock,
    news: NewsSender,
    bound: mpsc::Sender<Referral>,
    accepted: mpsc::Sender<(Unproven, SocketAddr)>,
) {
    let slots = Slots::default();
    let (port, mut is_logged) = (place.port, false);
    let (listener, own) = loop {
        match open(&place).await {
            Ok(opened) => break opened,
            Err(error) => {
                let what = format!("the gang cannot meet at port {port} of its leader: {error}");
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::warn!(
                        code = "gang",
                        "{what}; it is tried again every second; see what listens there, or give all replicas another \
                         --gang-port"
                    );
                }
                news.send(News::Unreachable(what));
            }
        }
        sleep(PAUSE).await;
    };
    news.send(News::Listening);
    match own {
        None => tracing::info!("leads the gang, at port {port}"),
        Some(own) => {
            let at = SocketAddr::from((own.ip, own.port));
            tracing::info!("leads the gang, at {at}, and at port {port} while no trainer runs");
            let _ = bound.send(own).await;
        }
    }
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                if let Some(unproven) = slots.admit(clock.now(), stream, from)
                    && accepted.send((unproven, from)).await.is_err()
                {
                    return;
                }
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// A connection that has not proven the key.
pub(super) struct Unproven {
    stream: TcpStream,
    /// Resolves when another connection gets the slot.
    evicted: oneshot::Receiver<()>,
    slot: Slot,
}

impl Unproven {
    /// The result of the authentication; `None`: another connection got the slot first. The slot is freed.
    pub(super) async fn authenticated<F: Future>(self, authenticate: impl FnOnce(TcpStream) -> F) -> Option<F::Output> {
        let Unproven { stream, evicted, slot: _slot } = self;
        tokio::select! {
            biased;
            result = authenticate(stream) => Some(result),
            _ = evicted => None,
        }
    }
}

/// The slots of unproven connections.
#[derive(Clone, Default)]
pub(super) struct Slots(Arc<Mutex<SlotTable>>);

#[derive(Default)]
struct SlotTable {
    rule: unproven::Unproven,
    /// Evict the connections when dropped.
    evictions: HashMap<u64, oneshot::Sender<()>>,
    last: u64,
}

/// A slot, which is freed when this is dropped.
struct Slot {
    slots: Slots,
    number: u64,
}

impl Slots {
    fn table(&self) -> MutexGuard<'_, SlotTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection; `None`: no slot is free, and the connection is closed.
    pub(super) fn admit(&self, now: Duration, stream: TcpStream, from: SocketAddr) -> Option<Unproven> {
        let mut table = self.table();
        table.last += 1;
        let number = table.last;
        match table.rule.admit(now, number, from.ip()) {
            Admission::Admitted => {}
            Admission::InPlaceOf(other) => drop(table.evictions.remove(&other)),
            Admission::Refused => return None,
        }
        let (eviction, evicted) = oneshot::channel();
        table.evictions.insert(number, eviction);
        Some(Unproven { stream, evicted, slot: Slot { slots: self.clone(), number } })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.slots.table();
        table.rule.release(self.number);
        table.evictions.remove(&self.number);
    }
}

/// The tasks that serve the connections.
pub(super) struct Connections {
    pub(super) key: Arc<GangKey>,
    pub(super) silence: Duration,
    pub(super) events: mpsc::Sender<ConnectionEvent>,
    pub(super) tasks: JoinSet<()>,
}

impl Connections {
    pub(super) fn serve(&mut self, unproven: Unproven, from: SocketAddr, link: Link) {
        let (key, silence, events) = (Arc::clone(&self.key), self.silence, self.events.clone());
        self.tasks.spawn(async move {
            match unproven.authenticated(|stream| authenticate(stream, &key, silence)).await {
                Some(Ok(proven)) => carry_messages(proven, from, link, &events).await,
                Some(Err(why)) => drop(events.send(ConnectionEvent::Refused(from, why)).await),
                None => {}
            }
        });
    }
}

/// Carries messages both ways until either side closes.
async fn carry_messages(proven: gang::Link, from: SocketAddr, link: Link, events: &mpsc::Sender<ConnectionEvent>) {
    let gang::Link { mut reader, mut writer } = proven;
    let (sender, mut queue) = mpsc::channel(QUEUE);
    if events.send(ConnectionEvent::Opened(link, sender)).await.is_err() {
        return;
    }
    let mut broken = None;
    let closes_first = {
        let write = async {
            let mut batch = Vec::new();
            while queue.recv_many(&mut batch, AT_ONCE).await > 0 {
                if writer.send(&batch).await.is_err() {
                    return false;
                }
                batch.clear();
            }
            true
        };
        let read = async {
            loop {
                match reader.next().await {
                    Ok(message) => {
                        if events.send(ConnectionEvent::Received(link, Box::new(message))).await.is_err() {
                            break None;
                        }
                    }
                    Err(Cut::Broken(why)) => break Some(why),
                    Err(Cut::Closed | Cut::Silent) => break None,
                }
            }
        };
        tokio::select! {
            closes_first = write => closes_first,
            why = read => {
                broken = why;
                false
            }
        }
    };
    if let Some(why) = broken {
        let _ = events.send(ConnectionEvent::Refused(from, NoLink::NotAgent(why.to_string()))).await;
    }
    if closes_first {
        writer.close().await;
        reader.drain().await;
    }
    let _ = events.send(ConnectionEvent::Closed(link)).await;
}

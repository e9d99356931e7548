//! The leader's door: it binds the gang's port, lets callers prove themselves, and carries the messages of members.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::borrowed_port::open;
use crate::edge::clock::Clock;
use crate::edge::net::gang::{self, NoLink, greet};
use crate::rules::gang::handshake::GangKey;
use crate::rules::gang::leader::Link;
use crate::rules::gang::message::{Referral, ToLeader, ToMember};
use crate::rules::gang::place::Place;
use crate::rules::gang::unproven::{self, Admission};

/// Messages on their way to one member; one that takes no more is as good as gone.
const QUEUE: usize = 256;
/// Messages that go to one member in one write.
const AT_ONCE: usize = 32;
/// Before the next try where the port cannot be had, or no connection can be taken.
const PAUSE: Duration = Duration::from_secs(1);

/// What the connections bring.
pub(super) enum Arrival {
    Opened(Link, mpsc::Sender<ToMember>),
    Received(Link, Box<ToLeader>),
    Closed(Link),
    Refused(SocketAddr, NoLink),
}

/// Binds the port, however long that takes, and takes connections. Where the port is borrowed, it is another one, which is told.
pub(super) async fn listening(
    place: Place,
    clock: Clock,
    bound: mpsc::Sender<Referral>,
    accepted: mpsc::Sender<(Unproven, SocketAddr)>,
) {
    let places = Places::default();
    let (port, mut is_told) = (place.port, false);
    let (door, own) = loop {
        match open(&place).await {
            Ok(opened) => break opened,
            Err(error) if !std::mem::replace(&mut is_told, true) => tracing::warn!(
                code = "gang",
                "the gang cannot meet at port {port} of its leader: {error}; it is tried again every second; see what listens \
                 there, or give all replicas another --gang-port"
            ),
            Err(_) => {}
        }
        sleep(PAUSE).await;
    };
    match own {
        None => tracing::info!("leads the gang, at port {port}"),
        Some(own) => {
            let at = SocketAddr::from((own.ip, own.port));
            tracing::info!("leads the gang, at {at}, and at port {port} while no trainer runs");
            let _ = bound.send(own).await;
        }
    }
    loop {
        match door.accept().await {
            Ok((stream, from)) => {
                if let Some(unproven) = places.admit(clock.now(), stream, from)
                    && accepted.send((unproven, from)).await.is_err()
                {
                    return;
                }
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// A connection that has not proven itself.
pub(super) struct Unproven {
    stream: TcpStream,
    /// Ends when another connection gets its place.
    evicted: oneshot::Receiver<()>,
    held: Held,
}

impl Unproven {
    /// What becomes of it, unless another connection gets its place before. Then the place is free.
    pub(super) async fn greeted<F: Future>(self, greet: impl FnOnce(TcpStream) -> F) -> Option<F::Output> {
        let Unproven { stream, evicted, held: _held } = self;
        tokio::select! {
            biased;
            greeted = greet(stream) => Some(greeted),
            _ = evicted => None,
        }
    }
}

/// The places of unproven connections.
#[derive(Clone, Default)]
pub(super) struct Places(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    rule: unproven::Unproven,
    /// What tells a connection that it gave way.
    evicts: HashMap<u64, oneshot::Sender<()>>,
    last: u64,
}

/// A place; free when this is dropped.
struct Held {
    places: Places,
    number: u64,
}

impl Places {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: the connection is closed.
    pub(super) fn admit(&self, now: Duration, stream: TcpStream, from: SocketAddr) -> Option<Unproven> {
        let mut taken = self.taken();
        taken.last += 1;
        let number = taken.last;
        match taken.rule.admit(now, number, from.ip()) {
            Admission::Admitted => {}
            Admission::InPlaceOf(other) => drop(taken.evicts.remove(&other)),
            Admission::Refused => return None,
        }
        let (evicts, evicted) = oneshot::channel();
        taken.evicts.insert(number, evicts);
        Some(Unproven { stream, evicted, held: Held { places: self.clone(), number } })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.rule.release(self.number);
        taken.evicts.remove(&self.number);
    }
}

/// Lets members in.
pub(super) struct Door {
    pub(super) key: Arc<GangKey>,
    pub(super) silence: Duration,
    pub(super) arrivals: mpsc::Sender<Arrival>,
    pub(super) tasks: JoinSet<()>,
}

impl Door {
    pub(super) fn answer(&mut self, unproven: Unproven, from: SocketAddr, link: Link) {
        let (key, silence, arrivals) = (Arc::clone(&self.key), self.silence, self.arrivals.clone());
        self.tasks.spawn(async move {
            match unproven.greeted(|stream| greet(stream, &key, silence)).await {
                Some(Ok(proven)) => converse(proven, link, &arrivals).await,
                Some(Err(why)) => drop(arrivals.send(Arrival::Refused(from, why)).await),
                None => {}
            }
        });
    }
}

/// Carries messages both ways until either side closes.
async fn converse(proven: gang::Link, link: Link, arrivals: &mpsc::Sender<Arrival>) {
    let gang::Link { mut reader, mut writer } = proven;
    let (sender, mut queue) = mpsc::channel(QUEUE);
    if arrivals.send(Arrival::Opened(link, sender)).await.is_err() {
        return;
    }
    let is_ours = {
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
            while let Ok(message) = reader.next().await {
                if arrivals.send(Arrival::Received(link, Box::new(message))).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            is_ours = write => is_ours,
            () = read => false,
        }
    };
    if is_ours {
        writer.close().await;
        reader.drain().await;
    }
    let _ = arrivals.send(Arrival::Closed(link)).await;
}

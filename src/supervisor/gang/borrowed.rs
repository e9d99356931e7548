//! The rendezvous port while the leader has it: a caller that proves itself there learns where the leader itself listens.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep_until};

use crate::edge::net::borrowed_port::{accept, answer, own_address};
use crate::edge::net::gang::{NoLink, listen};
use crate::rules::gang::handshake::GangKey;
use crate::rules::gang::message::{Referral, ToMember};
use crate::rules::gang::place::Place;

/// Callers that are served at once.
const CALLERS: usize = 64;
/// Before the next try where a trainer still has the port, or no connection can be taken.
const PAUSE: Duration = Duration::from_millis(200);
/// A port that cannot be had for so long is told of.
const TO_TELL: Duration = Duration::from_secs(5);

/// The gang's own port, and where it is reached if it is not the published one.
pub(super) async fn open(place: &Place) -> io::Result<(TcpListener, Option<Referral>)> {
    if !place.is_borrowed {
        return Ok((listen(&place.host, place.port).await?, None));
    }
    let ip = own_address(&place.host, place.port).await?;
    let door = listen(&ip.to_string(), 0).await?;
    let port = door.local_addr()?.port();
    Ok((door, Some(Referral { ip, port })))
}

/// A caller at the borrowed port that is no member; none comes where no port is borrowed.
pub(super) async fn next_refused(borrowed: &mut Option<BorrowedPort>) -> (SocketAddr, NoLink) {
    match borrowed {
        Some(port) => port.next_refused().await,
        None => pending().await,
    }
}

/// The port, and what the leader says there.
pub(super) struct BorrowedPort {
    port: u16,
    own: Referral,
    key: Arc<GangKey>,
    silence: Duration,
    is_wanted: bool,
    open: Option<Open>,
    next_try: Instant,
    wanted_since: Instant,
    is_told: bool,
}

/// A caller, and whether it is a member.
type Answered = (SocketAddr, Result<(), NoLink>);

/// While this lives, the port is the leader's.
struct Open {
    listener: TcpListener,
    callers: FuturesUnordered<Pin<Box<dyn Future<Output = Answered>>>>,
}

impl BorrowedPort {
    pub(super) fn new(port: u16, own: Referral, key: Arc<GangKey>, silence: Duration) -> BorrowedPort {
        let now = Instant::now();
        let (is_wanted, open, is_told) = (false, None, false);
        BorrowedPort { port, own, key, silence, is_wanted, open, next_try: now, wanted_since: now, is_told }
    }

    /// Takes the port as soon as no trainer has it any more, or lets go of it: when this returns, a trainer can bind it.
    pub(super) fn want(&mut self, is_wanted: bool) {
        if is_wanted == self.is_wanted {
            return;
        }
        let now = Instant::now();
        (self.is_wanted, self.open, self.next_try, self.wanted_since) = (is_wanted, None, now, now);
    }

    /// Serves the callers, and returns one that is no member. Dropped before its end, it loses nothing.
    pub(super) async fn next_refused(&mut self) -> (SocketAddr, NoLink) {
        loop {
            if !self.is_wanted {
                pending::<()>().await;
            }
            let Some(open) = &mut self.open else {
                self.take().await;
                continue;
            };
            tokio::select! {
                Some((from, answered)) = open.callers.next() => if let Err(why) = answered {
                    return (from, why);
                },
                accepted = accept(&open.listener), if open.callers.len() < CALLERS => match accepted {
                    Ok((stream, from)) => {
                        let (own, key, silence) = (self.own, Arc::clone(&self.key), self.silence);
                        open.callers.push(Box::pin(async move {
                            (from, answer(stream, &key, silence, &ToMember::Refer(own)).await)
                        }));
                    }
                    // As on a port that cannot be had: it is tried anew.
                    Err(_) => (self.open, self.next_try) = (None, Instant::now() + PAUSE),
                },
            }
        }
    }

    async fn take(&mut self) {
        sleep_until(self.next_try).await;
        match listen(&self.own.ip.to_string(), self.port).await {
            Ok(listener) => self.open = Some(Open { listener, callers: FuturesUnordered::new() }),
            Err(error) => {
                let now = Instant::now();
                self.next_try = now + PAUSE;
                if now >= self.wanted_since + TO_TELL && !std::mem::replace(&mut self.is_told, true) {
                    tracing::warn!(
                        code = "gang",
                        "the gang's leader cannot listen at the rendezvous port {}: {error}; replicas that come now do not find \
                         it there; it is tried again; see what listens there",
                        self.port
                    );
                }
            }
        }
    }
}

//! The rendezvous port while the leader borrows it: a caller that proves the key there gets the leader's own address.

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

use super::listener::{Slots, Unproven};
use crate::edge::clock::Clock;
use crate::edge::net::borrowed_port::{accept, authenticate, own_address};
use crate::edge::net::gang::{NoLink, listen};
use crate::rules::gang::handshake::GangKey;
use crate::rules::gang::message::{Referral, ToMember};
use crate::rules::gang::place::Place;

/// The pause before a retry if a trainer still has the port, or accept fails.
const PAUSE: Duration = Duration::from_millis(200);
/// A port that cannot be bound for this long is logged.
const WARN_AFTER: Duration = Duration::from_secs(5);

/// Opens the gang's own port. Returns its address, too, if it is not the published one.
pub(super) async fn open(place: &Place) -> io::Result<(TcpListener, Option<Referral>)> {
    if !place.is_borrowed {
        return Ok((listen(&place.host, place.port).await?, None));
    }
    let ip = own_address(&place.host, place.port).await?;
    let listener = listen(&ip.to_string(), 0).await?;
    let port = listener.local_addr()?.port();
    Ok((listener, Some(Referral { ip, port })))
}

/// The next caller at the borrowed port that is not a member. Without a borrowed port, it never returns.
pub(super) async fn next_refused(borrowed: &mut Option<BorrowedPort>) -> (SocketAddr, NoLink) {
    match borrowed {
        Some(port) => port.next_refused().await,
        None => pending().await,
    }
}

/// The borrowed port and the referral that it serves.
pub(super) struct BorrowedPort {
    port: u16,
    own: Referral,
    key: Arc<GangKey>,
    silence: Duration,
    clock: Clock,
    slots: Slots,
    is_wanted: bool,
    open: Option<Open>,
    next_try: Instant,
    wanted_since: Instant,
    is_logged: bool,
}

/// The address of a caller, and whether it is a member.
type Answered = (SocketAddr, Result<(), NoLink>);

/// Sends the leader's own address to a caller that proves the key. Errors: why it is not a member.
async fn refer(unproven: Unproven, key: Arc<GangKey>, silence: Duration, own: Referral) -> Result<(), NoLink> {
    match unproven.authenticated(|stream| authenticate(stream, &key, silence)).await {
        Some(proven) => proven?.send(&ToMember::Refer(own)).await,
        None => Ok(()),
    }
}

/// The open port. Dropping this closes it.
struct Open {
    listener: TcpListener,
    callers: FuturesUnordered<Pin<Box<dyn Future<Output = Answered>>>>,
}

impl BorrowedPort {
    pub(super) fn new(port: u16, own: Referral, key: Arc<GangKey>, silence: Duration, clock: Clock) -> BorrowedPort {
        let (now, slots) = (Instant::now(), Slots::default());
        let (is_wanted, open, is_logged) = (false, None, false);
        BorrowedPort {
            port,
            own,
            key,
            silence,
            clock,
            slots,
            is_wanted,
            open,
            next_try: now,
            wanted_since: now,
            is_logged,
        }
    }

    /// Opens the port as soon as it is free, or closes it: when this returns, a trainer can bind it.
    pub(super) fn want(&mut self, is_wanted: bool) {
        if is_wanted == self.is_wanted {
            return;
        }
        let now = Instant::now();
        (self.is_wanted, self.open, self.next_try, self.wanted_since) = (is_wanted, None, now, now);
    }

    /// Serves the callers, and returns the next one that is not a member. Cancel safe.
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
                accepted = accept(&open.listener) => match accepted {
                    Ok((stream, from)) => {
                        if let Some(unproven) = self.slots.admit(self.clock.now(), stream, from) {
                            let refer = refer(unproven, Arc::clone(&self.key), self.silence, self.own);
                            open.callers.push(Box::pin(async move { (from, refer.await) }));
                        }
                    }
                    // The port is opened again, as after a failed bind.
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
                if now >= self.wanted_since + WARN_AFTER && !std::mem::replace(&mut self.is_logged, true) {
                    tracing::warn!(
                        code = "gang",
                        "the gang's leader cannot listen at the rendezvous port {}: {error}; replicas that start now do not find \
                         it there; it is tried again; see what listens there",
                        self.port
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use tokio::net::TcpSocket;

    use super::*;
    use crate::edge::net::gang::dial;
    use crate::edge::transfer::blocking;
    use crate::rules::gang::unproven::MOST;

    #[test]
    fn silent_callers_at_another_address_do_not_keep_a_member_out() {
        blocking::runtime(false).expect("a runtime").block_on(async {
            let any = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let port = any.local_addr().expect("an address").port();
            drop(any);
            let (key, silence) = (Arc::new(GangKey::derive("token", b"k")), Duration::from_secs(20));
            let own = Referral { ip: Ipv4Addr::LOCALHOST.into(), port: 1 };
            let mut borrowed = BorrowedPort::new(port, own, Arc::clone(&key), silence, Clock::start());
            borrowed.want(true);
            let serves = async {
                loop {
                    borrowed.next_refused().await;
                }
            };
            let member = async {
                let mut silent = Vec::new();
                while silent.len() < MOST {
                    let socket = TcpSocket::new_v4().expect("a socket");
                    socket.bind((Ipv4Addr::new(127, 0, 0, 2), 0).into()).expect("another address");
                    silent.extend(socket.connect((Ipv4Addr::LOCALHOST, port).into()).await.ok());
                }
                let mut link = dial("127.0.0.1", port, true, &key, silence).await?;
                Ok::<_, NoLink>(link.reader.next::<ToMember>().await)
            };
            tokio::select! {
                received = member => assert_eq!(received, Ok(Ok(ToMember::Refer(own)))),
                () = serves => {}
            }
        });
    }
}

//! A port that the gang's leader borrows while no trainer uses it. No connection outlives the listener. A caller sends nothing
//! before it has received the leader's banner, because a trainer may have the port.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::gang::{LINGER, NoLink, session};
use super::names::addresses;
use crate::rules::gang::handshake::GangKey;
use crate::rules::gang::wire::{Channel, Direction};

/// The leader's first bytes.
const BANNER: &[u8] = b"trainit gang\n";
/// The limit for receiving the banner.
const BANNER_TIMEOUT: Duration = Duration::from_secs(2);

/// Accepts a connection that is reset when it is dropped, so that it does not occupy the port. Errors: as accept(2),
/// setsockopt(2).
pub async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, from) = listener.accept().await?;
    stream.set_zero_linger()?;
    Ok((stream, from))
}

/// A caller that has proven the key.
#[derive(Debug)]
pub struct Proven {
    stream: TcpStream,
    channel: Channel,
}

/// The leader's side of the handshake, after the banner. Errors: why the caller is not a member.
pub async fn authenticate(mut stream: TcpStream, key: &GangKey, silence: Duration) -> Result<Proven, NoLink> {
    stream.write_all(BANNER).await.map_err(|error| NoLink::NotAgent(error.to_string()))?;
    let session = session(&mut stream, key, silence).await?;
    Ok(Proven { stream, channel: Channel::new(session, Direction::ToMember) })
}

impl Proven {
    /// Sends one message and closes the connection. Errors: the caller is gone.
    pub async fn send(mut self, message: &impl Serialize) -> Result<(), NoLink> {
        let frame = self.channel.frame(message).map_err(|error| NoLink::NotAgent(error.to_string()))?;
        self.stream.write_all(&frame).await.map_err(|error| NoLink::NotAgent(error.to_string()))?;
        // Wait before the reset, because it may overtake the message in a forwarder.
        let _ = timeout(LINGER, self.stream.read(&mut [0])).await;
        Ok(())
    }
}

/// Whether the leader's banner is received.
pub(super) async fn receives_banner(stream: &mut TcpStream) -> bool {
    let mut first = [0; BANNER.len()];
    matches!(timeout(BANNER_TIMEOUT, stream.read_exact(&mut first)).await, Ok(Ok(_))) && first == BANNER
}

/// The address of this machine on its route to the host; nothing is sent. The local address of an accepted connection may be
/// that of a forwarder inside the container. Errors: as getaddrinfo(3), socket(2) and connect(2).
pub async fn own_address(host: &str, port: u16) -> io::Result<IpAddr> {
    let route = |to: SocketAddr| {
        let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(to)?;
        socket.local_addr()
    };
    let mut last = io::Error::from(ErrorKind::NotFound);
    for address in addresses(host, port).await? {
        match route(address) {
            Ok(own) => return Ok(own.ip()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpSocket;

    use super::*;
    use crate::edge::net::gang::dial;
    use crate::rules::gang::message::ToMember;

    const SILENCE: Duration = Duration::from_secs(20);

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        crate::edge::transfer::blocking::runtime(false).expect("a runtime").block_on(future)
    }

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        (listener, address)
    }

    #[test]
    fn a_member_receives_the_message_and_a_trainer_can_bind_the_port_as_soon_as_the_leader_closes_it() {
        block_on(async {
            let ((listener, address), key) = (listener().await, GangKey::derive("token", b"k"));
            let answered = async {
                let (stream, _) = accept(&listener).await.expect("a connection");
                authenticate(stream, &key, SILENCE).await?.send(&ToMember::Finish).await
            };
            let receiving = async {
                let mut link = dial("127.0.0.1", address.port(), true, &key, SILENCE).await?;
                Ok::<_, NoLink>(link.reader.next::<ToMember>().await)
            };
            let (answered, received) = tokio::join!(answered, receiving);
            assert_eq!((answered, received), (Ok(()), Ok(Ok(ToMember::Finish))));
            let foreign = TcpStream::connect(address).await.expect("a connection");
            let accepted = accept(&listener).await.expect("a connection");
            let waiting = TcpStream::connect(address).await.expect("a connection that is not accepted");
            drop((accepted, listener));
            // Unlike a listener of the runtime, this one has no SO_REUSEADDR.
            let trainer = TcpSocket::new_v4().expect("a socket");
            trainer.bind(address).expect("no connection is left at the port");
            drop((foreign, waiting));
        });
    }

    #[test]
    fn a_trainer_at_the_port_receives_nothing() {
        block_on(async {
            let ((trainer, address), key) = (listener().await, GangKey::derive("token", b"k"));
            let receiving = async {
                let (mut caller, _) = trainer.accept().await.expect("a connection");
                caller.write_all(&[b'?'; BANNER.len()]).await.expect("sent");
                let mut received = Vec::new();
                caller.read_to_end(&mut received).await.map(|_| received)
            };
            let (received, refused) = tokio::join!(receiving, dial("127.0.0.1", address.port(), true, &key, SILENCE));
            assert!(received.is_ok_and(|received| received.is_empty()));
            assert!(matches!(refused, Err(NoLink::Unreachable(_))));
        });
    }

    #[test]
    fn the_own_address_is_that_of_the_route_to_the_host() {
        assert!(block_on(own_address("127.0.0.2", 1)).expect("an address").is_loopback());
    }
}

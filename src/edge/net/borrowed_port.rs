//! A port that the gang's leader has while no trainer wants it. No connection there outlives the listener, and no caller says
//! anything before the leader has, because a trainer may have the port by then.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::gang::{LINGER, NoLink, session};
use super::tcp_connect::addresses;
use crate::rules::gang::handshake::GangKey;
use crate::rules::gang::wire::{Channel, Direction};

/// The leader's first word.
const GREETING: &[u8] = b"trainit gang\n";
/// It comes within this time.
const TO_GREET: Duration = Duration::from_secs(2);

/// A connection that is reset when it is dropped: nothing of it is left at the port. Errors: as accept(2), setsockopt(2).
pub async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, from) = listener.accept().await?;
    stream.set_zero_linger()?;
    Ok((stream, from))
}

/// A caller that has proven itself.
#[derive(Debug)]
pub struct Proven {
    stream: TcpStream,
    channel: Channel,
}

/// The leader's side: lets a caller prove itself. Errors: why the caller is no member.
pub async fn greet(mut stream: TcpStream, key: &GangKey, silence: Duration) -> Result<Proven, NoLink> {
    stream.write_all(GREETING).await.map_err(|error| NoLink::Stranger(error.to_string()))?;
    let session = session(&mut stream, key, silence).await?;
    Ok(Proven { stream, channel: Channel::new(session, Direction::ToMember) })
}

impl Proven {
    /// This one message. Errors: the caller is gone.
    pub async fn tell(mut self, message: &impl Serialize) -> Result<(), NoLink> {
        let frame = self.channel.frame(message).map_err(|error| NoLink::Stranger(error.to_string()))?;
        self.stream.write_all(&frame).await.map_err(|error| NoLink::Stranger(error.to_string()))?;
        // The reset comes after the message: through a forwarder it may overtake it.
        let _ = timeout(LINGER, self.stream.read(&mut [0])).await;
        Ok(())
    }
}

/// Whether the leader answers there.
pub(super) async fn is_greeted(stream: &mut TcpStream) -> bool {
    let mut first = [0; GREETING.len()];
    matches!(timeout(TO_GREET, stream.read_exact(&mut first)).await, Ok(Ok(_))) && first == GREETING
}

/// The address of this machine from which it would reach the host; nothing is sent. The address that a caller has come to may
/// be that of a forwarder inside the container. Errors: as getaddrinfo(3), socket(2) and connect(2).
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
    fn a_member_hears_the_message_and_a_trainer_can_bind_the_port_as_soon_as_the_leader_lets_go_of_it() {
        block_on(async {
            let ((listener, address), key) = (listener().await, GangKey::derive("token", b"k"));
            let answered = async {
                let (stream, _) = accept(&listener).await.expect("a connection");
                greet(stream, &key, SILENCE).await?.tell(&ToMember::Finish).await
            };
            let hears = async {
                let mut link = dial("127.0.0.1", address.port(), true, &key, SILENCE).await?;
                Ok::<_, NoLink>(link.reader.next::<ToMember>().await)
            };
            let (answered, heard) = tokio::join!(answered, hears);
            assert_eq!((answered, heard), (Ok(()), Ok(Ok(ToMember::Finish))));
            let stranger = TcpStream::connect(address).await.expect("a connection");
            let accepted = accept(&listener).await.expect("a connection");
            let waiting = TcpStream::connect(address).await.expect("a connection that is not accepted");
            drop((accepted, listener));
            // Unlike a listener of the runtime, this one has no SO_REUSEADDR.
            let trainer = TcpSocket::new_v4().expect("a socket");
            trainer.bind(address).expect("no connection is left at the port");
            drop((stranger, waiting));
        });
    }

    #[test]
    fn a_trainer_at_the_port_hears_nothing() {
        block_on(async {
            let ((trainer, address), key) = (listener().await, GangKey::derive("token", b"k"));
            let heard = async {
                let (mut caller, _) = trainer.accept().await.expect("a connection");
                caller.write_all(&[b'?'; GREETING.len()]).await.expect("sent");
                let mut heard = Vec::new();
                caller.read_to_end(&mut heard).await.map(|_| heard)
            };
            let (heard, refused) = tokio::join!(heard, dial("127.0.0.1", address.port(), true, &key, SILENCE));
            assert!(heard.is_ok_and(|heard| heard.is_empty()));
            assert!(matches!(refused, Err(NoLink::Unreachable(_))));
        });
    }

    #[test]
    fn the_own_address_is_the_one_of_the_route_to_the_host() {
        assert!(block_on(own_address("127.0.0.2", 1)).expect("an address").is_loopback());
    }
}

//! The gang's connections: TCP, the proof of a common key, then frames in both directions.
//!
//! What the frames and the proof are made of is `rules/gang`'s. Deliberately absent: what the messages mean, and when to
//! dial again.

#![expect(unsafe_code, reason = "setsockopt and getrandom")]

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::borrowed_port::is_greeted;
use super::tcp_connect::addresses;
use crate::rules::gang::handshake::{Challenge, GangKey, Nonce, Open, Proof, VERSION};
use crate::rules::gang::wire::{Channel, Direction};

/// An unproven connection has this long to prove itself.
pub const TO_PROVE: Duration = Duration::from_secs(5);
/// Names and machines that have not answered within this time are tried again later.
const TO_CONNECT: Duration = Duration::from_secs(5);
/// Longest message of the handshake, bytes.
const HANDSHAKE_LIMIT: usize = 1024;
/// What is read at once.
const CHUNK: usize = 16 << 10;
/// What a peer may still send while its connection is closed.
pub(super) const LINGER: Duration = Duration::from_millis(300);

/// Why a connection came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoLink {
    /// No connection, as a clause.
    Unreachable(String),
    /// The other side has another key.
    OtherKey,
    /// The other side is no agent of a gang, as a clause.
    Stranger(String),
}

/// How a proven connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The other side closed or reset it.
    Closed,
    /// The other side has not acknowledged anything for the time-out.
    Silent,
    /// It sent what is no frame of this connection.
    Broken,
}

/// A proven connection.
#[derive(Debug)]
pub struct Link {
    /// What comes.
    pub reader: Reader,
    /// What goes.
    pub writer: Writer,
}

/// Frames that come in.
#[derive(Debug)]
pub struct Reader {
    half: OwnedReadHalf,
    channel: Channel,
    received: Vec<u8>,
}

/// Frames that go out.
#[derive(Debug)]
pub struct Writer {
    half: OwnedWriteHalf,
    channel: Channel,
}

/// Listens at this port: on loopback if the leader's published host is a loopback address, else on every interface.
/// Errors: as bind(2).
pub async fn listen(host: &str, port: u16) -> io::Result<TcpListener> {
    let published = if host == "localhost" { Some(Ipv4Addr::LOCALHOST.into()) } else { host.parse::<IpAddr>().ok() };
    if let Some(address) = published.filter(IpAddr::is_loopback) {
        return TcpListener::bind((address, port)).await;
    }
    match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
        Err(error) if error.kind() != ErrorKind::AddrInUse => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        bound => bound,
    }
}

/// 16 or 32 random bytes of the kernel. Errors: as getrandom(2).
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the buffer is alive for the call and of the length that is told.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if usize::try_from(got) == Ok(N) { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

/// Connects to a member's leader and proves itself. The name is looked up anew, and each of its addresses is tried. At a
/// borrowed port it says nothing before the leader has spoken, because a trainer may have the port.
pub async fn dial(host: &str, port: u16, is_borrowed: bool, key: &GangKey, silence: Duration) -> Result<Link, NoLink> {
    let unreachable = |what: String| NoLink::Unreachable(what);
    let addresses = match timeout(TO_CONNECT, addresses(host, port)).await {
        Err(_) => return Err(unreachable("the name servers do not answer".to_owned())),
        Ok(Err(error)) => return Err(unreachable(format!("the name does not resolve ({error})"))),
        Ok(Ok(addresses)) => addresses,
    };
    let mut last = unreachable("the name has no address".to_owned());
    for address in addresses {
        let failed = match timeout(TO_CONNECT, TcpStream::connect(address)).await {
            Err(_) => unreachable(format!("{address} does not answer")),
            Ok(Err(error)) => unreachable(format!("{address}: {error}")),
            Ok(Ok(stream)) => match timeout(TO_PROVE, introduce(stream, is_borrowed, key, silence)).await {
                Err(_) => NoLink::Stranger(format!("{address} does not answer as an agent does")),
                Ok(Err(failed)) => failed,
                Ok(Ok(link)) => return Ok(link),
            },
        };
        // That an agent has another key says more than that another address is dead.
        if last != NoLink::OtherKey {
            last = failed;
        }
    }
    Err(last)
}

/// The member's side of the handshake.
async fn introduce(mut stream: TcpStream, is_borrowed: bool, key: &GangKey, silence: Duration) -> Result<Link, NoLink> {
    if is_borrowed && !is_greeted(&mut stream).await {
        return Err(NoLink::Unreachable("no agent answers there; a trainer may have the port".to_owned()));
    }
    prepare(&stream, silence);
    let lost = |error: io::Error| NoLink::Stranger(format!("it ends the connection ({error})"));
    let open = Open { version: VERSION, nonce: nonce().map_err(lost)? };
    tell(&mut stream, &open).await.map_err(lost)?;
    let challenge: Challenge = receive(&mut stream).await.map_err(lost)?;
    let Some(proof) = key.prove(&open, &challenge) else {
        // The leader is to hear of it as well: no key makes this proof.
        let _ = tell(&mut stream, &Proof { mac: [0; 32] }).await;
        return Err(NoLink::OtherKey);
    };
    tell(&mut stream, &proof).await.map_err(lost)?;
    let session = key.session(&open, &challenge);
    Ok(Link::new(stream, session, Direction::ToMember, Direction::ToLeader))
}

/// The leader's side of the handshake, with a time limit.
pub async fn greet(mut stream: TcpStream, key: &GangKey, silence: Duration) -> Result<Link, NoLink> {
    let session = session(&mut stream, key, silence).await?;
    Ok(Link::new(stream, session, Direction::ToLeader, Direction::ToMember))
}

/// The session key, once the caller has proven itself.
pub(super) async fn session(stream: &mut TcpStream, key: &GangKey, silence: Duration) -> Result<[u8; 32], NoLink> {
    match timeout(TO_PROVE, examine(stream, key, silence)).await {
        Ok(examined) => examined,
        Err(_) => Err(NoLink::Stranger("it says nothing".to_owned())),
    }
}

async fn examine(stream: &mut TcpStream, key: &GangKey, silence: Duration) -> Result<[u8; 32], NoLink> {
    prepare(stream, silence);
    let lost = |error: io::Error| NoLink::Stranger(error.to_string());
    let open: Open = receive(stream).await.map_err(lost)?;
    if open.version != VERSION {
        return Err(NoLink::Stranger(format!("it speaks version {} of the protocol, not {VERSION}", open.version)));
    }
    let challenge = key.challenge(&open, nonce().map_err(lost)?);
    tell(stream, &challenge).await.map_err(lost)?;
    let proof: Proof = receive(stream).await.map_err(lost)?;
    if !key.accepts(&open, &challenge, &proof) {
        return Err(NoLink::OtherKey);
    }
    Ok(key.session(&open, &challenge))
}

fn nonce() -> io::Result<Nonce> {
    random()
}

/// A message of the handshake: its length in four bytes, then JSON.
async fn tell(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    let length = u32::try_from(json.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &json].concat()).await
}

async fn receive<T: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<T> {
    let length = stream.read_u32().await? as usize;
    if length > HANDSHAKE_LIMIT {
        return Err(io::Error::new(ErrorKind::InvalidData, "what it says is no handshake"));
    }
    let mut json = vec![0; length];
    stream.read_exact(&mut json).await?;
    serde_json::from_slice(&json).map_err(|_| io::Error::new(ErrorKind::InvalidData, "what it says is no handshake"))
}

/// Small messages go at once, and a peer that acknowledges nothing for so long is given up. Where the kernel refuses
/// either, beats and leases do the same, later.
fn prepare(stream: &TcpStream, silence: Duration) {
    let _ = stream.set_nodelay(true);
    let millis = libc::c_uint::try_from(silence.as_millis()).unwrap_or(libc::c_uint::MAX);
    // SAFETY: the value is alive for the call and of the length that is told; the descriptor is open.
    unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_USER_TIMEOUT,
            (&raw const millis).cast(),
            size_of_val(&millis) as libc::socklen_t,
        )
    };
}

impl Link {
    fn new(stream: TcpStream, session: [u8; 32], comes: Direction, goes: Direction) -> Link {
        let (read, write) = stream.into_split();
        Link {
            reader: Reader { half: read, channel: Channel::new(session, comes), received: Vec::new() },
            writer: Writer { half: write, channel: Channel::new(session, goes) },
        }
    }
}

impl Reader {
    /// The next message. Dropped before its end, it loses nothing.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<T, Cut> {
        loop {
            match self.channel.take(&mut self.received) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(_) => return Err(Cut::Broken),
            }
            self.received.reserve(CHUNK);
            match self.half.read_buf(&mut self.received).await {
                Ok(0) => return Err(Cut::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => return Err(Cut::Silent),
                Err(_) => return Err(Cut::Closed),
            }
        }
    }

    /// Waits until the other side has closed as well, for a moment: closed at once, what was sent last might be lost.
    pub async fn drain(mut self) {
        let rest = async {
            loop {
                self.received.clear();
                self.received.reserve(CHUNK);
                if self.half.read_buf(&mut self.received).await.unwrap_or(0) == 0 {
                    return;
                }
            }
        };
        let _ = timeout(LINGER, rest).await;
    }
}

impl Writer {
    /// Sends messages in one go. Errors: how the connection ended.
    pub async fn send(&mut self, messages: &[impl Serialize]) -> Result<(), Cut> {
        let mut bytes = Vec::new();
        for message in messages {
            bytes.extend(self.channel.frame(message).map_err(|_| Cut::Broken)?);
        }
        self.half.write_all(&bytes).await.map_err(|error| match error.kind() {
            ErrorKind::TimedOut => Cut::Silent,
            _ => Cut::Closed,
        })
    }

    /// Says that nothing more comes.
    pub async fn close(mut self) {
        let _ = self.half.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::gang::message::{ToLeader, ToMember};

    const SILENCE: Duration = Duration::from_secs(20);

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        crate::edge::transfer::blocking::runtime(false).expect("a runtime").block_on(future)
    }

    async fn both(ours: &str, theirs: &str) -> (Result<Link, NoLink>, Result<Link, NoLink>) {
        let (ours, theirs) = (GangKey::derive("token", ours.as_bytes()), GangKey::derive("token", theirs.as_bytes()));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let greeted = async {
            let (stream, _) = listener.accept().await.expect("a connection");
            greet(stream, &ours, SILENCE).await
        };
        tokio::join!(greeted, dial("127.0.0.1", port, false, &theirs, SILENCE))
    }

    #[test]
    fn agents_with_one_key_hear_each_other_and_see_the_end() {
        block_on(async {
            let (leader, member) = both("k", "k").await;
            let (mut leader, mut member) = (leader.expect("a link"), member.expect("a link"));
            member.writer.send(&[ToLeader::Leaving]).await.expect("sent");
            leader.writer.send(&[ToMember::Finish, ToMember::Kept { step: 3 }]).await.expect("sent");
            assert_eq!(leader.reader.next::<ToLeader>().await, Ok(ToLeader::Leaving));
            assert_eq!(member.reader.next::<ToMember>().await, Ok(ToMember::Finish));
            assert_eq!(member.reader.next::<ToMember>().await, Ok(ToMember::Kept { step: 3 }));
            drop(leader);
            assert_eq!(member.reader.next::<ToMember>().await, Err(Cut::Closed));
        });
    }

    #[test]
    fn a_leader_that_is_published_on_loopback_listens_there_only() {
        let bound = |host| {
            let listener = block_on(async { listen(host, 0).await.map(|listener| listener.local_addr()) });
            listener.expect("a port").expect("an address").ip()
        };
        assert!(["127.0.0.2", "localhost", "::1"].map(bound).iter().all(IpAddr::is_loopback));
        assert!(["10.0.0.1", "worker-0"].map(bound).iter().all(IpAddr::is_unspecified));
    }

    #[test]
    fn both_sides_report_another_key() {
        let (leader, member) = block_on(both("k", "other"));
        assert!(matches!((leader, member), (Err(NoLink::OtherKey), Err(NoLink::OtherKey))));
    }

    #[test]
    fn a_caller_that_is_no_agent_is_a_stranger() {
        block_on(async {
            let key = GangKey::derive("token", b"k");
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let mut stranger = TcpStream::connect(address).await.expect("a connection");
            stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("sent");
            let (stream, _) = listener.accept().await.expect("a connection");
            assert!(matches!(greet(stream, &key, SILENCE).await, Err(NoLink::Stranger(_))));
        });
    }
}

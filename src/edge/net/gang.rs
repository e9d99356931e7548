//! The gang's connections: TCP, the proof of a common key, then frames in both directions.
//!
//! `rules/gang` defines the frames and the proof. Deliberately absent: the meaning of the messages, and when to connect
//! again.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{TcpMaxSeg, TcpUserTimeout};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use super::borrowed_port::receives_banner;
use super::names::addresses;
use crate::rules::gang::handshake::{Answer, GangKey, Open, OtherVersion, Proof, VERSION};
use crate::rules::gang::wire::{Channel, Direction, WireError};

/// The limit for the handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The limit for a name lookup, and for a connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest message of the handshake, in bytes.
const HANDSHAKE_LIMIT: usize = 1024;
/// The longest segment of a connection. The packets of 576 bytes pass every network, also one that loses longer packets
/// without a report.
const SEGMENT: u32 = 536;
/// The capacity reserved for one read.
const CHUNK: usize = 16 << 10;
/// The limit for the wait until the other side has closed, too.
pub(super) const LINGER: Duration = Duration::from_millis(300);

/// Why there is no proven connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoLink {
    /// There is no connection, for the reason in this clause.
    Unreachable(String),
    /// The other side has another key, with a clause that says what is known about it.
    OtherKey(String),
    /// The other side is not an agent of a gang, for the reason in this clause.
    NotAgent(String),
}

/// How a proven connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut {
    /// The other side closed or reset it.
    Closed,
    /// The other side has not acknowledged anything for the time-out.
    Silent,
    /// An invalid frame was received, or a message was too long to be sent.
    Broken(WireError),
}

/// A proven connection.
#[derive(Debug)]
pub struct Link {
    /// Receives messages.
    pub reader: Reader,
    /// Sends messages.
    pub writer: Writer,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub struct Reader {
    half: OwnedReadHalf,
    channel: Channel,
    received: Vec<u8>,
}

/// The sending half of a connection.
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
    getrandom::getrandom(&mut bytes)?;
    Ok(bytes)
}

/// Connects to the leader and proves the key. The name is looked up again, and each of its addresses is tried. At a borrowed
/// port, nothing is sent before the leader's banner is received, because a trainer may have the port.
pub async fn dial(host: &str, port: u16, is_borrowed: bool, key: &GangKey, silence: Duration) -> Result<Link, NoLink> {
    let unreachable = NoLink::Unreachable;
    let addresses = match addresses(host, port).await {
        Err(error) => return Err(unreachable(format!("the name does not resolve ({error})"))),
        Ok(addresses) => addresses,
    };
    let mut last = unreachable("the name has no address".to_owned());
    for address in addresses {
        let failed = match timeout(CONNECT_TIMEOUT, connect(address)).await {
            Err(_) => unreachable(format!("{address} does not answer")),
            Ok(Err(error)) => unreachable(format!("{address}: {error}")),
            Ok(Ok(stream)) => match timeout(HANDSHAKE_TIMEOUT, prove_key(stream, is_borrowed, key, silence)).await {
                Err(_) => NoLink::NotAgent(format!("{address} does not answer as an agent does")),
                Ok(Err(failed)) => failed,
                Ok(Ok(link)) => return Ok(link),
            },
        };
        // Another key is a more useful reason than a failure at another address.
        if !matches!(last, NoLink::OtherKey(_)) {
            last = failed;
        }
    }
    Err(last)
}

/// Connects with short segments in both directions. Errors: as socket(2), connect(2).
async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // If the kernel refuses, only a network that loses long packets matters.
    let _ = setsockopt(&socket, TcpMaxSeg, &SEGMENT);
    socket.connect(address).await
}

/// The member's side of the handshake.
async fn prove_key(mut stream: TcpStream, is_borrowed: bool, key: &GangKey, silence: Duration) -> Result<Link, NoLink> {
    if is_borrowed && !receives_banner(&mut stream).await {
        return Err(NoLink::Unreachable("no agent answers there; a trainer may have the port".to_owned()));
    }
    set_options(&stream, silence);
    let lost = |error: io::Error| NoLink::NotAgent(format!("it ends the connection ({error})"));
    let open = key.open(random().map_err(lost)?);
    send(&mut stream, &open).await.map_err(lost)?;
    let challenge = match receive(&mut stream).await {
        Ok(Answer::Challenge(challenge)) => challenge,
        Ok(Answer::OtherVersion(other)) => {
            return Err(NoLink::NotAgent(key.about.other_version(other.version, &other.about)));
        }
        Err(error) => {
            let hint =
                format!("or its trainit does not speak version {VERSION} of the gang's protocol, as this one does");
            return Err(NoLink::NotAgent(format!("it ends the connection ({error}), {hint}")));
        }
    };
    let Some(proof) = key.prove(&open, &challenge) else {
        // This invalid proof lets the leader report the other key, too.
        let _ = send(&mut stream, &Proof { mac: [0; 32] }).await;
        return Err(NoLink::OtherKey(key.about.other_key(&challenge.about)));
    };
    send(&mut stream, &proof).await.map_err(lost)?;
    let session = key.session(&open, &challenge);
    Ok(Link::new(stream, session, Direction::ToMember, Direction::ToLeader))
}

/// The leader's side of the handshake, with a time limit.
pub async fn authenticate(mut stream: TcpStream, key: &GangKey, silence: Duration) -> Result<Link, NoLink> {
    let session = session(&mut stream, key, silence).await?;
    Ok(Link::new(stream, session, Direction::ToLeader, Direction::ToMember))
}

/// The session key, after the caller has proven the key.
pub(super) async fn session(stream: &mut TcpStream, key: &GangKey, silence: Duration) -> Result<[u8; 32], NoLink> {
    match timeout(HANDSHAKE_TIMEOUT, check_key(stream, key, silence)).await {
        Ok(session) => session,
        Err(_) => Err(NoLink::NotAgent("it has not completed the handshake in time".to_owned())),
    }
}

async fn check_key(stream: &mut TcpStream, key: &GangKey, silence: Duration) -> Result<[u8; 32], NoLink> {
    set_options(stream, silence);
    let lost = |error: io::Error| NoLink::NotAgent(error.to_string());
    let open: Open = receive(stream).await.map_err(lost)?;
    if open.version != VERSION {
        let _ = send(stream, &OtherVersion { version: VERSION, about: key.about.clone() }).await;
        return Err(NoLink::NotAgent(key.about.other_version(open.version, &open.about)));
    }
    let challenge = key.challenge(&open, random().map_err(lost)?);
    send(stream, &challenge).await.map_err(lost)?;
    let proof: Proof = receive(stream).await.map_err(lost)?;
    if !key.accepts(&open, &challenge, &proof) {
        return Err(NoLink::OtherKey(key.about.other_key(&open.about)));
    }
    Ok(key.session(&open, &challenge))
}

/// Sends a message of the handshake: its length in four bytes, then JSON.
async fn send(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    let length = u32::try_from(json.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &json].concat()).await
}

async fn receive<T: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<T> {
    let length = stream.read_u32().await? as usize;
    if length > HANDSHAKE_LIMIT {
        return Err(io::Error::new(ErrorKind::InvalidData, "it does not send a handshake message"));
    }
    let mut json = vec![0; length];
    stream.read_exact(&mut json).await?;
    serde_json::from_slice(&json)
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "it does not send a handshake message"))
}

/// Disables the delay of small messages, and sets the time-out for a peer that acknowledges nothing. If the kernel refuses
/// either, beats and leases detect the loss, later.
fn set_options(stream: &TcpStream, silence: Duration) {
    let _ = stream.set_nodelay(true);
    let millis = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
    let _ = setsockopt(stream, TcpUserTimeout, &millis);
}

impl Link {
    fn new(stream: TcpStream, session: [u8; 32], received: Direction, sent: Direction) -> Link {
        let (read, write) = stream.into_split();
        Link {
            reader: Reader { half: read, channel: Channel::new(session, received), received: Vec::new() },
            writer: Writer { half: write, channel: Channel::new(session, sent) },
        }
    }
}

impl Reader {
    /// The next message. Cancel safe.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<T, Cut> {
        loop {
            match self.channel.take(&mut self.received) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                // A later version sends messages that this one does not know.
                Err(WireError::Content(why)) => tracing::debug!("a message of the gang is ignored: {why}"),
                Err(error) => return Err(Cut::Broken(error)),
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

    /// Waits until the other side has closed, too, within a limit: an immediate close could lose the last message.
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
    /// Sends messages in one write. Errors: how the connection ended.
    pub async fn send(&mut self, messages: &[impl Serialize]) -> Result<(), Cut> {
        let mut bytes = Vec::new();
        for message in messages {
            bytes.extend(self.channel.frame(message).map_err(Cut::Broken)?);
        }
        self.half.write_all(&bytes).await.map_err(|error| match error.kind() {
            ErrorKind::TimedOut => Cut::Silent,
            _ => Cut::Closed,
        })
    }

    /// Closes the sending half.
    pub async fn close(mut self) {
        let _ = self.half.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::getsockopt;

    use super::*;
    use crate::rules::gang::message::{ToLeader, ToMember};

    const SILENCE: Duration = Duration::from_secs(20);

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        crate::edge::transfer::blocking::runtime(false).expect("a runtime").block_on(future)
    }

    async fn both(leader: &str, member: &str) -> (Result<Link, NoLink>, Result<Link, NoLink>) {
        let [leader, member] = [leader, member].map(|key| GangKey::derive("token", key.as_bytes()));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let accepted = async {
            let (stream, _) = listener.accept().await.expect("a connection");
            authenticate(stream, &leader, SILENCE).await
        };
        tokio::join!(accepted, dial("127.0.0.1", port, false, &member, SILENCE))
    }

    #[test]
    fn agents_with_one_key_exchange_messages_and_detect_the_close() {
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
    fn a_leader_with_a_loopback_name_listens_on_loopback_only() {
        let bound = |host| {
            let listener = block_on(async { listen(host, 0).await.map(|listener| listener.local_addr()) });
            listener.expect("a port").expect("an address").ip()
        };
        assert!(["127.0.0.2", "localhost", "::1"].map(bound).iter().all(IpAddr::is_loopback));
        assert!(["10.0.0.1", "worker-0"].map(bound).iter().all(IpAddr::is_unspecified));
    }

    #[test]
    fn both_sides_send_short_segments() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let (member, leader) = tokio::join!(connect(address), listener.accept());
            let (member, (leader, _)) = (member.expect("a connection"), leader.expect("a connection"));
            for stream in [member, leader] {
                let segment = getsockopt(&stream, TcpMaxSeg).expect("a size");
                assert!(segment <= SEGMENT, "{segment}");
            }
        });
    }

    #[test]
    fn both_sides_report_another_key() {
        let (leader, member) = block_on(both("k", "other"));
        assert!(matches!((leader, member), (Err(NoLink::OtherKey(_)), Err(NoLink::OtherKey(_)))));
    }

    #[test]
    fn both_sides_name_the_other_version_of_the_protocol() {
        block_on(async {
            let key = GangKey::derive("token", b"k");
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let mut caller = TcpStream::connect(address).await.expect("a connection");
            send(&mut caller, &Open { version: VERSION + 1, ..key.open([0; 32]) }).await.expect("sent");
            let (stream, _) = listener.accept().await.expect("a connection");
            let refused = authenticate(stream, &key, SILENCE).await;
            assert!(matches!(&refused, Err(NoLink::NotAgent(why)) if why.contains("speaks version 2")), "{refused:?}");
            let answer: Answer = receive(&mut caller).await.expect("an answer");
            assert!(matches!(answer, Answer::OtherVersion(OtherVersion { version: VERSION, .. })), "{answer:?}");
            let later = async {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let _: Open = receive(&mut stream).await.expect("the first message");
                let _ = send(&mut stream, &OtherVersion { version: 7, about: key.about.clone() }).await;
            };
            let (_, found) = tokio::join!(later, dial("127.0.0.1", address.port(), false, &key, SILENCE));
            assert!(matches!(&found, Err(NoLink::NotAgent(why)) if why.contains("speaks version 7")), "{found:?}");
        });
    }

    #[test]
    fn a_caller_that_is_not_an_agent_is_refused() {
        block_on(async {
            let key = GangKey::derive("token", b"k");
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let mut caller = TcpStream::connect(address).await.expect("a connection");
            caller.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("sent");
            let (stream, _) = listener.accept().await.expect("a connection");
            assert!(matches!(authenticate(stream, &key, SILENCE).await, Err(NoLink::NotAgent(_))));
        });
    }
}

//! One try at a TCP connection to a name and a port. The C library's resolver looks the name up on a thread that may block.
//! "No such name" is an ordinary answer: the name may appear later.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::edge::process::signals;

/// Time limit for a name server and for a connection.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Why there was no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoAnswer {
    /// The machine answers and no process listens at the port.
    Refused,
    /// Anything else, as a clause.
    Other(String),
}

/// Connects and closes the connection. Errors: see [`NoAnswer`].
pub async fn dial(host: &str, port: u16) -> Result<(), NoAnswer> {
    let other = |what: String| Err(NoAnswer::Other(what));
    let addresses = match timeout(TIMEOUT, addresses(host, port)).await {
        Err(_) => return other(format!("the name servers have not answered for {} s", TIMEOUT.as_secs())),
        Ok(Err(error)) => return other(format!("the name does not resolve ({error})")),
        Ok(Ok(addresses)) => addresses,
    };
    let mut last = NoAnswer::Other("the name has no address".to_owned());
    for address in addresses {
        last = match timeout(TIMEOUT, TcpStream::connect(address)).await {
            Err(_) => NoAnswer::Other(format!("{address} has not answered for {} s", TIMEOUT.as_secs())),
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => NoAnswer::Refused,
            Ok(Err(error)) => NoAnswer::Other(format!("{address}: {error}")),
            Ok(Ok(_)) => return Ok(()),
        };
    }
    Err(last)
}

/// The addresses of the name. Errors: as getaddrinfo(3) and pthread_create(3); the runtime's own lookup would panic without a
/// thread.
pub(super) async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (sender, receiver) = oneshot::channel();
    let host = host.to_owned();
    signals::thread_without_signals("names", move || {
        let _ = sender.send((host.as_str(), port).to_socket_addrs().map(Iterator::collect));
    })?;
    receiver.await.unwrap_or_else(|_| Err(ErrorKind::Other.into()))
}

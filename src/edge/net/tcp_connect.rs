//! One try at a TCP connection to a name and a port. "No such name" is an ordinary answer: the name may appear later.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::names::addresses;

/// Time limit for a connection.
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
    let addresses = match addresses(host, port).await {
        Err(error) => return other(format!("the name does not resolve ({error})")),
        Ok(addresses) => addresses,
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

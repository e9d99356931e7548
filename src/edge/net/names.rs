//! The addresses of a name, for peers, the gang, metadata servers and stores: whatever name the trainer beside resolves
//! with glibc, trainit resolves, too.
//!
//! The C library looks the name up first, in `/etc/hosts` as well. Where its answer is "no", each name that glibc would
//! ask for is tried. No connection is made here.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tower_service::Service;

use crate::edge::host::limits;
use crate::edge::process::signals;
use crate::rules::cluster::parse::search_list::candidates;

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Each of several search domains may have a server that fails, for which the C library waits 5 s.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The full names that were found for short ones. They are tried first, because a search list with a server that fails
/// takes seconds.
static FULL_NAMES: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// The addresses of the name. Errors: as getaddrinfo(3) and pthread_create(3), and if the name servers do not answer. The
/// runtime's own lookup would panic without a thread.
pub async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (sender, receiver) = oneshot::channel();
    let host = host.to_owned();
    signals::thread_without_signals("names", move || {
        let found = find(&host, &|name| Ok((name, port).to_socket_addrs()?.collect()), &|| sender.is_closed());
        let _ = sender.send(found);
    })?;
    match timeout(TIMEOUT, receiver).await {
        Ok(found) => found.unwrap_or_else(|_| Err(ErrorKind::Other.into())),
        Err(_) => {
            let message = format!("the name servers have not answered for {} s", TIMEOUT.as_secs());
            Err(io::Error::new(ErrorKind::TimedOut, message))
        }
    }
}

/// Asks for the name, then for each full name, until one has an address or the caller has gone.
fn find(
    host: &str,
    ask: &dyn Fn(&str) -> io::Result<Vec<SocketAddr>>,
    is_abandoned: &dyn Fn() -> bool,
) -> io::Result<Vec<SocketAddr>> {
    let full_names = || FULL_NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let known = full_names().get(host).cloned();
    if let Some(Ok(found)) = known.as_deref().map(ask) {
        return Ok(found);
    }
    let refused = match ask(host) {
        Err(refused) => refused,
        found => return found,
    };
    let resolv_conf = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    for full_name in candidates(host, &resolv_conf, limits::hostname().as_deref()) {
        if is_abandoned() {
            break;
        }
        if let Ok(found) = ask(&full_name) {
            full_names().insert(host.to_owned(), full_name);
            return Ok(found);
        }
    }
    Err(refused)
}

/// [`addresses`] for an HTTP client, which sets the port itself.
#[derive(Debug, Clone)]
pub struct Resolver;

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(async move { Ok(addresses(name.as_str(), 0).await?.into_iter()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_name_is_asked_for_if_the_name_has_no_address_and_is_kept() {
        let asked = Mutex::new(Vec::new());
        let ask = |name: &str| {
            asked.lock().unwrap().push(name.to_owned());
            if name == "kept.test." {
                Ok(vec![SocketAddr::from(([127, 0, 0, 1], 1))])
            } else {
                Err(ErrorKind::Other.into())
            }
        };
        let found = || find("kept.test", &ask, &|| false).map(|found| found.len()).ok();
        assert_eq!((found(), asked.lock().unwrap().first().cloned()), (Some(1), Some("kept.test".to_owned())));
        asked.lock().unwrap().clear();
        assert_eq!((found(), asked.lock().unwrap().clone()), (Some(1), vec!["kept.test.".to_owned()]));
        asked.lock().unwrap().clear();
        assert!(find("lost.test", &ask, &|| true).is_err());
        assert_eq!(*asked.lock().unwrap(), ["lost.test"], "the caller has gone");
    }
}

//! Waits until the peers are reachable, or until a limit. Runs on the background thread when the machine requests it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use futures_util::StreamExt;

use crate::edge::clock::Clock;
use crate::edge::net::tcp_connect::{NoAnswer, dial};
use crate::rules::cluster::peers::Peer;
use crate::rules::job::Event;
use crate::rules::process::active_time::ActiveTime;

/// The number of peers tried concurrently.
const AT_ONCE: usize = 32;
/// The pause between two tries at one peer; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// The interval at which the active time is updated.
const LOOK: Duration = Duration::from_secs(1);
/// The interval of log lines about the wait.
const REMINDER: Duration = Duration::from_secs(30);

/// The peers to wait for, and the limit.
#[derive(Debug, Clone)]
pub struct Peers {
    /// At least one.
    pub peers: Vec<Peer>,
    /// The longest wait.
    pub limit: Duration,
}

impl Peers {
    /// Their short name in the log: `h0:29400`, `h0:29400 and 6 more`.
    pub fn name(&self) -> String {
        named(self.peers.iter().map(|peer| peer.address.to_string()))
    }

    /// Waits until each peer has been reached once.
    pub(super) async fn wait(self) -> Event {
        let missing = RefCell::new(BTreeMap::new());
        let all =
            futures_util::stream::iter(self.peers.iter()).for_each_concurrent(AT_ONCE, |peer| reach(peer, &missing));
        tokio::select! {
            () = all => Event::PeersReached,
            never = remind(&missing) => match never {},
            () = pass_active_time(self.limit, LOOK) => {
                let (name, why) = summarize(&missing.borrow());
                let limit = humantime::format_duration(self.limit);
                Event::PeersMissing {
                    detail: format!(
                        "{name} could not be reached within {limit}: {why}; nothing was started: look at that \
                         replica's log and at the network between the two, or wait longer (--wait-for-peers)"
                    ),
                }
            }
        }
    }
}

/// Sleeps for `limit` of active time, in which a peer could have answered: time in which trainit was stopped is not
/// counted.
async fn pass_active_time(limit: Duration, look: Duration) {
    let (clock, mut active) = (Clock::start(), ActiveTime::new(10 * look));
    let mut left = limit;
    while !left.is_zero() {
        tokio::time::sleep(left.min(look)).await;
        left = limit.saturating_sub(active.at(clock.now()));
    }
}

/// Logs the wait from time to time.
async fn remind(missing: &RefCell<BTreeMap<String, String>>) -> Infallible {
    loop {
        tokio::time::sleep(REMINDER).await;
        let (name, why) = summarize(&missing.borrow());
        tracing::info!("still waiting for {name}: {why}");
    }
}

/// Tries until the peer is reachable, and records the reason while it is not.
async fn reach(peer: &Peer, missing: &RefCell<BTreeMap<String, String>>) {
    let name = peer.address.to_string();
    let mut pause = FIRST_PAUSE;
    loop {
        let mut found = dial(&peer.address.host, peer.address.port).await;
        if let (Err(_), Some(alternative)) = (&found, &peer.alternative)
            && dial(&alternative.address.host, alternative.address.port).await.is_ok()
        {
            found = Ok(());
        }
        let why = match found {
            Ok(()) => break,
            Err(NoAnswer::Refused) if !peer.must_listen => break,
            Err(NoAnswer::Refused) => no_listener(peer),
            Err(NoAnswer::Other(why)) => why,
        };
        tracing::debug!("{name}: {why}");
        missing.borrow_mut().insert(name.clone(), why);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    missing.borrow_mut().remove(&name);
}

fn no_listener(peer: &Peer) -> String {
    let port = peer.address.port;
    let alternative = peer.alternative.as_ref().map_or_else(String::new, |alternative| {
        format!(", nor at {}, {} ({})", alternative.server, alternative.address.port, alternative.variable)
    });
    format!(
        "it answers, but no process listens at {port} (MASTER_PORT){alternative}, where the trainer of node rank 0 must"
    )
}

/// Names the missing peers, with the reason for the first of them.
fn summarize(missing: &BTreeMap<String, String>) -> (String, String) {
    let why = missing.values().next().map_or("no answer yet", String::as_str);
    (named(missing.keys().cloned()), why.to_owned())
}

fn named(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    match &names[..] {
        [] => "the peers".to_owned(),
        [one] => one.clone(),
        [first, others @ ..] => format!("{first} and {} more", others.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn time_while_trainit_is_stopped_does_not_count_towards_the_limit() {
        let (limit, still) = (Duration::from_millis(300), Duration::from_millis(900));
        let clock = Clock::start();
        let freeze = async { std::thread::sleep(still) };
        futures_util::future::join(pass_active_time(limit, Duration::from_millis(20)), freeze).await;
        assert!(clock.now() >= limit + still, "{:?}", clock.now());
    }
}

//! Waits until the peers can be reached, or too long. Runs on the background thread, when the machine asks for it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use futures_util::StreamExt;

use crate::edge::clock::Clock;
use crate::edge::dial::{NoAnswer, dial};
use crate::rules::awake::Awake;
use crate::rules::framework::peers::Peer;
use crate::rules::job::Event;

/// So many are tried at once.
const AT_ONCE: usize = 32;
/// Between two tries at one, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// Between two looks at the time.
const LOOK: Duration = Duration::from_secs(1);
/// Between two words on the log that it still waits.
const REMINDER: Duration = Duration::from_secs(30);

/// Whom to wait for, and how long.
#[derive(Debug, Clone)]
pub struct Peers {
    /// At least one.
    pub peers: Vec<Peer>,
    /// Before it is given up.
    pub limit: Duration,
}

impl Peers {
    /// What they are called on the log: `h0:29400`, `h0:29400 and 6 more`.
    pub fn name(&self) -> String {
        named(self.peers.iter().map(|peer| peer.address.to_string()))
    }

    /// Until all have been reached once.
    pub(super) async fn wait(self) -> Event {
        let missing = RefCell::new(BTreeMap::new());
        let all =
            futures_util::stream::iter(self.peers.iter()).for_each_concurrent(AT_ONCE, |peer| reach(peer, &missing));
        tokio::select! {
            () = all => Event::PeersReached,
            never = remind(&missing) => match never {},
            () = awake(self.limit, LOOK) => {
                let (name, why) = sum_up(&missing.borrow());
                let limit = humantime::format_duration(self.limit);
                Event::PeersMissing {
                    detail: format!(
                        "{name} could not be reached within {limit}: {why}; nothing was started: look at that replica's \
                         log and at the network between the two, or wait longer (--wait-for-peers)"
                    ),
                }
            }
        }
    }
}

/// Comes back when this much time has passed in which somebody could have answered us.
async fn awake(limit: Duration, look: Duration) {
    let (clock, mut awake) = (Clock::start(), Awake::new(10 * look));
    let mut left = limit;
    while !left.is_zero() {
        tokio::time::sleep(left.min(look)).await;
        left = limit.saturating_sub(awake.at(clock.now()));
    }
}

/// Says now and then that it still waits.
async fn remind(missing: &RefCell<BTreeMap<String, String>>) -> Infallible {
    loop {
        tokio::time::sleep(REMINDER).await;
        let (name, why) = sum_up(&missing.borrow());
        tracing::info!("still waiting for {name}: {why}");
    }
}

/// Tries until it is there; what stands in the way is noted meanwhile.
async fn reach(peer: &Peer, missing: &RefCell<BTreeMap<String, String>>) {
    let name = peer.address.to_string();
    let mut pause = FIRST_PAUSE;
    loop {
        let mut found = dial(&peer.address.host, peer.address.port).await;
        if let (Err(_), Some(instead)) = (&found, &peer.instead)
            && dial(&instead.address.host, instead.address.port).await.is_ok()
        {
            found = Ok(());
        }
        let why = match found {
            Ok(()) => break,
            Err(NoAnswer::Refused) if !peer.must_listen => break,
            Err(NoAnswer::Refused) => nobody_listens(peer),
            Err(NoAnswer::Other(why)) => why,
        };
        tracing::debug!("{name}: {why}");
        missing.borrow_mut().insert(name.clone(), why);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    missing.borrow_mut().remove(&name);
}

fn nobody_listens(peer: &Peer) -> String {
    let port = peer.address.port;
    let instead = peer.instead.as_ref().map_or_else(String::new, |instead| {
        format!(", nor at {}, {} ({})", instead.whose, instead.address.port, instead.variable)
    });
    format!("it answers, but nobody listens at {port} (MASTER_PORT){instead}, where the trainer of node rank 0 must")
}

/// Who is missing, and why the first of them is.
fn sum_up(missing: &BTreeMap<String, String>) -> (String, String) {
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
    async fn the_time_in_which_we_stood_still_is_not_taken_from_the_peers() {
        let (limit, still) = (Duration::from_millis(300), Duration::from_millis(900));
        let clock = Clock::start();
        let freeze = async { std::thread::sleep(still) };
        futures_util::future::join(awake(limit, Duration::from_millis(20)), freeze).await;
        assert!(clock.now() >= limit + still, "{:?}", clock.now());
    }
}

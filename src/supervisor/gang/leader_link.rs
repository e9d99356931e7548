//! A member's connection to the leader: connects with retries, carries messages both ways, and reports when it is lost.

use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::thread::{News, NewsSender, Order};
use super::{Gang, claims, referral};
use crate::edge::clock::Clock;
use crate::edge::net::gang::{Cut, Link, NoLink, dial};
use crate::rules::gang::handshake::GangKey;
use crate::rules::gang::member::routes::{Route, Routes};
use crate::rules::gang::message::ToMember;
use crate::rules::gang::place::Place;
use crate::rules::gang::wire::WireError;

/// The pause between two tries, doubled each time. The first try follows a lost connection at once.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause after connections that broke because of an invalid frame.
const LONGEST_AFTER_BROKEN: Duration = Duration::from_secs(30);
/// After a connection that has lasted this long, the next try follows at once.
const SOUND_AFTER: Duration = Duration::from_secs(5);
/// The interval between two log lines about an absent leader.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Why a connection or a try ended.
enum Ended {
    /// The member ordered a hangup.
    Hangup,
    /// The agent exits.
    Quit,
    /// The connection was lost.
    Lost { silent: bool },
}

/// Performs orders until their sender is dropped.
pub(super) async fn run(
    gang: &Gang,
    key: GangKey,
    orders: &mut UnboundedReceiver<Order>,
    news: &NewsSender,
    clock: Clock,
) {
    let (mut silence, mut pause, mut log) = (gang.timing.lease, Duration::ZERO, AbsenceLog::new(&gang.place));
    let mut routes = Routes::new(gang.place.is_borrowed, gang.store.is_some());
    loop {
        match orders.recv().await {
            Some(Order::Dial) => {}
            Some(Order::ReadClaim) => {
                read_claim(gang, news);
                continue;
            }
            Some(Order::Hangup | Order::Send(_)) => continue,
            None => return,
        }
        let ended = loop {
            let connecting = async {
                sleep(pause).await;
                connect(gang, &mut routes, &key, silence, clock).await
            };
            let connected = tokio::select! {
                biased;
                ended = until_hangup(gang, news, orders) => break ended,
                connected = connecting => connected,
            };
            pause = (pause * 2).clamp(FIRST_PAUSE, pause.max(LONGEST_PAUSE));
            match connected {
                Ok(link) => {
                    log.reset();
                    news.send(News::Linked);
                    let since = Instant::now();
                    let (ended, broken) = carry_messages(link, &mut silence, orders, news).await;
                    if since.elapsed() >= SOUND_AFTER {
                        pause = Duration::ZERO;
                    }
                    if let Some(why) = broken {
                        pause = (pause * 2).clamp(LONGEST_PAUSE, LONGEST_AFTER_BROKEN);
                        log.broken(&why);
                    }
                    break ended;
                }
                Err(why) => log.report(&why, news),
            }
        };
        match ended {
            Ended::Lost { silent } => {
                news.send(News::Unlinked { silent });
            }
            Ended::Hangup => {}
            Ended::Quit => return,
        }
    }
}

/// One try to connect to the leader, by the next route.
async fn connect(
    gang: &Gang,
    routes: &mut Routes,
    key: &GangKey,
    silence: Duration,
    clock: Clock,
) -> Result<Link, NoLink> {
    let (host, port) = (&gang.place.host, gang.place.port);
    loop {
        let referred = match (routes.next(clock.now()), &gang.store) {
            (Route::Published, _) if gang.place.is_borrowed => referral::ask(host, port, key, silence).await,
            (Route::Stored, Some(shared)) => referral::read(shared).await,
            (route, _) => {
                let dialled = match route {
                    Route::Own(at) => dial(&at.ip.to_string(), at.port, false, key, silence).await,
                    Route::Published | Route::Stored => dial(host, port, false, key, silence).await,
                };
                match &dialled {
                    Ok(_) => routes.succeeded(),
                    Err(_) => routes.failed(clock.now()),
                }
                return dialled;
            }
        };
        match referred {
            Ok(own) => routes.refer(own),
            Err(why) => {
                routes.failed(clock.now());
                return Err(why);
            }
        }
    }
}

/// Reads the newest claim in the store, and reports it.
fn read_claim(gang: &Gang, news: &NewsSender) {
    let Some(shared) = gang.store.clone() else { return };
    let news = news.clone();
    tokio::spawn(async move {
        if let Some(newest) = claims::newest(&shared).await {
            news.send(News::ClaimRead(newest.map(|(claim, _)| claim)));
        }
    });
}

/// Waits for an order to stop connecting.
async fn until_hangup(gang: &Gang, news: &NewsSender, orders: &mut UnboundedReceiver<Order>) -> Ended {
    loop {
        match orders.recv().await {
            Some(Order::Dial | Order::Send(_)) => {}
            Some(Order::ReadClaim) => read_claim(gang, news),
            Some(Order::Hangup) => return Ended::Hangup,
            None => return Ended::Quit,
        }
    }
}

/// Carries messages both ways until the connection ends.
async fn carry_messages(
    mut link: Link,
    silence: &mut Duration,
    orders: &mut UnboundedReceiver<Order>,
    news: &NewsSender,
) -> (Ended, Option<WireError>) {
    let lost = |cut| match cut {
        Cut::Broken(why) => (Ended::Lost { silent: false }, Some(why)),
        cut => (Ended::Lost { silent: cut == Cut::Silent }, None),
    };
    let mut last_received = Instant::now();
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(Order::Send(message)) => match timeout(*silence, link.writer.send(&[*message])).await {
                    Ok(Ok(())) => {}
                    Ok(Err(cut)) => return lost(cut),
                    Err(_) => return lost(Cut::Silent),
                },
                Some(Order::Dial | Order::ReadClaim) => {}
                ended @ (Some(Order::Hangup) | None) => {
                    link.writer.close().await;
                    link.reader.drain().await;
                    return (if ended.is_some() { Ended::Hangup } else { Ended::Quit }, None);
                }
            },
            message = link.reader.next::<ToMember>() => match message {
                Ok(message) => {
                    last_received = Instant::now();
                    if let ToMember::Welcome { lease, .. } = message {
                        *silence = Duration::from_millis(lease);
                    }
                    if !news.send(News::Received(message)) {
                        return lost(Cut::Closed);
                    }
                }
                Err(cut) => return lost(cut),
            },
            () = sleep_until(last_received + *silence) => return lost(Cut::Silent),
        }
    }
}

/// Logs the absence of the leader: a wrong key at once, other causes periodically.
struct AbsenceLog {
    leader: String,
    last_line: Option<Instant>,
    last: Option<NoLink>,
    is_broken_logged: bool,
}

impl AbsenceLog {
    fn new(place: &Place) -> AbsenceLog {
        AbsenceLog {
            leader: format!("{}, at {}:{}", place.leader, place.host, place.port),
            last_line: None,
            last: None,
            is_broken_logged: false,
        }
    }

    fn reset(&mut self) {
        (self.last_line, self.last) = (None, None);
    }

    /// Logs once that a connection broke.
    fn broken(&mut self, why: &WireError) {
        if !std::mem::replace(&mut self.is_broken_logged, true) {
            let leader = &self.leader;
            tracing::warn!(
                code = "gang",
                "the connection to the gang's leader, {leader}, broke: {why}; it is tried again with growing pauses; give all \
                 replicas the same image, and see what changes the data between the hosts"
            );
        }
    }

    fn report(&mut self, why: &NoLink, news: &NewsSender) {
        let is_new = matches!(why, NoLink::OtherKey(_)) && self.last.as_ref() != Some(why);
        self.last = Some(why.clone());
        news.send(News::Unreachable(match why {
            NoLink::OtherKey(known) => format!("it has another token or key{known}"),
            NoLink::Unreachable(what) => what.clone(),
            NoLink::NotAgent(what) => format!("no agent of a gang answers at the address of {}: {what}", self.leader),
        }));
        let now = Instant::now();
        if !is_new && self.last_line.is_some_and(|at| now < at + LOG_INTERVAL) {
            return;
        }
        self.last_line = Some(now);
        let leader = &self.leader;
        match why {
            NoLink::OtherKey(known) => tracing::warn!(
                code = "gang",
                "the gang's leader, {leader}, has another token or key, so this replica cannot join{known}; give all replicas \
                 the same TRAINIT_GANG_TOKEN or --gang-token-file"
            ),
            NoLink::Unreachable(what) => tracing::info!("waiting for the gang's leader, {leader}: {what}"),
            NoLink::NotAgent(what) => tracing::warn!(
                code = "gang",
                "the process that answers at the address of the gang's leader, {leader}, is no agent of a gang: {what}; it is \
                 tried again; see what listens there, or give all replicas another --gang-port"
            ),
        }
    }
}

//! The leader: holds a connection to each member and steps the leader's state machine. This replica's own member is a link
//! inside the process.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::borrowed_port::{BorrowedPort, next_refused};
use super::claims::{self, Claimant, Request};
use super::listener::{ConnectionEvent, Connections, listen_and_accept};
use super::thread::{News, NewsSender, Order};
use super::{Gang, SharedStore, referral};
use crate::edge::clock::Clock;
use crate::edge::fs::rooted_dir::RootedDir;
use crate::edge::net::gang::NoLink;
use crate::edge::transfer::blocking::blocking;
use crate::rules::checkpoint::listing::OWN;
use crate::rules::gang::Incarnation;
use crate::rules::gang::handshake::GangKey;
use crate::rules::gang::leader::{Action, Config, Event, Leader, Link};
use crate::rules::gang::message::ToMember;
use crate::supervisor::checkpoints::restore::offer::{LEADERS_FILE, leaders_file};

/// The maximum number of queued events of the connections.
const CONNECTION_EVENTS: usize = 1024;
/// The limit for writing the leader's file. A slower checkpoint directory counts as not shared.
const MARK_TIMEOUT: Duration = Duration::from_secs(5);
/// The limit for the wait for the last members and the store, before the end of the gang is marked in the store.
const LAST_MEMBERS: Duration = Duration::from_secs(1);
/// The limit for sending the last messages.
const LAST_MESSAGES: Duration = Duration::from_millis(700);
/// The maximum number of logged callers that are not members.
const LOGGED_CALLERS: usize = 16;

/// The leader and its links.
struct LeaderLinks<'a> {
    leader: Leader,
    links: HashMap<Link, mpsc::Sender<ToMember>>,
    /// This replica's own member.
    own: Option<Link>,
    news: &'a NewsSender,
    claim_requests: UnboundedSender<Request>,
    store: Option<SharedStore>,
    borrowed: Option<BorrowedPort>,
    clock: Clock,
    wake: Duration,
}

/// Leads until the sender of the orders is dropped.
pub(super) async fn run(
    gang: &Gang,
    incarnation: Incarnation,
    key: GangKey,
    orders: &mut UnboundedReceiver<Order>,
    news: &NewsSender,
    clock: Clock,
) {
    if let Some(dir) = gang.checkpoint_dir.clone() {
        write_leaders_file(dir, incarnation).await;
    }
    let read = match &gang.store {
        Some(shared) => claims::newest(shared).await,
        None => None,
    };
    let has_read_claims = read.is_some();
    let newest = read.flatten();
    let config = Config {
        roster: gang.place.roster.clone(),
        own: gang.place.own,
        incarnation,
        settings: gang.settings(),
        timing: gang.timing,
        mode: gang.mode,
        from_scratch: gang.from_scratch,
        has_store: gang.store.is_some(),
        on_notice: gang.on_notice,
        limits: gang.limits,
        hang: gang.hang,
        has_read_claims,
        job_id: gang.job_id.clone(),
        former_has_ended: newest.as_ref().is_some_and(|(_, has_ended)| *has_ended),
        newest_claim: newest.map(|(claim, _)| claim),
    };
    let claimant = Claimant { leader: incarnation, host: gang.host.clone(), job_id: gang.job_id.clone() };
    let (claim_requests, mut claim_answers) = claims::start(gang.store.clone(), claimant);
    let mut hub = LeaderLinks {
        leader: Leader::new(clock.now(), config),
        links: HashMap::new(),
        own: None,
        news,
        claim_requests,
        store: gang.store.clone(),
        borrowed: None,
        clock,
        wake: clock.now(),
    };
    let (events, mut connection_events) = mpsc::channel(CONNECTION_EVENTS);
    let mut connections = Connections { key: Arc::new(key), silence: gang.timing.lease, events, tasks: JoinSet::new() };
    let (mut logged_callers, mut last_link) = (BTreeSet::new(), 0);
    let mut next_link = move || {
        last_link += 1;
        last_link
    };
    let (accepted_sender, mut accepted) = mpsc::channel(1);
    let (bound_sender, mut bound) = mpsc::channel(1);
    let listener =
        tokio::spawn(listen_and_accept(gang.place.clone(), clock, news.clone(), bound_sender, accepted_sender));
    let (mut end_by, mut referral_writer): (Option<Duration>, Option<JoinHandle<()>>) = (None, None);
    loop {
        let now = clock.now();
        if end_by.is_some_and(|end| now >= end || !hub.leader.is_waiting_to_end()) {
            break;
        }
        let until_wake = hub.wake.min(end_by.unwrap_or(hub.wake)).saturating_sub(now);
        tokio::select! {
            biased;
            order = orders.recv(), if end_by.is_none() => match order {
                Some(order) => hub.on_order(order, &mut next_link),
                None => end_by = Some(now + if gang.store.is_some() { LAST_MEMBERS } else { Duration::ZERO }),
            },
            () = sleep(until_wake) => hub.step(Event::Tick),
            Some(event) = claim_answers.recv() => hub.step(event),
            Some(event) = connection_events.recv() => match event {
                ConnectionEvent::Opened(link, sender) => {
                    hub.links.insert(link, sender);
                }
                ConnectionEvent::Received(link, message) => hub.step(Event::Received(link, *message)),
                ConnectionEvent::Closed(link) => {
                    hub.links.remove(&link);
                    hub.step(Event::Closed(link));
                }
                ConnectionEvent::Refused(from, why) => log_refused(&why, from.ip(), &mut logged_callers),
            },
            Some(own) = bound.recv() => {
                let (key, silence) = (Arc::clone(&connections.key), connections.silence);
                hub.borrow(BorrowedPort::new(gang.place.port, own, key, silence, clock));
                referral_writer = gang.store.clone().map(|shared| tokio::spawn(referral::write(shared, own)));
            }
            (from, why) = next_refused(&mut hub.borrowed) => log_refused(&why, from.ip(), &mut logged_callers),
            Some(_) = connections.tasks.join_next() => {}
            Some((unproven, from)) = accepted.recv() => connections.serve(unproven, from, next_link()),
        }
    }
    listener.abort();
    referral_writer.inspect(JoinHandle::abort);
    (hub.borrowed, hub.links) = Default::default();
    let close_links = async { while connections.tasks.join_next().await.is_some() {} };
    let mark_end = async {
        if let (Some(generation), Some(shared)) = (hub.leader.ended_generation(), &gang.store) {
            claims::end(shared, generation).await;
        }
    };
    let _ = timeout(LAST_MESSAGES, futures_util::future::join(close_links, mark_end)).await;
}

/// Writes the leader's file into the checkpoint directory. The other replicas detect by it whether they share the directory;
/// without it, they do not.
async fn write_leaders_file(dir: PathBuf, incarnation: Incarnation) {
    let written = blocking(move || {
        let dir = RootedDir::create(&dir)?;
        for name in dir.names(OWN)?.into_iter().filter(|name| name.starts_with(LEADERS_FILE)) {
            let _ = dir.remove_file(&format!("{OWN}/{name}"));
        }
        dir.replace(&leaders_file(incarnation), b"", 0o644)
    });
    match timeout(MARK_TIMEOUT, written).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("the leader's file cannot be written to the checkpoint directory: {error}"),
        Err(_) => tracing::debug!("the checkpoint directory does not answer, so the leader's file is not written"),
    }
}

impl LeaderLinks<'_> {
    fn on_order(&mut self, order: Order, next_link: &mut impl FnMut() -> Link) {
        match order {
            Order::Dial if self.own.is_none() => {
                self.own = Some(next_link());
                self.news.send(News::Linked);
            }
            // The leader's own member always has its seat.
            Order::Dial | Order::ReadClaim => {}
            Order::Send(message) => {
                if let Some(own) = self.own {
                    self.step(Event::Received(own, *message));
                }
            }
            Order::Hangup => {
                if let Some(own) = self.own.take() {
                    self.step(Event::Closed(own));
                }
            }
        }
    }

    fn borrow(&mut self, port: BorrowedPort) {
        self.borrowed = Some(port);
        self.update_port();
    }

    fn update_port(&mut self) {
        if let Some(port) = &mut self.borrowed {
            port.want(self.leader.may_borrow_port());
        }
    }

    fn step(&mut self, event: Event) {
        // Ticks are at most two seconds apart.
        let is_tick = event == Event::Tick;
        let actions = self.leader.step(self.clock.now(), event);
        if is_tick || actions.iter().any(|action| matches!(action, Action::Started(_))) {
            self.news.show(self.leader.view());
        }
        // Before the actions, because one of them may start the trainer, which binds the port.
        self.update_port();
        // A leader that is done requests no wake-up.
        self.wake = self.clock.now() + Duration::from_secs(3600);
        for action in actions {
            match action {
                Action::Send(link, message) if self.own == Some(link) => {
                    self.news.send(News::Received(message));
                }
                Action::Send(link, message) => {
                    // Without its queue, the connection closes and reports that.
                    if self.links.get(&link).is_some_and(|queue| queue.try_send(message).is_err()) {
                        self.links.remove(&link);
                    }
                }
                Action::Close(link) if self.own == Some(link) => {
                    self.own = None;
                    self.news.send(News::Unlinked { silent: false });
                }
                Action::Close(link) => drop(self.links.remove(&link)),
                Action::Claim { generation, job } => drop(self.claim_requests.send(Request::Claim { generation, job })),
                Action::MarkCommon(generation) => claims::mark_common(self.store.clone(), generation),
                Action::CheckForNewerClaim(generation) => drop(self.claim_requests.send(Request::Check(generation))),
                Action::Log(line) => tracing::info!("{line}"),
                Action::Warn(line) => tracing::warn!(code = "gang", "{line}"),
                Action::LogHang(lines) => {
                    lines.iter().for_each(|line| tracing::warn!(code = "hung", "{line}"));
                }
                Action::Started(_) | Action::Done => {}
                Action::Wake(at) => self.wake = at,
            }
        }
    }
}

/// Logs a caller that is not a member, once for each address and kind.
fn log_refused(why: &NoLink, from: IpAddr, logged: &mut BTreeSet<(IpAddr, bool)>) {
    // A replica with a wrong token may share its address with a foreign process.
    let caller = (from, matches!(why, NoLink::OtherKey(_)));
    if logged.contains(&caller) || logged.len() >= LOGGED_CALLERS {
        return;
    }
    logged.insert(caller);
    match why {
        NoLink::OtherKey(known) => tracing::warn!(
            code = "gang",
            "an agent at {from} has another token or key than this gang, and is not let in{known}; give all replicas the same \
             TRAINIT_GANG_TOKEN or --gang-token-file"
        ),
        NoLink::Unreachable(what) | NoLink::NotAgent(what) => {
            tracing::warn!(code = "gang", "a caller at {from} is no agent of this gang, and is not let in: {what}")
        }
    }
}

//! The leader: holds a connection to each member and steps the leader's machine. This replica's own member is
//! a link inside the process.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::borrowed_port::{BorrowedPort, next_refused};
use super::claims::{self, Ask, Claimant};
use super::listener::{Arrival, Door, listening};
use super::thread::{News, Order, Outbox};
use super::{Gang, SharedStore, referral};
use crate::edge::clock::Clock;
use crate::edge::fs::rooted_dir::Beneath;
use crate::edge::net::gang::NoLink;
use crate::edge::transfer::blocking::blocking;
use crate::rules::gang::handshake::GangKey;
use crate::rules::gang::leader::{Action, Config, Event, Leader, Link};
use crate::rules::gang::message::ToMember;
use crate::rules::gang::seat::Incarnation;
use crate::rules::store::names::OWN;
use crate::supervisor::checkpoints::restore::offer::{LEADERS_FILE, leaders_file};

/// Messages on their way from all members to the leader's machine.
const ARRIVALS: usize = 1024;
/// A checkpoint directory that answers later than this is taken for one that is not shared.
const TO_MARK: Duration = Duration::from_secs(5);
/// Where all leave, the last members and the store are waited for so long: the store is told of the gang's end then.
const LAST_MEMBERS: Duration = Duration::from_secs(1);
/// What the last words may take.
const LAST_WORDS: Duration = Duration::from_millis(700);
/// Of so many callers that are no members it is remembered that they were told of.
const STRANGERS: usize = 16;

/// The leader and its links.
struct Hub<'a> {
    leader: Leader,
    links: HashMap<Link, mpsc::Sender<ToMember>>,
    /// This replica's own member.
    own: Option<Link>,
    outbox: &'a Outbox,
    asks: UnboundedSender<Ask>,
    store: Option<SharedStore>,
    borrowed: Option<BorrowedPort>,
    clock: Clock,
    wake: Duration,
}

/// Leads until there are no more orders.
pub(super) async fn run(
    gang: &Gang,
    incarnation: Incarnation,
    key: GangKey,
    orders: &mut UnboundedReceiver<Order>,
    outbox: &Outbox,
    clock: Clock,
) {
    if let Some(dir) = gang.checkpoint_dir.clone() {
        mark(dir, incarnation).await;
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
        timing: gang.timing,
        mode: gang.mode,
        from_scratch: gang.from_scratch,
        has_store: gang.store.is_some(),
        on_notice: gang.on_notice,
        limits: gang.limits,
        hang: gang.hang,
        has_read_claims,
        former_has_ended: newest.as_ref().is_some_and(|(_, has_ended)| *has_ended),
        newest_claim: newest.map(|(claim, _)| claim),
    };
    let claimant = Claimant { leader: incarnation, host: gang.host.clone() };
    let (asks, mut claimed) = claims::start(gang.store.clone(), claimant);
    let mut hub = Hub {
        leader: Leader::new(clock.now(), config),
        links: HashMap::new(),
        own: None,
        outbox,
        asks,
        store: gang.store.clone(),
        borrowed: None,
        clock,
        wake: clock.now(),
    };
    let (sender, mut arrivals) = mpsc::channel(ARRIVALS);
    let mut door = Door { key: Arc::new(key), silence: gang.timing.lease, arrivals: sender, tasks: JoinSet::new() };
    let (mut strangers, mut last_link) = (BTreeSet::new(), 0);
    let mut next_link = move || {
        last_link += 1;
        last_link
    };
    let (accepting, mut accepted) = mpsc::channel(1);
    let (telling, mut told) = mpsc::channel(1);
    let listens = tokio::spawn(listening(gang.place.clone(), clock, telling, accepting));
    let (mut ends, mut writes): (Option<Duration>, Option<JoinHandle<()>>) = (None, None);
    loop {
        let now = clock.now();
        if ends.is_some_and(|until| now >= until || !hub.leader.is_waiting_to_end()) {
            break;
        }
        let left = hub.wake.min(ends.unwrap_or(hub.wake)).saturating_sub(now);
        tokio::select! {
            biased;
            order = orders.recv(), if ends.is_none() => match order {
                Some(order) => hub.obey(order, &mut next_link),
                None => ends = Some(now + if gang.store.is_some() { LAST_MEMBERS } else { Duration::ZERO }),
            },
            () = sleep(left) => hub.step(Event::Tick),
            Some(event) = claimed.recv() => hub.step(event),
            Some(arrival) = arrivals.recv() => match arrival {
                Arrival::Opened(link, sender) => {
                    hub.links.insert(link, sender);
                }
                Arrival::Received(link, message) => hub.step(Event::Received(link, *message)),
                Arrival::Closed(link) => {
                    hub.links.remove(&link);
                    hub.step(Event::Closed(link));
                }
                Arrival::Refused(from, why) => tell_of(&why, from.ip(), &mut strangers),
            },
            Some(own) = told.recv() => {
                hub.borrow(BorrowedPort::new(gang.place.port, own, Arc::clone(&door.key), door.silence, clock));
                writes = gang.store.clone().map(|shared| tokio::spawn(referral::write(shared, own)));
            }
            (from, why) = next_refused(&mut hub.borrowed) => tell_of(&why, from.ip(), &mut strangers),
            Some(_) = door.tasks.join_next() => {}
            Some((unproven, from)) = accepted.recv() => door.answer(unproven, from, next_link()),
        }
    }
    listens.abort();
    writes.inspect(JoinHandle::abort);
    (hub.borrowed, hub.links) = Default::default();
    let links_end = async { while door.tasks.join_next().await.is_some() {} };
    let gang_ends = async {
        if let (Some(generation), Some(shared)) = (hub.leader.ended_generation(), &gang.store) {
            claims::end(shared, generation).await;
        }
    };
    let _ = timeout(LAST_WORDS, futures_util::future::join(links_end, gang_ends)).await;
}

/// Puts the file into the checkpoint directory by which the other replicas see whether they share it. Where that cannot be,
/// they do not.
async fn mark(dir: PathBuf, incarnation: Incarnation) {
    let marked = blocking(move || {
        let dir = Beneath::create(&dir)?;
        for name in dir.names(OWN)?.into_iter().filter(|name| name.starts_with(LEADERS_FILE)) {
            let _ = dir.remove_file(&format!("{OWN}/{name}"));
        }
        dir.replace(&leaders_file(incarnation), b"", 0o644)
    });
    match timeout(TO_MARK, marked).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("the leader's file cannot be put into the checkpoint directory: {error}"),
        Err(_) => tracing::debug!("the checkpoint directory does not answer: the leader's file is not there"),
    }
}

impl Hub<'_> {
    fn obey(&mut self, order: Order, next_link: &mut impl FnMut() -> Link) {
        match order {
            Order::Dial if self.own.is_none() => {
                self.own = Some(next_link());
                self.outbox.tell(News::Linked);
            }
            Order::Dial => {}
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
        self.judge_port();
    }

    fn judge_port(&mut self) {
        if let Some(port) = &mut self.borrowed {
            port.want(self.leader.may_borrow_port());
        }
    }

    fn step(&mut self, event: Event) {
        // Between two ticks pass two seconds at most.
        let is_tick = event == Event::Tick;
        let actions = self.leader.step(self.clock.now(), event);
        if is_tick || actions.iter().any(|action| matches!(action, Action::Started(_))) {
            self.outbox.show(self.leader.view());
        }
        // Before the trainer is started, which binds the port.
        self.judge_port();
        // Not before this: a leader that is done has no next one.
        self.wake = self.clock.now() + Duration::from_secs(3600);
        for action in actions {
            match action {
                Action::Send(link, message) if self.own == Some(link) => {
                    self.outbox.tell(News::Received(message));
                }
                Action::Send(link, message) => {
                    // The end of a connection that takes no more is heard of from itself.
                    if self.links.get(&link).is_some_and(|queue| queue.try_send(message).is_err()) {
                        self.links.remove(&link);
                    }
                }
                Action::Close(link) if self.own == Some(link) => {
                    self.own = None;
                    self.outbox.tell(News::Unlinked { silent: false });
                }
                Action::Close(link) => drop(self.links.remove(&link)),
                Action::Claim { generation, job } => drop(self.asks.send(Ask::Claim { generation, job })),
                Action::MarkCommon(generation) => claims::mark_common(self.store.clone(), generation),
                Action::CheckForNewerClaim(generation) => drop(self.asks.send(Ask::Look(generation))),
                Action::Log(line) => tracing::info!("{line}"),
                Action::LogHang(lines) => {
                    lines.iter().for_each(|line| tracing::warn!(code = "hung", "{line}"));
                }
                Action::Started(_) | Action::Done => {}
                Action::Wake(at) => self.wake = at,
            }
        }
    }
}

/// Tells of callers that are no members, once a host and kind.
fn tell_of(why: &NoLink, from: IpAddr, told: &mut BTreeSet<(IpAddr, bool)>) {
    // A replica with a wrong token may share its address with a stranger.
    let caller = (from, *why == NoLink::OtherKey);
    if told.contains(&caller) || told.len() >= STRANGERS {
        return;
    }
    told.insert(caller);
    match why {
        NoLink::OtherKey => tracing::warn!(
            code = "gang",
            "an agent at {from} has another token or key than this gang, and is not let in: give all replicas the same \
             TRAINIT_GANG_TOKEN or --gang-token-file"
        ),
        NoLink::Unreachable(what) | NoLink::Stranger(what) => {
            tracing::warn!(code = "gang", "a caller at {from} is no agent of this gang, and is not let in: {what}")
        }
    }
}

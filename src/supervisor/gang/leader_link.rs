//! A member's one connection: dials the leader until it answers, carries messages both ways, and says when it is gone.

use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::thread::{News, Order, Outbox};
use super::{Gang, referral};
use crate::edge::clock::Clock;
use crate::edge::net::gang::{Cut, Link, NoLink, dial};
use crate::rules::gang::handshake::GangKey;
use crate::rules::gang::member::routes::{Route, Routes};
use crate::rules::gang::message::ToMember;
use crate::rules::gang::place::Place;

/// Between two tries, doubled each time. The first follows a lost connection at once.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Between two words on the log that the leader is not there.
const REMINDER: Duration = Duration::from_secs(30);

/// What ends a connection or a try.
enum Over {
    /// The member wants none.
    Hangup,
    /// The agent ends.
    Quit,
    /// The connection is gone.
    Cut { silent: bool },
}

/// Carries out orders until there are no more.
pub(super) async fn run(
    gang: &Gang,
    key: GangKey,
    orders: &mut UnboundedReceiver<Order>,
    outbox: &Outbox,
    clock: Clock,
) {
    let (mut silence, mut pause, mut reminder) = (gang.timing.lease, Duration::ZERO, Reminder::new(&gang.place));
    let mut routes = Routes::new(gang.place.is_borrowed, gang.store.is_some());
    loop {
        match orders.recv().await {
            Some(Order::Dial) => {}
            Some(Order::Hangup | Order::Send(_)) => continue,
            None => return,
        }
        let over = loop {
            let tried = async {
                sleep(pause).await;
                find(gang, &mut routes, &key, silence, clock).await
            };
            let dialled = tokio::select! {
                biased;
                over = until_over(orders) => break over,
                dialled = tried => dialled,
            };
            pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            match dialled {
                Ok(link) => {
                    reminder.is_over();
                    outbox.tell(News::Linked);
                    break converse(link, &mut silence, &mut pause, orders, outbox).await;
                }
                Err(why) => reminder.tell(&why, outbox),
            }
        };
        match over {
            Over::Cut { silent } => {
                outbox.tell(News::Unlinked { silent });
            }
            Over::Hangup => {}
            Over::Quit => return,
        }
    }
}

/// One try at the leader, where it is to be found next.
async fn find(
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

/// Until an order says that no connection is wanted any more.
async fn until_over(orders: &mut UnboundedReceiver<Order>) -> Over {
    loop {
        match orders.recv().await {
            Some(Order::Dial | Order::Send(_)) => {}
            Some(Order::Hangup) => return Over::Hangup,
            None => return Over::Quit,
        }
    }
}

/// Carries messages both ways until the connection is over.
async fn converse(
    mut link: Link,
    silence: &mut Duration,
    pause: &mut Duration,
    orders: &mut UnboundedReceiver<Order>,
    outbox: &Outbox,
) -> Over {
    let mut heard = Instant::now();
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(Order::Send(message)) => match timeout(*silence, link.writer.send(&[*message])).await {
                    Ok(Ok(())) => {}
                    Ok(Err(cut)) => return Over::Cut { silent: cut == Cut::Silent },
                    Err(_) => return Over::Cut { silent: true },
                },
                Some(Order::Dial) => {}
                ended @ (Some(Order::Hangup) | None) => {
                    link.writer.close().await;
                    link.reader.drain().await;
                    return if ended.is_some() { Over::Hangup } else { Over::Quit };
                }
            },
            message = link.reader.next::<ToMember>() => match message {
                Ok(message) => {
                    heard = Instant::now();
                    if let ToMember::Welcome { lease, .. } = message {
                        (*silence, *pause) = (Duration::from_millis(lease), Duration::ZERO);
                    }
                    if !outbox.tell(News::Received(message)) {
                        return Over::Cut { silent: false };
                    }
                }
                Err(cut) => return Over::Cut { silent: cut == Cut::Silent },
            },
            () = sleep_until(heard + *silence) => return Over::Cut { silent: true },
        }
    }
}

/// Says that the leader is not there: at once where people must do something, else now and then.
struct Reminder {
    leader: String,
    said: Option<Instant>,
    last: Option<NoLink>,
}

impl Reminder {
    fn new(place: &Place) -> Reminder {
        Reminder { leader: format!("{}, at {}:{}", place.leader, place.host, place.port), said: None, last: None }
    }

    fn is_over(&mut self) {
        (self.said, self.last) = (None, None);
    }

    fn tell(&mut self, why: &NoLink, outbox: &Outbox) {
        let is_new = match (&self.last, why) {
            (Some(NoLink::OtherKey), NoLink::OtherKey) => false,
            (_, NoLink::OtherKey) => true,
            _ => false,
        };
        self.last = Some(why.clone());
        outbox.tell(News::Trouble(match why {
            NoLink::OtherKey => "it has another token or key".to_owned(),
            NoLink::Unreachable(what) | NoLink::Stranger(what) => what.clone(),
        }));
        let now = Instant::now();
        if !is_new && self.said.is_some_and(|said| now < said + REMINDER) {
            return;
        }
        self.said = Some(now);
        let leader = &self.leader;
        match why {
            NoLink::OtherKey => tracing::warn!(
                code = "gang",
                "the gang's leader, {leader}, has another token or key, so this replica cannot join: give all replicas the \
                 same TRAINIT_GANG_TOKEN or --gang-token-file"
            ),
            NoLink::Unreachable(what) => tracing::info!("waiting for the gang's leader, {leader}: {what}"),
            NoLink::Stranger(what) => tracing::warn!(
                code = "gang",
                "what answers for the gang's leader, {leader}, is no agent of a gang: {what}; it is tried again; see what \
                 listens there, or give all replicas another --gang-port"
            ),
        }
    }
}

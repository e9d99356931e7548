//! The thread that holds the gang's connections, and its channels to and from the main loop.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc as orders;

use super::{Gang, leader, leader_link};
use crate::edge::clock::Clock;
use crate::edge::io::eventfd::{EventFd, NotifyOnDrop};
use crate::edge::process::signals;
use crate::edge::transfer::blocking;
use crate::rules::gang::Incarnation;
use crate::rules::gang::claim::Claim;
use crate::rules::gang::message::{ToLeader, ToMember};
use crate::rules::gang::view::LeaderView;

/// The maximum number of queued news. A correct leader sends fewer messages at once.
const BACKLOG: usize = 4096;
/// The limit for sending the last messages.
const LAST_MESSAGES: Duration = Duration::from_secs(2);

/// An order to the thread.
#[derive(Debug)]
pub(super) enum Order {
    /// Connect to the leader, and retry until it succeeds.
    Dial,
    /// Close the connection after everything is sent, or stop trying.
    Hangup,
    /// Send this, if there is a connection.
    Send(Box<ToLeader>),
    /// Read the newest claim in the store, if there is a store and it answers.
    ReadClaim,
}

/// News from the thread.
#[derive(Debug)]
pub(super) enum News {
    /// A connection is proven.
    Linked,
    /// The connection is closed.
    Unlinked {
        /// Closed because no byte arrived for too long, not by the other side.
        silent: bool,
    },
    /// A message of the leader.
    Received(ToMember),
    /// The newest claim in the store.
    ClaimRead(Option<Claim>),
    /// The leader cannot be reached, or cannot listen, for this reason.
    Unreachable(String),
    /// The leader listens.
    Listening,
}

/// The main loop's end.
#[derive(Debug)]
pub(super) struct Thread {
    orders: Option<orders::UnboundedSender<Order>>,
    news: Receiver<News>,
    eventfd: EventFd,
    done: Receiver<()>,
    view: Arc<Mutex<LeaderView>>,
}

/// The thread's end.
#[derive(Debug, Clone)]
pub(super) struct NewsSender {
    news: SyncSender<News>,
    eventfd: EventFd,
    view: Arc<Mutex<LeaderView>>,
}

impl NewsSender {
    /// Publishes the leader's view of its members.
    pub(super) fn show(&self, view: LeaderView) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }

    /// Sends news to the main loop. False: its queue is full, or it has ended.
    pub(super) fn send(&self, news: News) -> bool {
        let is_sent = self.news.try_send(news).is_ok();
        self.eventfd.notify();
        is_sent
    }
}

impl Thread {
    /// Starts it. Errors: as eventfd(2), epoll_create(2) and pthread_create(3).
    pub(super) fn start(gang: Gang, incarnation: Incarnation, clock: Clock) -> io::Result<Thread> {
        let view = Arc::new(Mutex::new(LeaderView::default()));
        let (order_sender, order_receiver) = orders::unbounded_channel();
        let (news_sender, news) = mpsc::sync_channel(BACKLOG);
        let (done_sender, done) = mpsc::channel::<()>();
        let (eventfd, runtime) = (EventFd::new()?, blocking::runtime(gang.store.is_some())?);
        let notify_at_end = NotifyOnDrop(eventfd.clone());
        let sender = NewsSender { news: news_sender, eventfd: eventfd.clone(), view: Arc::clone(&view) };
        signals::thread_without_signals("gang", move || {
            let _dropped_at_end = (done_sender, notify_at_end);
            runtime.block_on(run(gang, incarnation, order_receiver, sender, clock));
        })?;
        Ok(Thread { orders: Some(order_sender), news, eventfd, done, view })
    }

    /// Sends an order. The death of the thread is reported by [`Thread::next`].
    pub(super) fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }

    /// Readable when there is news.
    pub(super) fn fd(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }

    /// Clears the notification; called before [`Thread::next`].
    pub(super) fn clear(&self) {
        self.eventfd.clear_notification();
    }

    /// Wakes the main loop again for the remaining news.
    pub(super) fn notify(&self) {
        self.eventfd.notify();
    }

    /// The next news. Errors: the thread has died.
    pub(super) fn next(&self) -> Result<Option<News>, ()> {
        match self.news.try_recv() {
            Ok(news) => Ok(Some(news)),
            Err(mpsc::TryRecvError::Empty) => Ok(None),
            Err(mpsc::TryRecvError::Disconnected) => Err(()),
        }
    }

    /// The leader's view of its members; empty if another replica leads.
    pub(super) fn view(&self) -> LeaderView {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the thread after it has sent its messages, within a limit.
    pub(super) fn end(&mut self) {
        if self.orders.take().is_some() {
            let _: Result<(), RecvTimeoutError> = self.done.recv_timeout(LAST_MESSAGES);
        }
    }
}

/// The body of the thread: runs until the main loop drops the sender of the orders.
async fn run(
    gang: Gang,
    incarnation: Incarnation,
    mut orders: orders::UnboundedReceiver<Order>,
    news: NewsSender,
    clock: Clock,
) {
    let Some(mut key) = gang.key.find(gang.store.as_ref(), &news, &orders).await else { return };
    (key.about.trainit, key.about.nodes) = (env!("TRAINIT_VERSION").to_owned(), gang.settings().nodes);
    if gang.place.leads() {
        leader::run(&gang, incarnation, key, &mut orders, &news, clock).await;
    } else {
        leader_link::run(&gang, key, &mut orders, &news, clock).await;
    }
}

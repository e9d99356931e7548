//! The thread that holds the gang's connections, and the two ends of its talk with the main loop.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc as orders;

use super::{Gang, leader, leader_link};
use crate::edge::clock::Clock;
use crate::edge::io::eventfd::{EventFd, NotifyOnDrop};
use crate::edge::process::signals;
use crate::edge::transfer::blocking;
use crate::rules::gang::message::{ToLeader, ToMember};
use crate::rules::gang::seat::Incarnation;
use crate::rules::gang::view::LeaderView;

/// News that the main loop has not taken yet; a leader that sends more than that at once is no leader.
const BACKLOG: usize = 4096;
/// What the last words may take on their way.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What the thread is asked to do.
#[derive(Debug)]
pub(super) enum Order {
    /// Connect to the leader, and try until it works.
    Dial,
    /// Close the connection once all is sent, or stop trying.
    Hangup,
    /// Send this, if there is a connection.
    Send(Box<ToLeader>),
}

/// What the thread has to say.
#[derive(Debug)]
pub(super) enum News {
    /// A connection is proven.
    Linked,
    /// It is gone.
    Unlinked {
        /// No byte came for too long.
        silent: bool,
    },
    /// The leader says this.
    Received(ToMember),
    /// The leader cannot be reached, and why.
    Trouble(String),
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
pub(super) struct Outbox {
    news: SyncSender<News>,
    eventfd: EventFd,
    view: Arc<Mutex<LeaderView>>,
}

impl Outbox {
    /// Shows what the leader knows of its members.
    pub(super) fn show(&self, view: LeaderView) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }

    /// Hands news to the main loop. False: it does not keep up, or is gone.
    pub(super) fn tell(&self, news: News) -> bool {
        let taken = !matches!(self.news.try_send(news), Err(TrySendError::Full(_) | TrySendError::Disconnected(_)));
        self.eventfd.notify();
        taken
    }
}

impl Thread {
    /// Starts it. Errors: as eventfd(2), epoll_create(2) and pthread_create(3).
    pub(super) fn start(gang: Gang, incarnation: Incarnation, clock: Clock) -> io::Result<Thread> {
        let view = Arc::new(Mutex::new(LeaderView::default()));
        let (order_sender, order_receiver) = orders::unbounded_channel();
        let (news_sender, news) = mpsc::sync_channel(BACKLOG);
        let (ends, done) = mpsc::channel::<()>();
        let (eventfd, runtime) = (EventFd::new()?, blocking::runtime(gang.store.is_some())?);
        let (farewell, outbox) = (
            NotifyOnDrop(eventfd.clone()),
            Outbox { news: news_sender, eventfd: eventfd.clone(), view: Arc::clone(&view) },
        );
        signals::thread_without_signals("gang", move || {
            let (_farewell, _ends) = (farewell, ends);
            runtime.block_on(carry(gang, incarnation, order_receiver, outbox, clock));
        })?;
        Ok(Thread { orders: Some(order_sender), news, eventfd, done, view })
    }

    /// Gives an order; a thread that is dead is heard of by [`Thread::next`].
    pub(super) fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }

    /// Readable when there is news.
    pub(super) fn fd(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }

    /// Clears the notification; to be called before [`Thread::next`].
    pub(super) fn clear(&self) {
        self.eventfd.clear_notification();
    }

    /// There may be more than was taken.
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

    /// What the leader knows of its members; nothing where another replica leads.
    pub(super) fn view(&self) -> LeaderView {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets it send what it was given, for a moment, and ends it.
    pub(super) fn end(&mut self) {
        if self.orders.take().is_some() {
            let _: Result<(), RecvTimeoutError> = self.done.recv_timeout(LAST_WORDS);
        }
    }
}

/// The whole life of the thread: until the main loop gives no more orders.
async fn carry(
    gang: Gang,
    incarnation: Incarnation,
    mut orders: orders::UnboundedReceiver<Order>,
    outbox: Outbox,
    clock: Clock,
) {
    let Some(key) = gang.key.find(gang.store.as_ref(), &outbox, &orders).await else { return };
    if gang.place.leads() {
        leader::run(&gang, incarnation, key, &mut orders, &outbox, clock).await;
    } else {
        leader_link::run(&gang, key, &mut orders, &outbox, clock).await;
    }
}

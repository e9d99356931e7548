//! Long work on a thread of its own, with a runtime of its own: it takes orders, and rings when it has events.
//! Without a store, a checkpoint directory or a source to watch there is no thread at all.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc as orders;

use super::lookout::Lookout;
use crate::edge::wake::Bell;
use crate::rules::exit;
use crate::rules::job::{Event, Flushed};

/// What the thread is asked to do.
#[derive(Debug, Clone, Copy)]
enum Order {
    Restore,
    Refresh,
    Flush(Option<Duration>),
}

/// The supervisor's end of the thread.
#[derive(Debug, Default)]
pub(super) struct Background {
    thread: Option<Thread>,
    /// What a dead thread could not answer.
    unanswered: VecDeque<Event>,
}

#[derive(Debug)]
struct Thread {
    orders: orders::UnboundedSender<Order>,
    events: mpsc::Receiver<Event>,
    bell: Bell,
}

/// The thread's end.
#[derive(Debug, Clone)]
struct Teller {
    events: mpsc::Sender<Event>,
    bell: Bell,
}

impl Teller {
    fn tell(&self, event: Event) {
        // Nobody listens any more when the job is over.
        let _ = self.events.send(event);
        self.bell.ring();
    }
}

impl Background {
    /// Starts the thread if there is anything for it. Errors: as eventfd(2) and pthread_create(3).
    pub(super) fn start(lookout: Option<Lookout>) -> io::Result<Background> {
        let Some(lookout) = lookout else { return Ok(Background::default()) };
        let (order_sender, order_receiver) = orders::unbounded_channel();
        let (event_sender, events) = mpsc::channel();
        let bell = Bell::new()?;
        let teller = Teller { events: event_sender, bell: bell.clone() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new()
            .name("background".to_owned())
            .spawn(move || runtime.block_on(work(order_receiver, lookout, teller)))?;
        Ok(Background { thread: Some(Thread { orders: order_sender, events, bell }), unanswered: VecDeque::new() })
    }

    /// Readable when there are events.
    pub(super) fn fd(&self) -> Option<RawFd> {
        self.thread.as_ref().map(|thread| thread.bell.as_raw_fd())
    }

    /// What happened since the last look.
    pub(super) fn events(&mut self) -> Vec<Event> {
        let mut events: Vec<Event> = self.unanswered.drain(..).collect();
        if let Some(thread) = &self.thread {
            thread.bell.hush();
            events.extend(thread.events.try_iter());
        }
        events
    }

    pub(super) fn restore(&mut self) {
        self.order(Order::Restore);
    }

    pub(super) fn refresh(&mut self) {
        self.order(Order::Refresh);
    }

    pub(super) fn flush(&mut self, left: Option<Duration>) {
        self.order(Order::Flush(left));
    }

    pub(super) fn incarnation(&self) -> Option<u64> {
        None
    }

    fn order(&mut self, order: Order) {
        if self.thread.as_ref().is_some_and(|thread| thread.orders.send(order).is_ok()) {
            return;
        }
        let detail = "the thread that moves checkpoints has died; what is committed is safe, start the job again";
        self.unanswered.push_back(match order {
            Order::Restore | Order::Refresh => Event::NotRestored { code: exit::STORE, detail: detail.to_owned() },
            Order::Flush(_) => Event::Flushed(Flushed::Failed(detail.to_owned())),
        });
    }
}

async fn work(mut orders: orders::UnboundedReceiver<Order>, lookout: Lookout, teller: Teller) {
    let watch = {
        let teller = teller.clone();
        lookout.watch(move |notice| {
            teller.tell(Event::Preempted { source: notice.source, lead: notice.lead });
        })
    };
    let carry_out = async { while orders.recv().await.is_some() {} };
    tokio::select! {
        () = watch => {}
        () = carry_out => {}
    }
}

//! Long work on a thread of its own, with a runtime of its own: it takes orders, and rings when it has events.
//! Without a checkpoint directory, a source to watch, peers to wait for or a page to show there is no thread at all.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, UNIX_EPOCH};

use tokio::sync::{Notify, mpsc as orders};

use super::keeper::Keep;
use super::lookout::Lookout;
use super::page::{Page, Question};
use super::peers::Peers;
use crate::edge::blocking;
use crate::edge::clock::{self, Clock};
use crate::edge::signals;
use crate::edge::wake::{Bell, Farewell};
use crate::rules::exit;
use crate::rules::job::{Event, Flushed};

/// The work there is for the thread.
#[derive(Debug, Default)]
pub struct Work {
    /// Checkpoints to restore and commit, the model to copy.
    pub keep: Option<Keep>,
    /// Who is asked about preemptions beside SIGTERM.
    pub lookout: Option<Lookout>,
    /// Who must be reachable before the first start.
    pub peers: Option<Peers>,
    /// Where scrapers ask.
    pub page: Option<Page>,
}

/// When a stop ends that nobody set an end: late, but it is a stop, and nothing is done that can wait.
pub(super) const NO_END: Duration = Duration::from_secs(365 * 86_400);

/// What the thread is asked to do.
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    Restore,
    Refresh,
    FallBack,
    /// The trainer was cut off then, nanoseconds since 1970; what was written longer before is not in doubt.
    Doubt(i64, Duration),
    Publish,
    /// The last commit; when it must be through, by the thread's clock.
    Flush(Option<Duration>),
    /// The command failed: the last commit does not wait for the other processes of the node.
    WaitForNobody,
    /// The commit under way must be through by then.
    Hurry(Duration),
    /// Look at once and often; `notice`: the end is near.
    Hasten {
        notice: bool,
    },
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
    questions: mpsc::Receiver<Question>,
    bell: Bell,
    incarnation: Arc<AtomicU64>,
    clock: Clock,
    /// Orders that wait for their answers, oldest first.
    pending: VecDeque<Order>,
    /// Says that it is time to wait for the peers.
    gather: Arc<Notify>,
    /// That has no answer yet.
    is_gathering: bool,
}

/// The thread's end.
#[derive(Debug, Clone)]
pub(super) struct Teller {
    events: mpsc::Sender<Event>,
    questions: mpsc::Sender<Question>,
    bell: Bell,
    incarnation: Arc<AtomicU64>,
}

impl Teller {
    /// Hands an event to the supervisor.
    pub(super) fn tell(&self, event: Event) {
        // Nobody listens any more when the job is over.
        let _ = self.events.send(event);
        self.bell.ring();
    }

    /// Asks the supervisor.
    #[cfg_attr(not(feature = "status-page"), allow(dead_code, reason = "there is nobody who asks"))]
    pub(super) fn ask(&self, question: Question) {
        // When the job is over nobody answers.
        let _ = self.questions.send(question);
        self.bell.ring();
    }

    /// One whose events a test hears.
    #[cfg(all(test, feature = "store"))]
    pub(super) fn overheard() -> (Teller, mpsc::Receiver<Event>) {
        let ((events, heard), (questions, _)) = (mpsc::channel(), mpsc::channel());
        let bell = Bell::new().expect("makes a bell");
        (Teller { events, questions, bell, incarnation: Arc::default() }, heard)
    }

    /// Makes this run's number in the store known.
    pub(super) fn incarnation(&self, number: u64) {
        self.incarnation.store(number, Ordering::Relaxed);
    }
}

impl Background {
    /// Starts the thread if there is anything for it. Errors: as eventfd(2) and pthread_create(3).
    pub(super) fn start(work: Work) -> io::Result<Background> {
        if work.keep.is_none() && work.lookout.is_none() && work.peers.is_none() && work.page.is_none() {
            return Ok(Background::default());
        }
        let (order_sender, order_receiver) = orders::unbounded_channel();
        let (event_sender, events) = mpsc::channel();
        let (question_sender, questions) = mpsc::channel();
        let (bell, incarnation) = (Bell::new()?, Arc::new(AtomicU64::new(0)));
        let teller = Teller {
            events: event_sender,
            questions: question_sender,
            bell: bell.clone(),
            incarnation: Arc::clone(&incarnation),
        };
        let gather = Arc::new(Notify::new());
        let gathered = Arc::clone(&gather);
        let (farewell, clock) = (Farewell(bell.clone()), Clock::start());
        let (told, begins) = mpsc::channel();
        signals::deaf_thread("background", move || {
            let _farewell = farewell;
            let runtime = blocking::runtime(work.keep.is_some());
            let (runtime, begun) = runtime.map_or_else(|e| (None, Err(e)), |runtime| (Some(runtime), Ok(())));
            let _ = told.send(begun);
            if let Some(runtime) = runtime {
                runtime.block_on(carry_out(work, order_receiver, gathered, teller, clock));
            }
        })?;
        begins.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        let thread = Thread {
            orders: order_sender,
            events,
            questions,
            bell,
            incarnation,
            clock,
            pending: VecDeque::new(),
            gather,
            is_gathering: false,
        };
        Ok(Background { thread: Some(thread), unanswered: VecDeque::new() })
    }

    /// Readable when there are events.
    pub(super) fn fd(&self) -> Option<RawFd> {
        self.thread.as_ref().map(|thread| thread.bell.as_raw_fd())
    }

    /// What happened since the last look.
    pub(super) fn events(&mut self) -> Vec<Event> {
        let mut events: Vec<Event> = self.unanswered.drain(..).collect();
        let Some(thread) = &mut self.thread else { return events };
        thread.bell.hush();
        loop {
            match thread.events.try_recv() {
                Ok(event) => {
                    if matches!(event, Event::Restored { .. } | Event::NotRestored { .. } | Event::Flushed(_)) {
                        thread.pending.pop_front();
                    }
                    if matches!(event, Event::PeersReached | Event::PeersMissing { .. }) {
                        thread.is_gathering = false;
                    }
                    events.push(event);
                }
                Err(mpsc::TryRecvError::Empty) => return events,
                Err(mpsc::TryRecvError::Disconnected) => break,
            }
        }
        let (pending, is_gathering) = (std::mem::take(&mut thread.pending), thread.is_gathering);
        tracing::error!(
            code = "background_died",
            "the thread that moves checkpoints died; what is committed is safe, nothing more will be"
        );
        self.thread = None;
        events.extend(pending.into_iter().map(dead));
        events.extend(is_gathering.then(alone));
        events
    }

    /// What scrapers ask, at most so much at a time: the rest rings again.
    pub(super) fn questions(&self, most: usize) -> Vec<Question> {
        let Some(thread) = &self.thread else { return Vec::new() };
        let asked: Vec<Question> = thread.questions.try_iter().take(most).collect();
        if asked.len() == most {
            thread.bell.ring();
        }
        asked
    }

    /// Answers with `PeersReached` or `PeersMissing`.
    pub(super) fn await_peers(&mut self) {
        match &mut self.thread {
            Some(thread) => {
                thread.is_gathering = true;
                thread.gather.notify_one();
            }
            None => self.unanswered.push_back(alone()),
        }
    }

    pub(super) fn restore(&mut self) {
        self.order(Order::Restore);
    }

    pub(super) fn refresh(&mut self) {
        self.order(Order::Refresh);
    }

    pub(super) fn fall_back(&mut self) {
        self.order(Order::FallBack);
    }

    pub(super) fn publish(&mut self) {
        self.order(Order::Publish);
    }

    pub(super) fn flush(&mut self, left: Option<Duration>, leaving: bool, failed: bool) {
        if let Some(thread) = self.thread.as_ref().filter(|_| failed) {
            let _ = thread.orders.send(Order::WaitForNobody);
        }
        let left = left.or(leaving.then_some(NO_END));
        let by = self.thread.as_ref().and_then(|t| Some(t.clock.now() + left?));
        self.order(Order::Flush(by));
    }

    /// These three have no answer, and without a thread no sense.
    pub(super) fn doubt(&mut self, ago: Duration, most: Duration) {
        let at = clock::wall().checked_sub(ago).and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        if let Some(thread) = &self.thread {
            let _ = thread.orders.send(Order::Doubt(i64::try_from(at.as_nanos()).unwrap_or(i64::MAX), most));
        }
    }

    pub(super) fn hurry(&mut self, left: Duration) {
        if let Some(thread) = &self.thread {
            let _ = thread.orders.send(Order::Hurry(thread.clock.now() + left));
        }
    }

    pub(super) fn hasten(&mut self, notice: bool) {
        if let Some(thread) = &self.thread {
            let _ = thread.orders.send(Order::Hasten { notice });
        }
    }

    /// This run's number in the store, once it is claimed.
    pub(super) fn incarnation(&self) -> Option<u64> {
        self.thread.as_ref().map(|t| t.incarnation.load(Ordering::Relaxed)).filter(|n| *n > 0)
    }

    /// Whether there are events that no descriptor tells of.
    pub(super) fn has_news(&self) -> bool {
        !self.unanswered.is_empty()
    }

    fn order(&mut self, order: Order) {
        if let Some(thread) = &mut self.thread
            && thread.orders.send(order).is_ok()
        {
            thread.pending.push_back(order);
        } else {
            self.unanswered.push_back(dead(order));
        }
    }
}

/// The answer of a thread that is not there.
fn dead(order: Order) -> Event {
    let detail = "the thread that moves checkpoints is dead; what is committed is safe, start the job again".to_owned();
    match order {
        Order::Restore | Order::Refresh | Order::FallBack => Event::NotRestored { code: exit::STORE, detail },
        _ => Event::Flushed(Flushed::Failed(detail)),
    }
}

/// The answer of a thread that is not there.
fn alone() -> Event {
    let detail = "the thread that waits for the peers is dead; nothing was started, start the job again".to_owned();
    Event::PeersMissing { detail }
}

async fn carry_out(
    work: Work,
    orders: orders::UnboundedReceiver<Order>,
    gather: Arc<Notify>,
    teller: Teller,
    clock: Clock,
) {
    let watch = async {
        if let Some(lookout) = work.lookout {
            let teller = teller.clone();
            lookout.watch(move |event| teller.tell(event)).await;
        }
        std::future::pending::<()>().await;
    };
    let meet = async {
        if let Some(peers) = work.peers {
            gather.notified().await;
            teller.tell(peers.wait().await);
        }
        std::future::pending::<()>().await;
    };
    let show = async {
        if let Some(page) = work.page {
            page.serve(teller.clone()).await;
        }
        std::future::pending::<()>().await;
    };
    let keep = async {
        match work.keep {
            Some(keep) => tokio::select! {
                () = keep.work(orders, teller.clone(), clock) => {}
                never = blocking::keep_a_thread() => match never {},
            },
            None => {
                // Whoever gives an order hears at once that there is nobody to carry it out.
                drop(orders);
                std::future::pending().await
            }
        }
    };
    tokio::select! {
        () = watch => {}
        () = meet => {}
        () = show => {}
        () = keep => {}
    }
}

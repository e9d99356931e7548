//! Long work on a separate thread with its own runtime. The thread takes orders and notifies an eventfd when it has
//! events. It exists only if there is [`Work`] for it.

mod cache;
pub(super) mod fetch;
pub mod keep;
mod ledger;
pub(super) mod model;
pub(super) mod orders;
mod peers;
mod preemption_watch;
mod work;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc as channel};

use crate::edge::clock::Clock;
use crate::edge::io::eventfd::{EventFd, NotifyOnDrop};
use crate::edge::process::signals;
use crate::edge::transfer::blocking;
use crate::rules::gang::Incarnation;
use crate::rules::gang::message::Choice;
use crate::rules::job::{Event, Flushed};
use crate::rules::process::exit;
use crate::supervisor::job::heartbeat::Heartbeat;
use crate::supervisor::status::history::History;
use crate::supervisor::status::page::Question;
use keep::Keep;
use orders::{EventSender, NO_END, Order};
pub use peers::Peers;
pub use preemption_watch::PreemptionWatch;
pub use work::Work;
use work::{Begins, carry_out};

/// The maximum number of events taken in one turn of the loop.
const EVENTS: usize = 64;

/// The supervisor's side of the thread.
#[derive(Debug, Default)]
pub(in crate::supervisor) struct Background {
    thread: Option<Thread>,
    /// Answers given in place of a dead thread.
    unanswered: VecDeque<Event>,
}

#[derive(Debug)]
struct Thread {
    orders: channel::UnboundedSender<Order>,
    events: mpsc::Receiver<Event>,
    questions: mpsc::Receiver<Question>,
    eventfd: EventFd,
    incarnation: Arc<AtomicU64>,
    heartbeat: Heartbeat,
    clock: Clock,
    /// Orders that wait for their answers, oldest first.
    pending: VecDeque<Order>,
    /// Notified when the fetches shall begin.
    fetch: Arc<Notify>,
    /// The fetches have no answer yet.
    is_fetching: bool,
    /// Notified when the wait for peers shall begin.
    gather: Arc<Notify>,
    /// The wait for peers has no answer yet.
    is_gathering: bool,
    /// Disconnects when the run's last object is written.
    ledger: mpsc::Receiver<()>,
}

impl Background {
    /// Starts the thread if there is work for it. Errors: as eventfd(2) and pthread_create(3).
    pub(in crate::supervisor) fn start(work: Work, history: &History) -> io::Result<Background> {
        if work.is_none() {
            return Ok(Background::default());
        }
        let (order_sender, order_receiver) = channel::unbounded_channel();
        let (event_sender, events) = mpsc::channel();
        let (question_sender, questions) = mpsc::channel();
        let (eventfd, incarnation) = (EventFd::new()?, Arc::new(AtomicU64::new(0)));
        let sender = EventSender {
            events: event_sender,
            questions: question_sender,
            eventfd: eventfd.clone(),
            incarnation: Arc::clone(&incarnation),
        };
        let (fetch, gather) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let begins_of = Begins { fetch: Arc::clone(&fetch), gather: Arc::clone(&gather) };
        let (farewell, clock) = (NotifyOnDrop(eventfd.clone()), Clock::start());
        let heartbeat = work.keep.as_ref().map(Keep::heartbeat).unwrap_or_default();
        let (ready, begins) = mpsc::channel();
        let (ledger_done, ledger) = mpsc::channel();
        let history = history.clone();
        signals::thread_without_signals("background", move || {
            let _farewell = farewell;
            let runtime = blocking::runtime(work.has_files());
            let (runtime, begun) = runtime.map_or_else(|e| (None, Err(e)), |runtime| (Some(runtime), Ok(())));
            let _ = ready.send(begun);
            if let Some(runtime) = runtime {
                runtime.block_on(carry_out(work, order_receiver, begins_of, sender, clock, history, ledger_done));
            }
        })?;
        begins.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        let thread = Thread {
            orders: order_sender,
            events,
            questions,
            eventfd,
            incarnation,
            heartbeat,
            clock,
            pending: VecDeque::new(),
            fetch,
            is_fetching: false,
            gather,
            is_gathering: false,
            ledger,
        };
        Ok(Background { thread: Some(thread), unanswered: VecDeque::new() })
    }

    /// Readable when there are events.
    pub(in crate::supervisor) fn fd(&self) -> Option<RawFd> {
        self.thread.as_ref().map(|thread| thread.eventfd.as_raw_fd())
    }

    /// The events since the last call.
    pub(in crate::supervisor) fn events(&mut self) -> Vec<Event> {
        let mut events: Vec<Event> = self.unanswered.drain(..).collect();
        let Some(thread) = &mut self.thread else { return events };
        thread.eventfd.clear_notification();
        for _ in 0..EVENTS {
            match thread.events.try_recv() {
                Ok(event) => {
                    if matches!(
                        event,
                        Event::Restored { .. } | Event::NotRestored { .. } | Event::Surveyed(_) | Event::Flushed(_)
                    ) {
                        thread.pending.pop_front();
                    }
                    if matches!(event, Event::Fetched | Event::NotFetched { .. }) {
                        thread.is_fetching = false;
                    }
                    if matches!(event, Event::PeersReached | Event::PeersMissing { .. }) {
                        thread.is_gathering = false;
                    }
                    events.push(event);
                }
                Err(mpsc::TryRecvError::Empty) => return events,
                Err(mpsc::TryRecvError::Disconnected) => {
                    events.extend(self.answers_after_death());
                    return events;
                }
            }
        }
        // There may be more: notify, so that the next turn takes them.
        thread.eventfd.notify();
        events
    }

    /// The answers in place of a dead thread.
    fn answers_after_death(&mut self) -> Vec<Event> {
        let Some(mut thread) = self.thread.take() else { return Vec::new() };
        let (pending, is_gathering) = (std::mem::take(&mut thread.pending), thread.is_gathering);
        let is_fetching = thread.is_fetching;
        tracing::error!(
            code = "background_died",
            "the thread that moves checkpoints died; commits made so far are safe, no more will be made"
        );
        pending.into_iter().map(dead).chain(is_gathering.then(alone)).chain(is_fetching.then(not_fetched)).collect()
    }

    /// Questions of scrapers, at most `most`. If there may be more, the eventfd is notified again.
    pub(in crate::supervisor) fn questions(&self, most: usize) -> Vec<Question> {
        let Some(thread) = &self.thread else { return Vec::new() };
        let asked: Vec<Question> = thread.questions.try_iter().take(most).collect();
        if asked.len() == most {
            thread.eventfd.notify();
        }
        asked
    }

    /// Answers with `Fetched` or `NotFetched`.
    pub(in crate::supervisor) fn fetch(&mut self) {
        match &mut self.thread {
            Some(thread) => {
                thread.is_fetching = true;
                thread.fetch.notify_one();
            }
            None => self.unanswered.push_back(not_fetched()),
        }
    }

    /// Answers with `PeersReached` or `PeersMissing`.
    pub(in crate::supervisor) fn await_peers(&mut self) {
        match &mut self.thread {
            Some(thread) => {
                thread.is_gathering = true;
                thread.gather.notify_one();
            }
            None => self.unanswered.push_back(alone()),
        }
    }

    pub(in crate::supervisor) fn restore(&mut self) {
        self.order(Order::Restore);
    }

    pub(in crate::supervisor) fn refresh(&mut self) {
        self.order(Order::Refresh);
    }

    pub(in crate::supervisor) fn fall_back(&mut self) {
        self.order(Order::FallBack);
    }

    pub(in crate::supervisor) fn survey(&mut self, leader: Option<Incarnation>) {
        self.order(Order::Survey(leader));
    }

    pub(in crate::supervisor) fn restore_agreed(&mut self, choice: Choice) {
        self.order(Order::RestoreAgreed(choice));
    }

    /// This order has no answer.
    pub(in crate::supervisor) fn keep(&mut self, step: u64) {
        if let Some(thread) = &self.thread {
            let _ = thread.orders.send(Order::Keep(step));
        }
    }

    pub(in crate::supervisor) fn publish(&mut self) {
        self.order(Order::Publish);
    }

    pub(in crate::supervisor) fn flush(&mut self, left: Option<Duration>, leaving: bool, failed: bool) {
        if let Some(thread) = self.thread.as_ref().filter(|_| failed) {
            let _ = thread.orders.send(Order::SkipOthers);
        }
        let left = left.or(leaving.then_some(NO_END));
        let by = self.thread.as_ref().and_then(|t| Some(t.clock.now() + left?));
        self.order(Order::Flush(by));
    }

    /// The trainer was killed this long ago. This order and the next two have no answer, so without a thread they are
    /// ignored.
    pub(in crate::supervisor) fn mark_unsure(&mut self, ago: Duration) {
        if let Some(thread) = &self.thread {
            let _ = thread.orders.send(Order::MarkUnsure(ago));
        }
    }

    pub(in crate::supervisor) fn set_commit_deadline(&mut self, left: Duration) {
        if let Some(thread) = &self.thread {
            let _ = thread.orders.send(Order::SetCommitDeadline(thread.clock.now() + left));
        }
    }

    pub(in crate::supervisor) fn commit_soon(&mut self, notice: bool) {
        if let Some(thread) = &self.thread {
            let _ = thread.orders.send(Order::CommitSoon { notice });
        }
    }

    /// Sets the path of the trainer's heartbeat file.
    pub(in crate::supervisor) fn heartbeat_is_at(&self, path: &str) {
        if let Some(thread) = &self.thread {
            thread.heartbeat.is_at(path);
        }
    }

    /// Waits for a limited time until the run's last object is written.
    pub(in crate::supervisor) fn finish_ledger(&self, limit: Duration) {
        if let Some(thread) = &self.thread
            && thread.ledger.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout)
        {
            tracing::warn!(
                code = "ledger",
                "the store has not taken the last objects of this run in time: trainit goodput may show it as killed, and the last files of --cache-dir may be missing"
            );
        }
    }

    /// This run's number in the store, once it is claimed.
    pub(in crate::supervisor) fn incarnation(&self) -> Option<u64> {
        self.thread.as_ref().map(|t| t.incarnation.load(Ordering::Relaxed)).filter(|n| *n > 0)
    }

    /// Whether there are events without a readable descriptor.
    pub(in crate::supervisor) fn has_news(&self) -> bool {
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

/// The answer in place of a missing or dead thread.
fn dead(order: Order) -> Event {
    let detail =
        "the thread that moves checkpoints is dead; commits made so far are safe, start the job again".to_owned();
    match order {
        Order::Restore | Order::Refresh | Order::FallBack | Order::Survey(_) | Order::RestoreAgreed(_) => {
            Event::NotRestored { code: exit::STORE, detail }
        }
        _ => Event::Flushed(Flushed::Failed(detail)),
    }
}

/// The answer in place of a missing or dead thread.
fn not_fetched() -> Event {
    let detail =
        "the thread that fetches the training data is dead; nothing was started, start the job again".to_owned();
    Event::NotFetched { code: exit::STORE, detail }
}

/// The answer in place of a missing or dead thread.
fn alone() -> Event {
    let detail = "the thread that waits for the peers is dead; nothing was started, start the job again".to_owned();
    Event::PeersMissing { detail }
}

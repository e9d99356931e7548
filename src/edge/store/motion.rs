//! Whether anything moves between us and a store, and whether it takes what it is sent.

#![expect(unsafe_code, reason = "a connection is asked by its descriptor what it holds back")]

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

/// What is sent over a narrow line while one waits for an answer; questions are far less.
const CRAWL: u64 = 64 << 10;

/// What has moved on a store's connections, what it owes, and what became of writes.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    bytes: AtomicU64,
    /// That the kernel took to send them.
    sent: AtomicU64,
    owed: AtomicU32,
    /// Of these, how many wait for us.
    idle: AtomicU32,
    writes: Mutex<Writes>,
    /// The connections, by their descriptors.
    lines: Mutex<BTreeMap<RawFd, Traffic>>,
}

/// Of one connection.
#[derive(Debug, Default)]
struct Traffic {
    /// That were read and written.
    bytes: Arc<AtomicU64>,
    /// Of those, how many had come and got there when it was last looked at.
    seen: u64,
}

#[derive(Debug, Default)]
struct Writes {
    begun: u64,
    /// The numbers of those that are under way.
    open: BTreeSet<u64>,
    taken: u64,
    refused: u64,
    /// Answers of either kind.
    answers: u64,
    /// Of the last that was refused; 0 where that got no answer.
    status: u16,
}

impl Meter {
    /// So many bytes have come or gone, on no connection.
    pub(super) fn moved(&self, bytes: usize) {
        self.0.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// The kernel has taken so many bytes to send them.
    pub(super) fn has_sent(&self, bytes: usize) {
        self.0.sent.fetch_add(bytes as u64, Relaxed);
    }

    /// How many bytes that were so far.
    pub(super) fn sent(&self) -> u64 {
        self.0.sent.load(Relaxed)
    }

    /// There is a connection with this descriptor, until what comes back is dropped, which is before it is closed.
    pub(super) fn line(&self, descriptor: RawFd) -> Line {
        let traffic = Traffic::default();
        let bytes = Arc::clone(&traffic.bytes);
        self.lines().insert(descriptor, traffic);
        Line { meter: self.clone(), descriptor, bytes }
    }

    fn lines(&self) -> MutexGuard<'_, BTreeMap<RawFd, Traffic>> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer is owed from now on, until what comes back is dropped.
    pub(super) fn owed(&self) -> Owed {
        self.0.owed.fetch_add(1, Relaxed);
        Owed(self.clone())
    }

    /// An answer is not owed from now on, until what comes back is dropped: the question waits for us.
    pub(super) fn idle(&self) -> Idle {
        self.0.idle.fetch_add(1, Relaxed);
        Idle(self.clone())
    }

    /// Something is sent from now on, until what comes back is told the answer or dropped.
    pub(super) fn writes(&self) -> Write {
        let mut writes = self.lock();
        writes.begun += 1;
        let number = writes.begun;
        writes.open.insert(number);
        Write { meter: self.clone(), number }
    }

    /// How it stands now.
    pub(super) fn read(&self) -> Motion {
        for (line, traffic) in self.lines().iter_mut() {
            let there = traffic.bytes.load(Relaxed).saturating_sub(held_back(*line));
            // The end of a connection is held back as a byte that nobody has written.
            self.0.bytes.fetch_add(there.saturating_sub(traffic.seen), Relaxed);
            traffic.seen = traffic.seen.max(there);
        }
        let writes = self.lock();
        Motion {
            bytes: self.0.bytes.load(Relaxed),
            owed: self.0.owed.load(Relaxed).saturating_sub(self.0.idle.load(Relaxed)),
            begun: writes.begun,
            oldest: writes.open.first().copied(),
            taken: writes.taken,
            refused: writes.refused,
            answers: writes.answers,
            status: writes.status,
        }
    }

    /// What comes within the limit, or later as long as enough is sent to the store in each `silence` for it to be only
    /// slow. Errors: how long that was.
    pub(super) async fn in_time<T>(
        &self,
        limit: Duration,
        silence: Duration,
        answer: impl Future<Output = T>,
    ) -> Result<T, Duration> {
        let begun = Instant::now();
        let mut answer = pin!(answer);
        let mut patience = limit;
        loop {
            let before = self.sent();
            match timeout(patience, &mut answer).await {
                Ok(answer) => return Ok(answer),
                Err(_) if self.sent().saturating_sub(before) < CRAWL => return Err(begun.elapsed()),
                Err(_) => patience = silence,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Writes> {
        self.0.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that were written and have not got to the other side: the kernel takes some hundred thousand, which is a minute's
/// worth on a narrow line.
fn held_back(line: RawFd) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open as long as it is in the list, and the kernel writes one int.
    let asked = unsafe { libc::ioctl(line, libc::TIOCOUTQ, &raw mut bytes) };
    if asked == 0 { u64::try_from(bytes).unwrap_or_default() } else { 0 }
}

/// A connection. What has moved on it since it was last looked at goes with it: that a question is given up, and its
/// connection closed, says nothing of the store, and what got an answer is counted by that.
pub(super) struct Line {
    meter: Meter,
    descriptor: RawFd,
    bytes: Arc<AtomicU64>,
}

impl Line {
    /// The kernel has taken so many bytes to send them.
    pub(super) fn sent(&self, bytes: usize) {
        self.moved(bytes);
        self.meter.has_sent(bytes);
    }

    /// How many bytes have come and got there, and whether there are any that have not.
    pub(super) fn there(&self) -> (u64, bool) {
        let held_back = held_back(self.descriptor);
        (self.bytes.load(Relaxed).saturating_sub(held_back), held_back > 0)
    }

    /// So many bytes were read or written.
    pub(super) fn moved(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.meter.lines().remove(&self.descriptor);
    }
}

/// An answer that is waited for.
pub(super) struct Owed(Meter);

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.0.owed.fetch_sub(1, Relaxed);
    }
}

/// A question that is not asked to its end, since we wait for something else.
pub(super) struct Idle(Meter);

impl Drop for Idle {
    fn drop(&mut self) {
        self.0.0.idle.fetch_sub(1, Relaxed);
    }
}

/// A write that is under way.
pub(super) struct Write {
    meter: Meter,
    number: u64,
}

impl Write {
    /// With this status; `None`: it got no answer.
    pub(super) fn answered(self, status: Option<u16>) {
        let mut writes = self.meter.lock();
        writes.answers += u64::from(status.is_some());
        if status.is_some_and(|status| (200..300).contains(&status)) {
            writes.taken += 1;
        } else {
            writes.refused += 1;
            writes.status = status.unwrap_or_default();
        }
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        self.meter.lock().open.remove(&self.number);
    }
}

/// How it stood between us and a store at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Motion {
    /// That have come and got there, as far as their connections lived to be looked at.
    bytes: u64,
    /// Answers that were waited for.
    owed: u32,
    /// Writes that were begun, and the first of them that was under way.
    begun: u64,
    oldest: Option<u64>,
    /// Writes that were answered so.
    taken: u64,
    refused: u64,
    answers: u64,
    status: u16,
}

impl Motion {
    /// Whether anything has moved in between.
    pub fn has_moved_since(self, then: Motion) -> bool {
        self.bytes != then.bytes || self.answers != then.answers
    }

    /// As it stood then, but for what became of writes, which is as it stood later.
    pub fn with_writes_of(self, later: Motion) -> Motion {
        Motion { taken: later.taken, refused: later.refused, status: later.status, ..self }
    }

    /// Whether answers were owed then and are now, and nothing has moved in between.
    pub fn is_stuck_since(&self, then: Motion) -> bool {
        then.owed > 0 && self.owed > 0 && !self.has_moved_since(then)
    }

    /// Whether a write was taken in between.
    pub fn has_taken_since(&self, then: Motion) -> bool {
        self.taken != then.taken
    }

    /// Whether a write was refused in between.
    pub fn has_refused_since(&self, then: Motion) -> bool {
        self.refused != then.refused
    }

    /// Whether a write that was under way then is so now.
    pub fn is_sending_since(&self, then: Motion) -> bool {
        self.oldest.is_some_and(|oldest| oldest <= then.begun)
    }

    /// The status of the last write that was refused, if it got an answer.
    pub fn refusal(&self) -> Option<u16> {
        (self.status != 0).then_some(self.status)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use tokio::time::sleep;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_store_is_stuck_that_owes_an_answer_while_nothing_moves() {
        let meter = Meter::default();
        let idle = meter.read();
        assert!(!meter.read().is_stuck_since(idle), "nobody has asked anything");
        let owed = meter.owed();
        let asked = meter.read();
        assert!(!asked.is_stuck_since(idle), "only now is it asked");
        assert!(meter.read().is_stuck_since(asked));
        meter.moved(1);
        let moved = meter.read();
        assert!(!moved.is_stuck_since(asked));
        let here = meter.idle();
        assert!(!meter.read().is_stuck_since(moved), "it waits for us");
        drop(here);
        assert!(meter.read().is_stuck_since(moved));
        drop(owed);
        assert!(!meter.read().is_stuck_since(moved), "it has answered");
    }

    #[test]
    fn what_the_kernel_holds_back_moves_when_the_other_side_takes_it_and_never_by_being_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let mut near = TcpStream::connect(listener.local_addr().expect("has an address")).expect("connects");
        let (mut far, _) = listener.accept().expect("accepts");
        near.set_nonblocking(true).expect("sets");
        let meter = Meter::default();
        let line = meter.line(near.as_raw_fd());
        while let Ok(written) = near.write(&[0; 1 << 16]) {
            line.moved(written);
        }
        let at_rest = || loop {
            let before = meter.read();
            std::thread::sleep(Duration::from_millis(300));
            if !meter.read().has_moved_since(before) {
                return before;
            }
        };
        let full = at_rest();
        far.read_exact(&mut vec![0; 1 << 20]).expect("reads");
        while !meter.read().has_moved_since(full) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let then = at_rest();
        drop(line);
        assert!(!meter.read().has_moved_since(then));
    }

    #[test]
    fn the_end_of_a_connection_moves_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let mut near = TcpStream::connect(listener.local_addr().expect("has an address")).expect("connects");
        let meter = Meter::default();
        let line = meter.line(near.as_raw_fd());
        let written = near.write(b"GET / HTTP/1.1\r\n\r\n").expect("writes");
        line.moved(written);
        while held_back(near.as_raw_fd()) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let asked = meter.read();
        line.moved(near.write(b"close_notify").expect("writes"));
        near.shutdown(std::net::Shutdown::Write).expect("shuts down");
        drop(line);
        assert!(!meter.read().has_moved_since(asked));
    }

    #[test]
    fn an_answer_to_a_write_is_motion_though_its_connection_is_gone() {
        let meter = Meter::default();
        let before = meter.read();
        meter.writes().answered(None);
        let cut_off = meter.read();
        assert!(!cut_off.has_moved_since(before), "nobody answered");
        meter.writes().answered(Some(503));
        assert!(meter.read().has_moved_since(cut_off));
    }

    #[test]
    fn what_becomes_of_a_write_is_counted_and_a_slow_one_is_told_from_those_that_come_and_go() {
        let meter = Meter::default();
        let (slow, before) = (meter.writes(), meter.read());
        meter.writes().answered(Some(503));
        let now = meter.read();
        assert!(now.has_refused_since(before) && !now.has_taken_since(before));
        assert!(now.is_sending_since(before), "the slow one");
        assert_eq!(now.refusal(), Some(503));
        slow.answered(Some(200));
        let _begun = meter.writes();
        let then = meter.read();
        assert!(then.has_taken_since(now) && !then.has_refused_since(now));
        assert!(!then.is_sending_since(now), "another one");
        drop(meter.writes());
        let cut_off = meter.read();
        assert!(!cut_off.has_refused_since(then), "nobody waited for its answer");
        assert!(now.with_writes_of(then).has_taken_since(now) && !now.with_writes_of(then).has_moved_since(now));
        meter.writes().answered(None);
        assert_eq!(meter.read().refusal(), None);
    }
    #[tokio::test]
    async fn an_answer_is_waited_for_beyond_its_time_as_long_as_the_line_is_only_slow() {
        let meter = Meter::default();
        let late = meter.in_time(SECOND / 2, SECOND / 2, pending::<()>());
        assert!(late.await.is_err_and(|waited| waited < SECOND * 10));
        let moving = async {
            loop {
                meter.has_sent(CRAWL as usize);
                sleep(SECOND / 100).await;
            }
        };
        let slow = meter.in_time(SECOND / 2, SECOND / 2, sleep(SECOND * 2));
        tokio::select! {
            answer = slow => assert_eq!(answer, Ok(())),
            () = moving => {}
        }
    }
}

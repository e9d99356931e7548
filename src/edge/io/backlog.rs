//! A queue of lines to an output stream that may have no reader. The caller never waits.
//!
//! Pipes with room are written directly. If a write may block (a full pipe, a socket, a terminal held with Ctrl-S, a file on
//! a file system that hangs), a thread writes, from the first such line on. The queue is bounded; lines beyond it are dropped, and a line says
//! how many.
//! An unfinished line of another writer to the same pipe is waited for, and ended by a newline after a timeout.
//! Deliberately absent: O_NONBLOCK, because it would apply to every process that shares the stream.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::edge::io::eventfd::wait_readable;
use crate::edge::io::pipe::ends_mid_line;
use crate::edge::io::stdio;
use crate::edge::process::signals;

/// The capacity of the queue.
const ROOM_BYTES: usize = 64 * 1024;

/// The longest wait for the end of another writer's line, and the interval between two checks.
const LINE_PATIENCE: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(3);

/// The lines for one stream.
#[derive(Debug)]
pub struct Backlog {
    fd: BorrowedFd<'static>,
    /// Makes the line that reports the number of lost lines.
    lost: fn(u64) -> String,
    /// A line of another writer is unfinished.
    is_begun: AtomicBool,
    /// Held by each writer of this process while it writes to the stream.
    turn: Mutex<()>,
    /// A line of this process waits for its turn.
    is_waiting: AtomicBool,
    /// The last line is queued, and no further line follows.
    is_over: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    has_writer: bool,
    /// The first one is being written.
    lines: VecDeque<String>,
    bytes: usize,
    lost: u64,
}

impl Backlog {
    /// An empty queue.
    pub const fn new(fd: BorrowedFd<'static>, lost: fn(u64) -> String) -> Backlog {
        let state = State { has_writer: false, lines: VecDeque::new(), bytes: 0, lost: 0 };
        Backlog {
            fd,
            lost,
            is_begun: AtomicBool::new(false),
            turn: Mutex::new(()),
            is_waiting: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Lets the calling thread write to the stream between two lines. `is_begun`: it leaves an unfinished line, so the next
    /// line waits for its end or starts with a newline.
    pub fn beside<T>(&self, is_begun: bool, write: impl FnOnce() -> T) -> T {
        let clock = Clock::start();
        let may_go = || !self.is_waiting.load(Ordering::Relaxed) || self.is_begun.load(Ordering::Relaxed);
        while !may_go() && clock.now() < LINE_PATIENCE {
            wait_readable(&[], Some(LOOK));
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_begun.store(is_begun, Ordering::Relaxed);
        write()
    }

    /// Queues a line.
    pub fn put(&'static self, line: String) {
        let mut state = self.state();
        if state.bytes > 0 && state.bytes + line.len() > ROOM_BYTES {
            state.lost += 1;
        } else {
            self.take(&mut state, line);
        }
    }

    /// Queues the last line, and waits up to the limit until all lines are written.
    pub fn put_last(&'static self, line: String, limit: Duration) {
        self.is_over.store(true, Ordering::Relaxed);
        self.take(&mut self.state(), line);
        self.wait(limit);
    }

    /// Waits up to the limit until all lines are written.
    pub fn wait(&'static self, limit: Duration) {
        let _ = self.changed.wait_timeout_while(self.state(), limit, |state| !state.lines.is_empty());
    }

    fn take(&'static self, state: &mut State, line: String) {
        if !state.has_writer
            && stdio::takes_at_once(self.fd, line.len() + 1)
            && let Ok(_turn) = self.turn.try_lock()
            && !self.is_mid_line()
        {
            self.write_line(line);
            return;
        }
        if !state.has_writer && signals::thread_without_signals("log", || self.write()).is_err() {
            state.lost += 1;
            return;
        }
        state.has_writer = true;
        self.report_lost(state);
        state.push(line);
        self.changed.notify_all();
    }

    fn report_lost(&self, state: &mut State) {
        if state.lost > 0 {
            let words = (self.lost)(std::mem::take(&mut state.lost));
            state.push(words);
        }
    }

    /// The body of the writing thread.
    fn write(&self) {
        let mut state = self.state();
        let mut is_patient = true;
        loop {
            if state.lines.is_empty() {
                self.report_lost(&mut state);
            }
            let Some(line) = state.lines.front().cloned() else {
                self.changed.notify_all();
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let bytes = line.len();
            drop(state);
            is_patient = self.write_in_turn(line, is_patient);
            state = self.state();
            state.lines.pop_front();
            state.bytes -= bytes;
        }
    }

    /// Waits for the end of another writer's line, then writes. Returns whether that line ended within the timeout. An
    /// impatient call does not wait.
    fn write_in_turn(&self, line: String, is_patient: bool) -> bool {
        let clock = Clock::start();
        self.is_waiting.store(true, Ordering::Relaxed);
        let is_ended = loop {
            let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            let is_ended = !self.is_mid_line();
            let has_time = is_patient && !self.is_over.load(Ordering::Relaxed) && clock.now() < LINE_PATIENCE;
            if is_ended || !has_time {
                self.write_line(line);
                break is_ended;
            }
            drop(turn);
            wait_readable(&[], Some(LOOK));
        };
        self.is_waiting.store(false, Ordering::Relaxed);
        is_ended
    }

    fn is_mid_line(&self) -> bool {
        self.is_begun.load(Ordering::Relaxed) || ends_mid_line(self.fd) == Some(true)
    }

    fn write_line(&self, mut line: String) {
        if self.is_mid_line() {
            line.insert(0, '\n');
        }
        self.is_begun.store(false, Ordering::Relaxed);
        let _ = stdio::write_all(self.fd, line.as_bytes());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, OwnedFd};

    /// A full pipe, its number of bytes, and a backlog for it.
    fn full() -> (File, usize, &'static Backlog) {
        let (reader, writer) = nix::unistd::pipe().expect("a pipe");
        let room = nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_GETPIPE_SZ).expect("its size") as usize;
        let mut writer = File::from(writer);
        writer.write_all(&vec![b'x'; room - 1]).and_then(|()| writer.write_all(b"\n")).expect("room");
        (File::from(reader), room, backlog(writer.into()))
    }

    fn backlog(writer: OwnedFd) -> &'static Backlog {
        let writer: &'static OwnedFd = Box::leak(Box::new(writer));
        Box::leak(Box::new(Backlog::new(writer.as_fd(), |count| format!("{count} lost\n"))))
    }

    fn next(reader: &mut File, count: usize) -> String {
        let mut bytes = vec![0; count];
        reader.read_exact(&mut bytes).expect("all bytes");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn unread_output_blocks_nothing_and_lost_lines_are_reported_in_their_place() {
        let (mut reader, room, backlog) = full();
        let line = format!("{}\n", "y".repeat(999));
        let kept = ROOM_BYTES / line.len();
        for _ in 0..kept + 7 {
            backlog.put(line.clone());
        }
        backlog.put_last("last\n".to_owned(), Duration::ZERO);
        assert!(next(&mut reader, room).starts_with('x'));
        assert_eq!(next(&mut reader, kept * line.len()), line.repeat(kept));
        assert_eq!(next(&mut reader, "7 lost\nlast\n".len()), "7 lost\nlast\n");
    }

    #[test]
    fn an_endless_line_of_another_writer_is_ended_once() {
        let (mut reader, room, backlog) = full();
        backlog.beside(true, || ());
        for line in ["a\n", "b\n"] {
            backlog.put(line.to_owned());
        }
        next(&mut reader, room);
        assert_eq!(next(&mut reader, 5), "\na\nb\n");
    }

    #[test]
    fn an_unfinished_line_of_another_writer_is_awaited_and_not_split() {
        let (mut reader, writer) = nix::unistd::pipe().expect("a pipe");
        let mut other = File::from(writer.try_clone().expect("a copy"));
        let backlog = backlog(writer);
        let mut reader = File::from(std::mem::replace(&mut reader, nix::unistd::pipe().expect("a pipe").0));
        other.write_all(b"whole\n").expect("room");
        backlog.put("one\n".to_owned());
        assert_eq!(next(&mut reader, 10), "whole\none\n");
        other.write_all(b"half a").expect("room");
        backlog.put("two\n".to_owned());
        other.write_all(b" line\n").expect("room");
        assert_eq!(next(&mut reader, 16), "half a line\ntwo\n");
        other.write_all(b"a line without an end").expect("room");
        backlog.put("three\n".to_owned());
        // Bytes that the reader has consumed cannot be inspected.
        while !backlog.state().lines.is_empty() {
            wait_readable(&[], Some(LOOK));
        }
        assert_eq!(next(&mut reader, 28), "a line without an end\nthree\n");
    }

    #[test]
    fn lost_lines_are_reported_although_no_line_follows() {
        let (mut reader, room, backlog) = full();
        backlog.put("y".repeat(ROOM_BYTES));
        backlog.put("z".to_owned());
        next(&mut reader, room + ROOM_BYTES);
        assert_eq!(next(&mut reader, "1 lost\n".len()), "1 lost\n");
    }

    #[test]
    fn the_last_line_is_waited_for_while_a_reader_exists() {
        let (mut reader, room, backlog) = full();
        let reading = std::thread::spawn(move || next(&mut reader, room + "last\n".len()));
        backlog.put_last("last\n".to_owned(), Duration::from_secs(60));
        assert!(backlog.state().lines.is_empty());
        assert!(reading.join().expect("read").ends_with("x\nlast\n"));
    }
}

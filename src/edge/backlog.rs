//! Lines to a stream of ours that maybe nobody reads: who has something to say is never held up.
//!
//! Files, and pipes as long as they have room, are written to directly. Where a write may have to wait (a full pipe, a
//! socket, a terminal held with Ctrl-S) a thread does it, from the first such line on. So many lines wait for it; what is
//! more is lost, and told of in its place.
//! Deliberately absent: O_NONBLOCK, which everybody who shares the stream would have too.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{signals, stdio};

/// What waits, at most.
const ROOM_BYTES: usize = 64 * 1024;

/// The lines for one stream.
#[derive(Debug)]
pub struct Backlog {
    fd: RawFd,
    /// Words the loss of so many lines.
    lost: fn(u64) -> String,
    /// Another's line has no end yet.
    is_begun: AtomicBool,
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
    /// Nothing yet.
    pub const fn new(fd: RawFd, lost: fn(u64) -> String) -> Backlog {
        let state = State { has_writer: false, lines: VecDeque::new(), bytes: 0, lost: 0 };
        Backlog { fd, lost, is_begun: AtomicBool::new(false), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Whether what others write to the stream has left a line without its end: the next of ours begins on one of its own.
    pub fn is_begun(&self, is_begun: bool) {
        self.is_begun.store(is_begun, Ordering::Relaxed);
    }

    /// Writes a line, soon.
    pub fn put(&'static self, line: String) {
        let mut state = self.state();
        if state.bytes > 0 && state.bytes + line.len() > ROOM_BYTES {
            state.lost += 1;
        } else {
            self.take(&mut state, line);
        }
    }

    /// Writes the last line, whatever waits, and gives it and those before it so much time.
    pub fn put_last(&'static self, line: String, limit: Duration) {
        let mut state = self.state();
        self.take(&mut state, line);
        let _ = self.changed.wait_timeout_while(state, limit, |state| !state.lines.is_empty());
    }

    fn take(&'static self, state: &mut State, line: String) {
        if !state.has_writer && stdio::takes_at_once(self.fd, line.len() + 1) {
            self.write_line(line);
            return;
        }
        if !state.has_writer && signals::deaf_thread("log", || self.write()).is_err() {
            state.lost += 1;
            return;
        }
        state.has_writer = true;
        self.own_up(state);
        state.push(line);
        self.changed.notify_all();
    }

    fn own_up(&self, state: &mut State) {
        if state.lost > 0 {
            let words = (self.lost)(std::mem::take(&mut state.lost));
            state.push(words);
        }
    }

    /// The thread.
    fn write(&self) {
        let mut state = self.state();
        loop {
            if state.lines.is_empty() {
                self.own_up(&mut state);
            }
            let Some(line) = state.lines.front().cloned() else {
                self.changed.notify_all();
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let bytes = line.len();
            drop(state);
            self.write_line(line);
            state = self.state();
            state.lines.pop_front();
            state.bytes -= bytes;
        }
    }

    fn write_line(&self, mut line: String) {
        if self.is_begun.swap(false, Ordering::Relaxed) {
            line.insert(0, '\n');
        }
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
    use std::os::fd::{IntoRawFd, OwnedFd};

    /// A pipe that is full of so many bytes, and lines for it.
    fn full() -> (File, usize, &'static Backlog) {
        let (reader, writer) = nix::unistd::pipe().expect("a pipe");
        let room = nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_GETPIPE_SZ).expect("its size") as usize;
        let mut writer = File::from(writer);
        writer.write_all(&vec![b'x'; room]).expect("room");
        let fd = OwnedFd::from(writer).into_raw_fd();
        (File::from(reader), room, Box::leak(Box::new(Backlog::new(fd, |count| format!("{count} lost\n")))))
    }

    fn next(reader: &mut File, count: usize) -> String {
        let mut bytes = vec![0; count];
        reader.read_exact(&mut bytes).expect("so many bytes");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn what_nobody_reads_holds_nobody_up_and_what_was_lost_is_told_in_its_place() {
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
    fn a_line_of_anothers_that_has_no_end_is_ended_once() {
        let (mut reader, room, backlog) = full();
        backlog.is_begun(true);
        for line in ["a\n", "b\n"] {
            backlog.put(line.to_owned());
        }
        next(&mut reader, room);
        assert_eq!(next(&mut reader, 5), "\na\nb\n");
    }

    #[test]
    fn what_was_lost_is_told_though_nothing_is_said_any_more() {
        let (mut reader, room, backlog) = full();
        backlog.put("y".repeat(ROOM_BYTES));
        backlog.put("z".to_owned());
        next(&mut reader, room + ROOM_BYTES);
        assert_eq!(next(&mut reader, "1 lost\n".len()), "1 lost\n");
    }

    #[test]
    fn the_last_line_is_waited_for_while_somebody_may_read_it() {
        let (mut reader, room, backlog) = full();
        let reading = std::thread::spawn(move || next(&mut reader, room + "last\n".len()));
        backlog.put_last("last\n".to_owned(), Duration::from_secs(60));
        assert!(backlog.state().lines.is_empty());
        assert!(reading.join().expect("read").ends_with("xlast\n"));
    }
}

//! Writes a trainer's output to trainit's standard output or standard error.

use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::edge::io::{pipe, stdio};
use crate::rules::text::last_line::LastLine;
use crate::telemetry::log;

/// The size of one write: large for a fast reader, and small for a slow one, so that its progress is seen.
const LEAST_PIECE: usize = 4096;
const LARGEST_PIECE: usize = 32 * 1024;
/// A write that takes this long means a slow reader.
const SLOW: Duration = Duration::from_millis(50);

/// The progress of an output thread, shared with the event loop.
#[derive(Debug, Default)]
pub(in crate::supervisor) struct OutputProgress {
    taken: AtomicU64,
    closed: AtomicBool,
    last_line: Mutex<LastLine>,
}

impl OutputProgress {
    /// The number of pieces written so far.
    pub(in crate::supervisor) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// The last line so far.
    pub(in crate::supervisor) fn last_line(&self) -> Option<String> {
        self.last_line.lock().unwrap_or_else(PoisonError::into_inner).text()
    }

    /// Stops passing output on.
    pub(in crate::supervisor) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

/// Passes output on while there may be a reader.
#[derive(Debug)]
pub(in crate::supervisor) struct OutputWriter {
    to: BorrowedFd<'static>,
    passage: Arc<OutputProgress>,
    clock: Clock,
    piece_bytes: usize,
    /// trainit's log goes to the same file.
    has_log: bool,
    /// The stream never accepts output.
    unwritable: bool,
    /// The warning about lost output was logged.
    is_logged: bool,
}

impl OutputWriter {
    pub(in crate::supervisor) fn new(to: BorrowedFd<'static>, passage: Arc<OutputProgress>) -> OutputWriter {
        let (clock, piece_bytes) = (Clock::start(), LEAST_PIECE);
        let has_log = pipe::is_same_file(to, stdio::STDERR);
        OutputWriter { to, passage, clock, piece_bytes, has_log, unwritable: false, is_logged: false }
    }

    /// Writes the bytes. Returns whether there may still be a reader.
    pub(in crate::supervisor) fn pass_on(&mut self, mut bytes: &[u8]) -> bool {
        self.passage.last_line.lock().unwrap_or_else(PoisonError::into_inner).feed(bytes);
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(bytes.len().min(self.piece_bytes));
            let begun = self.clock.now();
            if self.passage.closed.load(Ordering::Relaxed) || !self.put(piece) {
                return false;
            }
            self.passage.taken.fetch_add(1, Ordering::Relaxed);
            let is_slow = self.clock.now().saturating_sub(begun) >= SLOW;
            let next = if is_slow { LEAST_PIECE } else { self.piece_bytes * 2 };
            self.piece_bytes = next.min(LARGEST_PIECE);
            bytes = rest;
        }
        true
    }

    /// Writes the whole lines, then the beginning of the next one: lines of trainit's log never split a line.
    fn write_with_log(&self, bytes: &[u8]) -> io::Result<()> {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let parts = [(&bytes[..whole], false), (&bytes[whole..], true)];
        let mut parts = parts.into_iter().filter(|(part, _)| !part.is_empty());
        parts.try_for_each(|(part, is_begun)| log::beside(is_begun, || stdio::write_all(self.to, part)))
    }

    fn put(&mut self, bytes: &[u8]) -> bool {
        if self.unwritable {
            return true;
        }
        let written = if self.has_log { self.write_with_log(bytes) } else { stdio::write_all(self.to, bytes) };
        let Err(error) = written else { return true };
        if error.kind() == ErrorKind::BrokenPipe {
            return false;
        }
        // The stream was already closed when trainit started.
        self.unwritable = error.raw_os_error() == Some(libc::EBADF);
        if !self.is_logged {
            self.is_logged = true;
            let kept = if self.unwritable { "the rest is dropped" } else { "a part is lost" };
            tracing::warn!("the trainer's output cannot be passed on, {kept}; training continues: {error}");
        }
        true
    }
}

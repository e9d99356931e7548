//! Our own standard output or standard error, as the place where a trainer's output goes on to.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::edge::{pipe, stdio};
use crate::telemetry::log;

/// What is written at once: much to who reads fast, and little to who is slow, so that reading at all is seen.
const LEAST_PIECE: usize = 4096;
const LARGEST_PIECE: usize = 32 * 1024;
/// A piece that takes so long goes to a slow reader.
const SLOW: Duration = Duration::from_millis(50);

/// How it goes with what is passed on, for who waits for it.
#[derive(Debug, Default)]
pub(super) struct Passage {
    taken: AtomicU64,
    closed: AtomicBool,
}

impl Passage {
    /// Pieces that were taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Nothing more is passed on.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

/// Passes on for as long as somebody may read it.
#[derive(Debug)]
pub(super) struct Outlet {
    to: BorrowedFd<'static>,
    passage: Arc<Passage>,
    clock: Clock,
    piece_bytes: usize,
    /// Our log goes there, too.
    has_log: bool,
    /// Our stream takes nothing, ever.
    unwritable: bool,
    /// A lost piece of output was told of.
    told: bool,
}

impl Outlet {
    pub(super) fn new(to: BorrowedFd<'static>, passage: Arc<Passage>) -> Outlet {
        let (clock, piece_bytes) = (Clock::start(), LEAST_PIECE);
        let has_log = pipe::is_same_file(to, stdio::outputs().1);
        Outlet { to, passage, clock, piece_bytes, has_log, unwritable: false, told: false }
    }

    /// Whether somebody may still read it.
    pub(super) fn pass_on(&mut self, mut bytes: &[u8]) -> bool {
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

    fn put(&mut self, bytes: &[u8]) -> bool {
        if self.unwritable {
            return true;
        }
        let is_begun = bytes.last().is_some_and(|last| *last != b'\n');
        if self.has_log && is_begun {
            // Rather a line too many than one that stands behind another.
            log::stands_behind(true);
        }
        let written = stdio::write_all(self.to.as_raw_fd(), bytes);
        if self.has_log {
            log::stands_behind(is_begun);
        }
        let Err(error) = written else { return true };
        if error.kind() == ErrorKind::BrokenPipe {
            return false;
        }
        // Our stream was closed when we were started.
        self.unwritable = error.raw_os_error() == Some(libc::EBADF);
        if !self.told {
            self.told = true;
            let kept = if self.unwritable { "the rest is dropped" } else { "a part is lost" };
            tracing::warn!("the trainer's output cannot be passed on, {kept}; training goes on: {error}");
        }
        true
    }
}

//! Our own standard output or standard error, as the place where a trainer's output goes on to.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::edge::stdio;

/// What is written at once: that a slow reader reads at all is to be seen soon.
const PIECE_BYTES: usize = 16 * 1024;

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
    /// Our stream takes nothing, ever.
    unwritable: bool,
    /// A lost piece of output was told of.
    told: bool,
}

impl Outlet {
    pub(super) fn new(to: BorrowedFd<'static>, passage: Arc<Passage>) -> Outlet {
        Outlet { to, passage, unwritable: false, told: false }
    }

    /// Whether somebody may still read it.
    pub(super) fn pass_on(&mut self, bytes: &[u8]) -> bool {
        bytes.chunks(PIECE_BYTES).all(|piece| {
            let is_read = !self.passage.closed.load(Ordering::Relaxed) && self.put(piece);
            self.passage.taken.fetch_add(1, Ordering::Relaxed);
            is_read
        })
    }

    fn put(&mut self, bytes: &[u8]) -> bool {
        if self.unwritable {
            return true;
        }
        let Err(error) = stdio::write_all(self.to.as_raw_fd(), bytes) else { return true };
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

//! Our own standard output or standard error, as the place where a trainer's output goes on to.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::edge::stdio;

/// Passes on for as long as somebody may read it.
#[derive(Debug)]
pub(super) struct Outlet {
    to: BorrowedFd<'static>,
    /// Our stream takes nothing, ever.
    unwritable: bool,
    /// A lost piece of output was told of.
    told: bool,
}

impl Outlet {
    pub(super) fn new(to: BorrowedFd<'static>) -> Outlet {
        Outlet { to, unwritable: false, told: false }
    }

    /// Whether somebody may still read it.
    pub(super) fn pass_on(&mut self, bytes: &[u8]) -> bool {
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

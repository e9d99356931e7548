//! Our own standard output or standard error, as the place where a trainer's output goes on to.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::edge::stdio;

/// Passes on until nobody reads any more; then the rest is dropped, and that is said once.
#[derive(Debug)]
pub(super) struct Outlet {
    to: BorrowedFd<'static>,
    /// Nobody reads our stream any more.
    unread: bool,
    /// A lost piece of output was told of.
    told: bool,
}

impl Outlet {
    pub(super) fn new(to: BorrowedFd<'static>) -> Outlet {
        Outlet { to, unread: false, told: false }
    }

    pub(super) fn pass_on(&mut self, bytes: &[u8]) {
        if self.unread {
            return;
        }
        if let Err(error) = stdio::write_all(self.to.as_raw_fd(), bytes) {
            self.unread = matches!(error.kind(), ErrorKind::BrokenPipe) || error.raw_os_error() == Some(libc::EBADF);
            if !self.told {
                self.told = true;
                let kept = if self.unread { "the rest is dropped" } else { "a part is lost" };
                tracing::warn!("the trainer's output cannot be passed on, {kept}; training goes on: {error}");
            }
        }
    }
}

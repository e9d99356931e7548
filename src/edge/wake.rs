//! A descriptor that another thread can make readable: how background work rings at the supervisor's poll.

#![expect(unsafe_code, reason = "eventfd and poll")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Both ends; clone it into the thread that rings.
#[derive(Debug, Clone)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    /// Errors: as eventfd(2).
    pub fn new() -> io::Result<Bell> {
        // SAFETY: the descriptor is ours alone.
        unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Bell(Arc::new(OwnedFd::from_raw_fd(fd))))
        }
    }

    /// Makes it readable.
    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes, alive for the call. A full counter is readable already.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Whether it is readable; it stays so.
    pub fn is_rung(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, alive for the call, which does not wait.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    /// Makes it quiet again.
    pub fn hush(&self) {
        let mut count = 0u64;
        // SAFETY: eight bytes, alive for the call.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

/// Whether a descriptor takes something now, or says at once why it does not.
pub fn is_writable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one pollfd, alive for the call, which does not wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) != 0 }
}

/// Rings when it is dropped: when a thread ends, by a panic too.
#[derive(Debug)]
pub struct Farewell(pub Bell);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.ring();
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Waits until one of the descriptors is readable (or hung up), or the time is over; `None` waits for ever.
pub fn wait_readable(fds: &[RawFd], timeout: Option<Duration>) {
    let mut polls: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    let pointer = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array and the time are alive for the call; no signal mask is given. EINTR is as good as a wake-up.
    unsafe { libc::ppoll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, pointer, std::ptr::null()) };
}

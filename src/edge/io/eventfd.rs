//! A descriptor that another thread makes readable, so that background work wakes the supervisor's poll.

#![expect(unsafe_code, reason = "descriptors that are given as numbers are borrowed for one poll")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll, ppoll};
use nix::sys::eventfd::{self, EfdFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// Both ends; clone it into the thread that notifies.
#[derive(Debug, Clone)]
pub struct EventFd(Arc<eventfd::EventFd>);

impl EventFd {
    /// Errors: as eventfd(2).
    pub fn new() -> io::Result<EventFd> {
        let fd = eventfd::EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(EventFd(Arc::new(fd)))
    }

    /// Makes it readable.
    pub fn notify(&self) {
        // A full counter is readable already.
        let _ = self.0.write(1);
    }

    /// Whether it is readable; it stays so.
    pub fn is_notified(&self) -> bool {
        poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
    }

    /// Makes it unreadable again.
    pub fn clear_notification(&self) {
        let _ = self.0.read();
    }
}

/// Whether a write to the descriptor returns at once, with success or an error.
pub fn is_writable(fd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::POLLOUT)], PollTimeout::ZERO) != Ok(0)
}

/// Notifies when it is dropped: when a thread ends, also by a panic.
#[derive(Debug)]
pub struct NotifyOnDrop(pub EventFd);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify();
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A timer descriptor that counts the time of a suspend, which the timeout of poll(2) does not.
#[derive(Debug)]
pub struct Alarm {
    /// `None`: the kernel or sandbox has no timerfd; the timeout of poll(2) is used alone.
    timer: Option<TimerFd>,
    is_set: bool,
}

impl Default for Alarm {
    /// Not set.
    fn default() -> Alarm {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Alarm { timer: TimerFd::new(ClockId::CLOCK_BOOTTIME, flags).ok(), is_set: false }
    }
}

impl Alarm {
    /// Sets it to expire after this time, or not at all. Returns the descriptor to poll.
    pub fn set(&mut self, left: Option<Duration>) -> Option<RawFd> {
        let timer = self.timer.as_ref()?;
        let left = left.filter(|left| !left.is_zero());
        if left.is_some() || self.is_set {
            // Setting it makes it unreadable.
            let _ = match left {
                Some(left) => timer.set(Expiration::OneShot(time_spec(left)), TimerSetTimeFlags::empty()),
                None => timer.unset(),
            };
            self.is_set = left.is_some();
        }
        self.is_set.then(|| timer.as_fd().as_raw_fd())
    }
}

/// Times beyond the range of the kernel become its longest.
fn time_spec(time: Duration) -> TimeSpec {
    TimeSpec::new(i64::try_from(time.as_secs()).unwrap_or(i64::MAX), time.subsec_nanos().into())
}

/// Waits until one of the descriptors, which are open, is readable (or hung up), or the time is over; `None` waits for
/// ever.
pub fn wait_readable(fds: &[RawFd], timeout: Option<Duration>) {
    // SAFETY: the caller keeps them open for the call.
    let fds = fds.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) });
    let mut polls: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    // EINTR is as good as a wake-up.
    let _ = ppoll(&mut polls, timeout.map(time_spec), None);
}

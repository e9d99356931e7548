//! The one clock. Everybody else is handed the time.

#![expect(clippy::disallowed_methods, reason = "this is the one place that asks")]
#![expect(unsafe_code, reason = "std knows no clock that counts from the boot")]

use std::time::{Duration, Instant, SystemTime};

/// Time since [`Clock::start`], monotonic.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// Starts counting.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Wall-clock time. For logs, file stamps and RFC 3339 only, never for deadlines.
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Clock ticks since boot, as /proc counts the starts of processes.
pub fn boot_ticks() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is alive for the call; the other call takes and gives integers.
    let per_second = unsafe {
        libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now);
        u64::try_from(libc::sysconf(libc::_SC_CLK_TCK)).unwrap_or(100)
    };
    now.tv_sec as u64 * per_second + now.tv_nsec as u64 * per_second / 1_000_000_000
}

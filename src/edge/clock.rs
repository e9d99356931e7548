//! The one clock. Everybody else is handed the time.

#![expect(clippy::disallowed_methods, reason = "this is the one place that asks")]

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

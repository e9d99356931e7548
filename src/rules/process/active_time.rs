//! A clock for timeouts that counts only the time in which this process ran. A process that is stopped (a frozen
//! container, a job that Slurm has suspended, SIGSTOP) receives no messages, so that time must not count as silence of
//! a peer.

use std::time::Duration;

/// A gap of this length between two readings means that the process was stopped. Callers read the clock much more
/// often.
pub const LATE: Duration = Duration::from_secs(10);

/// A clock that omits the time in which the process was stopped.
#[derive(Debug, Clone, Copy)]
pub struct ActiveTime {
    late: Duration,
    last_read: Duration,
    suspended: Duration,
}

impl Default for ActiveTime {
    fn default() -> ActiveTime {
        ActiveTime::new(LATE)
    }
}

impl ActiveTime {
    /// `late` must be longer than the caller's interval between two readings.
    pub fn new(late: Duration) -> ActiveTime {
        ActiveTime { late, last_read: Duration::ZERO, suspended: Duration::ZERO }
    }

    /// The active time at `now`, a reading of a monotonic clock.
    pub fn at(&mut self, now: Duration) -> Duration {
        let gap = now.saturating_sub(self.last_read);
        if gap > self.late {
            self.suspended += gap;
        }
        self.last_read = self.last_read.max(now);
        self.last_read.saturating_sub(self.suspended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn an_hour_between_two_readings_does_not_count_and_short_intervals_do() {
        let mut active = ActiveTime::default();
        let start = active.at(secs(3600));
        assert_eq!(active.at(secs(3605)) - start, secs(5));
        assert_eq!(active.at(secs(7200)) - start, secs(5));
        for at in (7205..=7300).step_by(5) {
            active.at(secs(at));
        }
        assert_eq!(active.at(secs(7300)) - start, secs(105));
        assert_eq!(active.at(secs(7000)) - start, secs(105), "the active time never decreases");
    }
}

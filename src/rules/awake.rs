//! Time as it counts for who waits for others. A process that stands still (a frozen container, a job that Slurm has
//! suspended, SIGSTOP) hears nobody, and what it did not hear meanwhile is nobody's silence.

use std::time::Duration;

/// Whoever waits looks much more often; who looks this late stood still.
pub const LATE: Duration = Duration::from_secs(10);

/// The time that has passed awake.
#[derive(Debug, Clone, Copy)]
pub struct Awake {
    late: Duration,
    looked: Duration,
    asleep: Duration,
}

impl Default for Awake {
    fn default() -> Awake {
        Awake::new(LATE)
    }
}

impl Awake {
    /// Between two looks of who waits there is less than `late`.
    pub fn new(late: Duration) -> Awake {
        Awake { late, looked: Duration::ZERO, asleep: Duration::ZERO }
    }

    /// How much that is, at this time of a clock. While nobody waits, and looks, none passes.
    pub fn at(&mut self, now: Duration) -> Duration {
        let gap = now.saturating_sub(self.looked);
        if gap > self.late {
            self.asleep += gap;
        }
        self.looked = self.looked.max(now);
        self.looked.saturating_sub(self.asleep)
    }

    /// The time that has not.
    pub fn asleep(&self) -> Duration {
        self.asleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn an_hour_in_which_nobody_looked_is_no_time_and_what_is_looked_at_is() {
        let mut awake = Awake::default();
        let begun = awake.at(secs(3600));
        assert_eq!(awake.at(secs(3605)) - begun, secs(5));
        let asleep = awake.asleep();
        assert_eq!((awake.at(secs(7200)) - begun, awake.asleep() > asleep), (secs(5), true));
        for at in (7205..=7300).step_by(5) {
            awake.at(secs(at));
        }
        assert_eq!(awake.at(secs(7300)) - begun, secs(105));
        assert_eq!(awake.at(secs(7000)) - begun, secs(105), "it never goes back");
    }
}

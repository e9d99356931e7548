//! The time of a replica, by cause.

use std::time::Duration;

use serde::Serialize;

/// The activity of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is its own word")]
pub enum Cause {
    /// From the start of its processes to its first step.
    Start,
    /// Within that time: fetching a checkpoint, by trainit's own verdict.
    Restore,
    /// Without processes.
    Waiting,
    /// Steps that no earlier life had reached.
    Training,
    /// Steps that an earlier life had reached.
    Repeated,
    /// Frozen, or after its last step.
    Stopped,
}

/// Seconds by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "each is its cause")]
pub struct Seconds {
    pub start: f64,
    pub restore: f64,
    pub waiting: f64,
    pub training: f64,
    pub repeated: f64,
    pub stopped: f64,
}

impl Seconds {
    fn of(&mut self, cause: Cause) -> &mut f64 {
        match cause {
            Cause::Start => &mut self.start,
            Cause::Restore => &mut self.restore,
            Cause::Waiting => &mut self.waiting,
            Cause::Training => &mut self.training,
            Cause::Repeated => &mut self.repeated,
            Cause::Stopped => &mut self.stopped,
        }
    }

    /// The sum.
    pub fn total(&self) -> f64 {
        self.start + self.restore + self.waiting + self.training + self.repeated + self.stopped
    }

    /// The share of productive time; `None` if the sum is zero.
    pub fn goodput(&self) -> Option<f64> {
        (self.total() > 0.0).then(|| self.training / self.total())
    }

    /// Adds the time of another replica.
    pub fn add(&mut self, other: &Seconds) {
        self.start += other.start;
        self.restore += other.restore;
        self.waiting += other.waiting;
        self.training += other.training;
        self.repeated += other.repeated;
        self.stopped += other.stopped;
    }
}

/// The account of one replica.
#[derive(Debug, Clone, Default)]
pub struct Account {
    seconds: Seconds,
    since: Duration,
}

impl Account {
    /// The time since the last entry belongs to this cause.
    pub fn record(&mut self, now: Duration, cause: Cause) {
        *self.seconds.of(cause) += now.saturating_sub(self.since).as_secs_f64();
        self.since = now;
    }

    /// Moves this many seconds from start to this cause.
    pub fn rebook_start(&mut self, seconds: f64, cause: Cause) {
        let seconds = seconds.clamp(0.0, self.seconds.start);
        self.seconds.start -= seconds;
        *self.seconds.of(cause) += seconds;
    }

    /// The sums so far.
    pub fn seconds(&self) -> Seconds {
        self.seconds
    }
}

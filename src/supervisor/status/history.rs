//! The history of a run, shared by the event loop and the threads that collect metrics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::edge::clock::{self, Clock};
use crate::rules::job::Uptime;
use crate::rules::job::goodput::{Cause, Goodput, Totals};

/// The history. A clone is the same history.
#[derive(Debug, Clone)]
pub(in crate::supervisor) struct History {
    clock: Clock,
    goodput: Arc<Mutex<Goodput>>,
}

impl History {
    /// An empty history.
    pub(in crate::supervisor) fn new(clock: Clock) -> History {
        History { clock, goodput: Arc::default() }
    }

    /// The state of the job has this cause from now on.
    pub(in crate::supervisor) fn enter(&self, now: Uptime, cause: Cause) {
        self.goodput().enter(now, cause);
    }

    /// The trainer reached this step at this time since 1970.
    pub(in crate::supervisor) fn step(&self, seconds_since_1970: f64, step: u64) {
        let wall = clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let age = std::time::Duration::try_from_secs_f64(wall - seconds_since_1970).unwrap_or_default();
        self.goodput().step(self.clock.now().saturating_sub(age), step);
    }

    /// When the heartbeat must be read.
    pub(in crate::supervisor) fn look_at(&self) -> Option<Uptime> {
        self.goodput().look_at()
    }

    /// The heartbeat was read.
    pub(in crate::supervisor) fn looked(&self, now: Uptime) {
        self.goodput().looked(now);
    }

    /// The time until now, by cause.
    pub(in crate::supervisor) fn totals(&self, now: Uptime) -> Totals {
        self.goodput().totals(now)
    }

    fn goodput(&self) -> MutexGuard<'_, Goodput> {
        self.goodput.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The alarms that are set, and which of them are due, earliest first.

use std::time::Duration;

use crate::rules::job::{Timer, Uptime};

/// Each with its time; one of a kind.
#[derive(Debug, Default)]
pub(super) struct Timers(Vec<(Timer, Uptime)>);

impl Timers {
    pub(super) fn arm(&mut self, timer: Timer, at: Uptime) {
        self.disarm(timer);
        self.0.push((timer, at));
    }

    pub(super) fn disarm(&mut self, timer: Timer) {
        self.0.retain(|(t, _)| *t != timer);
    }

    pub(super) fn next(&self) -> Option<Uptime> {
        self.0.iter().map(|(_, at)| *at).min()
    }

    pub(super) fn due(&mut self, now: Uptime) -> Vec<Timer> {
        let mut due: Vec<(Timer, Duration)> = self.0.iter().copied().filter(|(_, at)| *at <= now).collect();
        self.0.retain(|(_, at)| *at > now);
        due.sort_by_key(|(timer, at)| (*at, *timer));
        due.into_iter().map(|(timer, _)| timer).collect()
    }
}

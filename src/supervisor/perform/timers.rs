//! The armed timers, and those that are due, earliest first.

use std::time::Duration;

use crate::rules::job::{Timer, Uptime};

/// The pause after a scan of the process tree, as a multiple of the scan's length: a slow scan means many processes to
/// reap.
const REST: u32 = 4;
/// The longest pause: shorter than the time after which processes count as stuck.
const LONGEST_REST: Duration = Duration::from_millis(1500);

/// The armed timers with their times; at most one of each kind.
#[derive(Debug, Default)]
pub(in crate::supervisor) struct Timers {
    armed: Vec<(Timer, Uptime)>,
    /// The earliest time of the next scan of the tree.
    rest_until: Uptime,
}

impl Timers {
    pub(in crate::supervisor) fn arm(&mut self, timer: Timer, at: Uptime) {
        self.disarm(timer);
        let at = if timer == Timer::Sweep { at.max(self.rest_until) } else { at };
        self.armed.push((timer, at));
    }

    pub(in crate::supervisor) fn disarm(&mut self, timer: Timer) {
        self.armed.retain(|(t, _)| *t != timer);
    }

    /// Records when a scan of the tree began and ended.
    pub(in crate::supervisor) fn looked(&mut self, begin: Uptime, end: Uptime) {
        self.rest_until = end + (end.saturating_sub(begin) * REST).min(LONGEST_REST);
    }

    pub(in crate::supervisor) fn next(&self) -> Option<Uptime> {
        self.armed.iter().map(|(_, at)| *at).min()
    }

    pub(in crate::supervisor) fn due(&mut self, now: Uptime) -> Vec<Timer> {
        let mut due: Vec<(Timer, Duration)> = self.armed.iter().copied().filter(|(_, at)| *at <= now).collect();
        self.armed.retain(|(_, at)| *at > now);
        due.sort_by_key(|(timer, at)| (*at, *timer));
        due.into_iter().map(|(timer, _)| timer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_scan_of_the_tree_is_followed_by_a_pause_but_deadlines_are_not_delayed() {
        let ms = Duration::from_millis;
        let mut timers = Timers::default();
        timers.looked(ms(1000), ms(1100));
        timers.arm(Timer::Sweep, ms(1110));
        timers.arm(Timer::Grace, ms(1120));
        assert_eq!((timers.due(ms(1499)), timers.due(ms(1500))), (vec![Timer::Grace], vec![Timer::Sweep]));
    }
}

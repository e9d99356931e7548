//! Measures how long a save stops the training, from the times of steps: the steps around a save take longer than others.

use std::collections::VecDeque;
use std::time::Duration;

use crate::job::Uptime;

/// The reports of steps that are remembered.
const REPORTS: usize = 512;
/// Closer reports replace one another.
const GAP: Duration = Duration::from_millis(200);
/// Pairs of reports without a save between them, which show the usual time of a step.
const FREE: usize = 3;
/// The measurements that are remembered, and the saves that wait for a later step.
const SAMPLES: usize = 31;
const PENDING: usize = 8;

/// The steps of an attempt with their times, and the stalls so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Stalls {
    reports: VecDeque<(Uptime, u64)>,
    saves: VecDeque<u64>,
    /// The newest saves, also those that were measured.
    saved: VecDeque<u64>,
    samples: VecDeque<Duration>,
}

impl Stalls {
    /// A new attempt begins.
    pub(super) fn begin(&mut self) {
        self.reports.clear();
        self.saves.clear();
        self.saved.clear();
    }

    /// The trainer reached this step.
    pub(super) fn step(&mut self, at: Uptime, step: u64) {
        if self.reports.back().is_some_and(|(last_at, last)| step <= *last || at < *last_at) {
            return;
        }
        let count = self.reports.len();
        if count > 1 && self.reports[count - 1].0.saturating_sub(self.reports[count - 2].0) < GAP {
            self.reports.pop_back();
        }
        self.reports.push_back((at, step));
        if self.reports.len() > REPORTS {
            self.reports.pop_front();
        }
    }

    /// The trainer saved this step, some time ago.
    pub(super) fn saved(&mut self, step: u64) {
        self.measure();
        self.saves.push_back(step);
        self.saved.push_back(step);
        if self.saves.len() > PENDING {
            self.saves.pop_front();
        }
        if self.saved.len() > REPORTS {
            self.saved.pop_front();
        }
        self.measure();
    }

    /// The median stall of a save; `None`: no save was measured yet.
    pub(super) fn median(&self) -> Option<Duration> {
        let mut now = self.clone();
        now.measure();
        median(now.samples.into_iter().collect())
    }

    fn measure(&mut self) {
        let pairs = self.reports.iter().zip(self.reports.iter().skip(1));
        // With a save between any two reports, nothing shows how long a step takes without one.
        let is_free = |((_, first), (_, last)): &(&(Uptime, u64), &(Uptime, u64))| {
            !self.saved.iter().any(|save| (first..last).contains(&save))
        };
        let of_a_step = |((from, first), (to, last)): (&(Uptime, u64), &(Uptime, u64))| {
            (*to - *from).div_f64((last - first) as f64)
        };
        let free: Vec<Duration> = pairs.filter(is_free).map(of_a_step).collect();
        let Some(usual) = median(free.clone()).filter(|_| free.len() >= FREE) else { return };
        let mut left = VecDeque::new();
        for save in std::mem::take(&mut self.saves) {
            let after = self.reports.iter().position(|(_, step)| *step > save);
            match after {
                None => left.push_back(save),
                // The reports do not go back so far.
                Some(0) => {}
                Some(after) => {
                    let ((from, first), (to, last)) = (self.reports[after - 1], self.reports[after]);
                    self.samples.push_back((to - from).saturating_sub(usual.mul_f64((last - first) as f64)));
                    if self.samples.len() > SAMPLES {
                        self.samples.pop_front();
                    }
                }
            }
        }
        self.saves = left;
    }
}

/// The median; `None`: there are none.
pub(super) fn median(mut of: Vec<Duration>) -> Option<Duration> {
    of.sort_unstable();
    of.get(of.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of a tenth of a second, reported once a second, and a save of `stall` after each 100.
    fn stalls(stall: Duration) -> Stalls {
        let (mut stalls, mut now, mut reported) = (Stalls::default(), Duration::ZERO, Duration::ZERO);
        for step in 1..=1000 {
            now += Duration::from_millis(100);
            if now >= reported + Duration::from_secs(1) {
                reported = now;
                stalls.step(now, step);
            }
            if step % 100 == 0 {
                now += stall;
                stalls.saved(step);
            }
        }
        stalls
    }

    #[test]
    fn the_stall_is_the_time_beyond_that_of_usual_steps() {
        for millis in [0, 700, 5_000, 120_000] {
            let stall = Duration::from_millis(millis);
            let found = stalls(stall).median().expect("ten saves");
            assert!(found.abs_diff(stall) <= Duration::from_millis(200), "{stall:?}: {found:?}");
        }
    }

    #[test]
    fn reports_only_at_saves_measure_nothing() {
        let mut stalls = Stalls::default();
        for save in 1..=20 {
            stalls.step(Duration::from_secs(save), save * 10 + 1);
            stalls.saved(save * 10);
        }
        assert_eq!(stalls.median(), None);
    }

    #[test]
    fn a_save_that_no_later_step_follows_is_not_measured() {
        let mut stalls = Stalls::default();
        stalls.saved(5);
        assert_eq!(stalls.median(), None);
        stalls.step(Duration::from_secs(1), 1);
        stalls.step(Duration::from_secs(2), 2);
        assert_eq!(stalls.median(), None);
    }
}

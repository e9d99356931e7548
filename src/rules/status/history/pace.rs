//! The trainer's present step, and its steps a second over the last minute of the attempt.

use std::collections::VecDeque;
use std::time::Duration;

use crate::job::Uptime;

/// The time over which the pace is measured.
const WINDOW: Duration = Duration::from_secs(60);
/// Closer measurements replace one another.
const GAP: Duration = Duration::from_secs(1);

/// The steps of an attempt, with their times.
#[derive(Debug, Clone, Default)]
pub struct Pace(VecDeque<(Uptime, u64)>);

impl Pace {
    /// A new attempt begins.
    pub fn begin(&mut self) {
        self.0.clear();
    }

    /// The trainer reached this step. A lower one is ignored, because it may count something else, such as epochs.
    pub fn step(&mut self, at: Uptime, step: u64) {
        let Some(&(last_at, last)) = self.0.back() else { return self.0.push_back((at, step)) };
        if step <= last {
            return;
        }
        let is_close = self.0.len() > 1 && last_at.saturating_sub(self.0[self.0.len() - 2].0) < GAP;
        if is_close || at <= last_at {
            self.0.pop_back();
        }
        self.0.push_back((at.max(last_at), step));
        while self.0.len() > 2 && at.saturating_sub(self.0[0].0) > WINDOW {
            self.0.pop_front();
        }
    }

    /// The highest step of the attempt.
    pub fn last(&self) -> Option<u64> {
        self.0.back().map(|(_, step)| *step)
    }

    /// The steps a second; `None` before the second step.
    pub fn per_second(&self) -> Option<f64> {
        let ((from, first), (to, last)) = (self.0.front()?, self.0.back()?);
        let seconds = to.saturating_sub(*from).as_secs_f64();
        (seconds > 0.0).then(|| (last - first) as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pace(steps: impl IntoIterator<Item = (u64, u64)>) -> Pace {
        let mut pace = Pace::default();
        steps.into_iter().for_each(|(millis, step)| pace.step(Duration::from_millis(millis), step));
        pace
    }

    #[test]
    fn the_pace_is_that_of_the_last_minute() {
        let slow_then_fast = (0..100).map(|n| (n * 1000, n)).chain((0..300).map(|n| (100_000 + n * 1000, 100 + 5 * n)));
        let pace = pace(slow_then_fast);
        assert_eq!((pace.last(), pace.per_second()), (Some(1595), Some(5.0)));
    }

    #[test]
    fn many_steps_a_second_take_little_memory() {
        let pace = pace((0..100_000).map(|n| (n * 10, n)));
        assert!(pace.0.len() < 100, "{}", pace.0.len());
        assert!(pace.per_second().is_some_and(|pace| (99.0..101.0).contains(&pace)), "{:?}", pace.per_second());
    }

    #[test]
    fn one_step_has_no_pace_and_a_new_attempt_has_no_step() {
        let mut pace = pace([(0, 7), (10, 3)]);
        assert_eq!((pace.last(), pace.per_second()), (Some(7), None));
        pace.begin();
        assert_eq!((pace.last(), pace.per_second()), (None, None));
    }

    proptest! {
        #[test]
        fn any_times_and_steps_give_a_finite_pace(steps in prop::collection::vec((0u64..200_000, 0u64..1000), 0..200)) {
            let pace = pace(steps.iter().copied());
            prop_assert_eq!(pace.last(), steps.iter().map(|(_, step)| *step).max());
            prop_assert!(pace.per_second().is_none_or(|pace| pace.is_finite() && pace >= 0.0));
        }
    }
}

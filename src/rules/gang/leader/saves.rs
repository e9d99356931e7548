//! The step at which all ranks save after a notice, so that their checkpoints are of one step.
//!
//! The leader chooses it from the beats before there is a notice, and sends it with each echo. So the replica with the notice
//! has it at once, before its trainer is signalled, and passes it on with the notice.

use std::time::Duration;

use super::super::message::{SaveAt, millis};

/// A trainer reports its step once a second, and its agent reads it once a second; then the echo takes a moment.
const UNSEEN: Duration = Duration::from_secs(3);
/// The steps that a rank may be ahead of the newest report, or has begun.
const AHEAD: u64 = 2;

/// The speed of the training, from the newest step of all members.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Speed {
    /// The first report of this generation, and the newest.
    first: Option<(u64, Duration)>,
    newest: Option<(u64, Duration)>,
}

impl Speed {
    pub(super) fn note(&mut self, now: Duration, step: u64) {
        if self.newest.is_none_or(|(newest, _)| step > newest) {
            self.newest = Some((step, now));
            self.first.get_or_insert((step, now));
        }
    }

    /// The step at which all can save, if the notice comes before the next echo; `None`: the speed is not known.
    pub(super) fn save_at(&self, now: Duration, beat: Duration) -> Option<SaveAt> {
        let ((first, began), (newest, at)) = (self.first?, self.newest?);
        let (steps, took) = (newest.saturating_sub(first), at.saturating_sub(began));
        if steps == 0 || took.is_zero() {
            return None;
        }
        let steps_in = |time: Duration| (time.as_secs_f64() * steps as f64 / took.as_secs_f64()).ceil() as u64;
        let one = took.div_f64(steps as f64);
        let reserve = UNSEEN + beat;
        let step = newest + steps_in(now.saturating_sub(at) + reserve) + AHEAD;
        Some(SaveAt { step, within: millis(reserve + one.saturating_mul(AHEAD as u32 + 1)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Duration = Duration::from_secs(2);

    fn speed(steps: &[(u64, u64)]) -> Speed {
        let mut speed = Speed::default();
        steps.iter().for_each(|(ms, step)| speed.note(Duration::from_millis(*ms), *step));
        speed
    }

    #[test]
    fn the_step_is_ahead_of_every_rank_at_the_present_speed() {
        let ten_a_second = speed(&[(0, 100), (10_000, 200), (11_000, 190)]);
        let chosen = ten_a_second.save_at(Duration::from_millis(12_000), BEAT).expect("a step");
        assert_eq!(chosen, SaveAt { step: 200 + 20 + 50 + 2, within: 5_300 });
    }

    #[test]
    fn a_slow_step_takes_its_time_and_without_two_reports_there_is_no_step() {
        let one_a_minute = speed(&[(0, 5), (60_000, 6)]);
        let chosen = one_a_minute.save_at(Duration::from_millis(60_000), BEAT).expect("a step");
        assert_eq!(chosen, SaveAt { step: 6 + 1 + 2, within: 185_000 });
        assert_eq!(speed(&[(0, 5)]).save_at(BEAT, BEAT), None);
    }
}

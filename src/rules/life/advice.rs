//! How often to save: the interval of Young and Daly, sqrt(2 x stall x mean time between faults). A shorter one costs more
//! stalls, a longer one loses more steps at a fault.

use serde::Serialize;

use crate::text::quantity::{short_span, three_digits};

/// Without faults so far: one fault in this time for each of so many accelerators.
const PRIOR_SECONDS: f64 = 8.0 * 3600.0;
const PRIOR_ACCELERATORS: f64 = 1000.0;
/// A week.
const WEEK: f64 = 7.0 * 86_400.0;
/// A stall below this, in seconds, cannot be measured.
const LEAST_STALL: f64 = 0.01;
/// The share of the time that a change must save to be worth a line.
const WORTH: f64 = 0.001;

/// What is known about the saves of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Saves {
    /// The time for which a save stops the training, in seconds.
    pub stall: f64,
    /// The time between two saves now.
    pub interval: Option<f64>,
    /// The mean time between faults of the job.
    pub between_faults: f64,
}

/// The advice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// The best interval.
    pub save_interval_seconds: f64,
    /// The present one.
    pub present_interval_seconds: Option<f64>,
    /// The stall of a save.
    pub stall_seconds: f64,
    /// One sentence.
    pub text: String,
    /// Whether the change saves enough to be worth a line.
    #[serde(skip)]
    pub is_worth_it: bool,
}

/// The mean time between faults before two of them were seen.
pub fn prior(accelerators: u64) -> f64 {
    PRIOR_SECONDS * PRIOR_ACCELERATORS / accelerators.max(1) as f64
}

/// The best interval between two saves, in seconds.
pub fn best_interval(stall: f64, between_faults: f64) -> f64 {
    let stall = stall.max(LEAST_STALL);
    // Daly's condition: with fewer than two stalls between two faults, one save after each is all that fits.
    (2.0 * stall * between_faults).sqrt().max(stall)
}

impl Saves {
    /// The share of the time that saves at this interval cost, with the steps that faults lose.
    fn cost(&self, interval: f64) -> f64 {
        self.stall / interval + interval / 2.0 / self.between_faults
    }

    /// The advice for these saves.
    pub fn advice(&self) -> Advice {
        let known = Saves { stall: self.stall.max(LEAST_STALL), between_faults: self.between_faults.max(1.0), ..*self };
        let best = best_interval(known.stall, known.between_faults);
        let percent = |interval: f64| three_digits((100.0 * known.stall / interval).max(1e-6));
        let loses = |interval: f64| short_span(interval / 2.0);
        let gain = known.interval.map(|present| known.cost(present) - known.cost(best));
        let is_worth_it = gain.is_some_and(|gain| gain >= WORTH);
        let text = match known.interval {
            Some(present) if is_worth_it => format!(
                "saves every {} cost {} % and lose {} a fault; every {} would cost {} % and save {} a week",
                short_span(present),
                percent(present),
                loses(present),
                short_span(best),
                percent(best),
                short_span(gain.unwrap_or_default() * WEEK)
            ),
            Some(present) => format!(
                "saves every {} cost {} % and lose {} a fault, which is close to the best interval, {}",
                short_span(present),
                percent(present),
                loses(present),
                short_span(best)
            ),
            None => {
                format!(
                    "saves every {} would cost {} % and lose {} a fault",
                    short_span(best),
                    percent(best),
                    loses(best)
                )
            }
        };
        let rounded = |seconds: f64| (seconds * 1000.0).round() / 1000.0;
        Advice {
            save_interval_seconds: rounded(best),
            present_interval_seconds: known.interval.map(rounded),
            stall_seconds: rounded(self.stall),
            text,
            is_worth_it,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number from 0 to 1, the next of a sequence.
    fn random(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((*state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// The lost time of a life with exponential faults: stalls, and the work since the last save at each fault.
    fn lost(interval: f64, stall: f64, between_faults: f64) -> f64 {
        let (mut lost, mut state) = (0.0, 7);
        for _ in 0..20_000 {
            let left = -between_faults * random(&mut state).ln();
            let cycles = (left / (interval + stall)).floor();
            lost += cycles * stall + (left - cycles * (interval + stall));
        }
        lost
    }

    #[test]
    fn the_interval_loses_at_most_a_twentieth_more_than_the_best_that_a_search_finds() {
        for hours in [0.5, 1.0, 5.0, 50.0] {
            for stall in [1.0, 5.0, 30.0, 120.0] {
                let (between, own) = (hours * 3600.0, best_interval(stall, hours * 3600.0));
                let of_own = lost(own, stall, between);
                let searched = (1..=80).map(|n| own * 1.05_f64.powi(n - 40)).map(|it| lost(it, stall, between));
                let least = searched.fold(f64::MAX, f64::min);
                assert!(of_own <= 1.05 * least, "{hours} h, {stall} s: {of_own} and {least}");
            }
        }
    }

    #[test]
    fn the_sentence_names_both_intervals_and_what_the_change_saves() {
        let saves = Saves { stall: 7.0, interval: Some(1800.0), between_faults: 6.0 * 3600.0 };
        let advice = saves.advice();
        assert_eq!(advice.save_interval_seconds, 549.909);
        assert!(advice.is_worth_it);
        assert_eq!(
            advice.text,
            "saves every 30m cost 0.389 % and lose 15m a fault; every 9m 9s would cost 1.27 % and save 3h 22m a week"
        );
        let good = Saves { interval: Some(600.0), ..saves }.advice();
        assert!(!good.is_worth_it && good.text.contains("close to the best"), "{good:?}");
        assert!(Saves { interval: None, ..saves }.advice().text.starts_with("saves every 9m 9s would cost"));
    }

    #[test]
    fn more_accelerators_fail_more_often() {
        assert_eq!((prior(1000), prior(4000), prior(0)), (8.0 * 3600.0, 2.0 * 3600.0, 8000.0 * 3600.0));
    }
}

//! When a trainer is asked to save: at an interval, at a step that is ahead of every rank, so that all save the same step.

use std::time::Duration;

use super::advice::best_interval;
use crate::job::Uptime;
use crate::text::duration;

/// The first request if no save was measured yet.
const UNMEASURED: Duration = Duration::from_secs(600);
/// The shortest interval.
const SHORTEST: Duration = Duration::from_secs(1);
/// The pause between two looks at the step.
pub const LOOK: Duration = Duration::from_secs(1);
/// A trainer reports its step once a second, and trainit reads it once a second; then the file takes a moment.
const UNSEEN: Duration = Duration::from_secs(3);
/// The steps that a rank may be ahead of the newest report, or has begun.
const AHEAD: u64 = 2;

/// `--save-interval`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SaveInterval {
    /// The best interval for the measured stall and the faults so far.
    Auto,
    /// This one.
    Every(Duration),
    /// Saves may cost this share of the time.
    Share(f64),
}

/// What is known about the saves of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    /// The time for which a save stops the training.
    pub stall: Option<Duration>,
    /// The mean time between faults, in seconds.
    pub between_faults: f64,
}

/// The present step of the trainer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pace {
    /// The newest report.
    pub step: Option<u64>,
    /// Steps a second.
    pub per_second: Option<f64>,
}

/// The plan of one attempt.
#[derive(Debug, Clone)]
pub struct SavePlan {
    interval: SaveInterval,
    /// The replicas or ranks must save one step; the time that a request takes to reach all of them.
    reach: Option<Duration>,
    /// The last save, or the start of the attempt.
    last: Uptime,
    look_at: Uptime,
    /// The step of the last request that was not reached yet.
    pending: Option<u64>,
}

/// Reads the setting; `None`: off. Errors: the expected form, in one clause.
pub fn parse(text: &str) -> Result<Option<SaveInterval>, String> {
    let text = text.trim();
    let expected =
        || format!("expected auto, off, a duration such as 10m, or a share of the time such as 2%, found {text:?}");
    match text.strip_suffix('%') {
        None if text == "off" => Ok(None),
        None if text == "auto" => Ok(Some(SaveInterval::Auto)),
        None => match duration::parse(text) {
            Ok(every) if every >= SHORTEST => Ok(Some(SaveInterval::Every(every))),
            Ok(_) => Err(format!("expected at least 1s, found {text:?}")),
            Err(_) => Err(expected()),
        },
        Some(percent) => match percent.trim().parse::<f64>() {
            Ok(share) if share > 0.0 && share <= 50.0 => Ok(Some(SaveInterval::Share(share / 100.0))),
            _ => Err(expected()),
        },
    }
}

/// A step that no rank has passed when it learns of it. One process alone takes the next one; `reach`: the time until all ranks
/// know it.
pub fn step_ahead(pace: Pace, reach: Option<Duration>) -> Option<u64> {
    let newest = pace.step?;
    let Some(reach) = reach else { return Some(newest.saturating_add(1)) };
    let more = pace.per_second? * (UNSEEN + reach).as_secs_f64();
    Some(newest.saturating_add(more.ceil() as u64).saturating_add(AHEAD))
}

/// The step to save after a notice: ahead if there is the time, else at once.
pub fn step_after_notice(pace: Pace, reach: Option<Duration>, left: Duration) -> u64 {
    let ahead = step_ahead(pace, reach).filter(|step| {
        let steps = (step - pace.step.unwrap_or_default()) as f64;
        reach.is_none() || steps / pace.per_second.unwrap_or(f64::MIN_POSITIVE) < left.as_secs_f64() / 3.0
    });
    ahead.unwrap_or_else(|| pace.step.map_or(0, |step| step.saturating_add(1)))
}

impl SavePlan {
    /// A plan; see [`step_ahead`] for `reach`.
    pub fn new(interval: SaveInterval, reach: Option<Duration>) -> SavePlan {
        SavePlan { interval, reach, last: Uptime::ZERO, look_at: Uptime::ZERO, pending: None }
    }

    /// A new attempt begins.
    pub fn begin(&mut self, now: Uptime) {
        (self.last, self.look_at, self.pending) = (now, now + LOOK, None);
    }

    /// The trainer saved by itself, or on request.
    pub fn saved(&mut self, at: Uptime) {
        self.last = self.last.max(at);
    }

    /// When to look at the step next.
    pub fn look_at(&self) -> Uptime {
        self.look_at
    }

    /// Looks at the step. Returns the step at which to save, when a save is due.
    pub fn look(&mut self, now: Uptime, pace: Pace, measured: Measured) -> Option<u64> {
        self.look_at = now + LOOK;
        if let Some(pending) = self.pending {
            if pace.step.is_none_or(|step| step < pending) {
                return None;
            }
            (self.pending, self.last) = (None, self.last.max(now));
        }
        if now < self.last + self.pause(measured) {
            return None;
        }
        self.pending = step_ahead(pace, self.reach);
        self.pending
    }

    fn pause(&self, Measured { stall, between_faults }: Measured) -> Duration {
        let of = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 4).max(SHORTEST);
        match (self.interval, stall) {
            (SaveInterval::Every(every), _) => every,
            (_, None) => UNMEASURED,
            (SaveInterval::Auto, Some(stall)) => of(best_interval(stall.as_secs_f64(), between_faults)),
            (SaveInterval::Share(share), Some(stall)) => of(stall.as_secs_f64() / share),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pace(step: u64) -> Pace {
        Pace { step: Some(step), per_second: Some(10.0) }
    }

    /// The times in seconds at which saves are requested, of a trainer with ten steps a second.
    fn requests(interval: SaveInterval, measured: Measured, seconds: u32) -> Vec<u32> {
        let mut plan = SavePlan::new(interval, None);
        plan.begin(Uptime::ZERO);
        let due = |second: &u32| plan.look(SECOND * *second, pace(u64::from(*second) * 10), measured).is_some();
        (1..=seconds).filter(due).collect()
    }

    #[test]
    fn each_form_of_the_setting_is_read() {
        assert_eq!(parse(" auto"), Ok(Some(SaveInterval::Auto)));
        assert_eq!(parse("off"), Ok(None));
        assert_eq!(parse("10m"), Ok(Some(SaveInterval::Every(600 * SECOND))));
        assert_eq!(parse("2%"), Ok(Some(SaveInterval::Share(0.02))));
        for wrong in ["", "%", "0%", "-1%", "60%", "500ms", "often", "NaN%"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_save_is_requested_at_the_interval_after_the_last_one() {
        let measured = Measured { stall: Some(SECOND), between_faults: 1800.0 };
        assert_eq!(requests(SaveInterval::Every(20 * SECOND), measured, 65), [20, 41, 62]);
        assert_eq!(requests(SaveInterval::Auto, measured, 125), [60, 121]);
        assert_eq!(requests(SaveInterval::Share(0.05), measured, 45), [20, 41]);
        assert_eq!(requests(SaveInterval::Auto, Measured { stall: None, ..measured }, 700), [600]);
    }

    #[test]
    fn a_save_of_the_trainers_own_moves_the_next_request() {
        let mut plan = SavePlan::new(SaveInterval::Every(20 * SECOND), None);
        plan.begin(Uptime::ZERO);
        plan.saved(15 * SECOND);
        assert_eq!(plan.look(20 * SECOND, pace(200), Measured::default()), None);
        assert_eq!(plan.look(35 * SECOND, pace(350), Measured::default()), Some(351));
        assert_eq!(plan.look(60 * SECOND, pace(350), Measured::default()), None, "it was not reached yet");
    }

    #[test]
    fn several_ranks_save_a_step_that_none_has_passed() {
        let reach = Some(2 * SECOND);
        assert_eq!(step_ahead(pace(100), reach), Some(152));
        assert_eq!(step_ahead(Pace { per_second: None, ..pace(100) }, reach), None);
        assert_eq!(step_after_notice(pace(100), reach, 30 * SECOND), 152);
        assert_eq!(step_after_notice(pace(100), reach, 3 * SECOND), 101, "there is no time");
        assert_eq!(step_after_notice(pace(100), None, SECOND), 101);
        assert_eq!(step_after_notice(Pace::default(), reach, 30 * SECOND), 0);
    }
}

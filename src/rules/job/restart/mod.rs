//! Decides whether a crashed attempt is followed by another one.

use std::time::Duration;

use super::policy::Policy;
use crate::process::exit::{End, Prospect, prospect};

/// An attempt that failed sooner than this without a new checkpoint looks like a crash loop.
const QUICK: Duration = Duration::from_secs(60);
/// This many quick failures in a row end the job.
const QUICK_LIMIT: u32 = 3;
/// A trainer that ran this long before it failed is restarted at once.
const HEALTHY: Duration = Duration::from_secs(600);
/// A death this soon after a resume may be the checkpoint's fault.
const SUSPECT_WITHIN: Duration = Duration::from_secs(300);
/// After this many such deaths with the same checkpoint trainit falls back to an older one.
const SUSPECT_LIMIT: u32 = 2;

/// A failed attempt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure {
    pub(super) end: End,
    pub(super) oom: bool,
    /// trainit ended it because it showed no sign of life.
    pub(super) hung: bool,
    /// The time from exec to the end.
    pub(super) lasted: Duration,
    /// The step that the next attempt would resume from, if the checkpoint's format, `--step-regex` or a heartbeat has
    /// it.
    pub(super) step: Option<u64>,
    /// It resumed from a checkpoint, and committed nothing new.
    pub(super) without_progress: bool,
    /// It committed something new.
    pub(super) with_progress: bool,
}

impl Failure {
    fn name(&self) -> String {
        match self {
            Failure { hung: true, .. } => "hung".to_owned(),
            Failure { oom: true, .. } => "out of memory".to_owned(),
            Failure { end, .. } => end.to_string(),
        }
    }

    /// By SIGKILL from outside. The code counts, because a shell around the trainer turns the signal into a code.
    fn is_killed_from_outside(&self) -> bool {
        prospect(self.end.code()) == Prospect::Killed && !self.oom && !self.hung
    }

    /// Whether the trainer asks for a restart, or its failure is transient. The checkpoint is not to blame, however
    /// often this happens at one step.
    fn is_transient(&self) -> bool {
        let prospect = prospect(self.end.code());
        !self.oom && !self.hung && matches!(prospect, Prospect::Asked | Prospect::Transient)
    }
}

/// The decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// Restart after this pause.
    Restart(Duration),
    /// Restart after this pause, from an older checkpoint if there is one.
    FallBack(Duration),
    /// Do not restart; the clause says why.
    GiveUp(String),
}

/// The history of attempts.
#[derive(Debug, Clone, Default)]
pub(super) struct RestartBudget {
    /// All restarts.
    restarts: u32,
    /// Restarts since the last progress.
    used: u32,
    quick_failures: u32,
    last: Option<(String, Option<u64>)>,
    /// Failures that get only one retry, since the last progress.
    retried: Vec<String>,
    /// Deaths soon after resuming from the same checkpoint.
    suspect_failures: u32,
    fell_back: bool,
    /// The store has an older commit to fall back to.
    has_older: bool,
    /// There was progress since the last failure.
    has_progressed: bool,
    best_step: Option<u64>,
    /// The highest step before the fallback to an older checkpoint.
    step_before_fallback: Option<u64>,
    /// The highest step in a heartbeat.
    best_heartbeat_step: Option<u64>,
}

impl RestartBudget {
    /// A commit has new content: refills the budget, for any step.
    pub(super) fn progressed(&mut self, step: Option<u64>) {
        self.best_step = self.best_step.max(step);
        self.refill();
    }

    /// Whether the store has an older commit than the newest.
    pub(super) fn note_older_commit(&mut self, is_there: bool) {
        self.has_older |= is_there;
    }

    fn refill(&mut self) {
        *self = RestartBudget {
            // Only one fallback until a step beyond its starting point is known. Otherwise the job could alternate for
            // ever.
            fell_back: self.fell_back && self.best_step <= self.step_before_fallback,
            has_older: self.has_older,
            step_before_fallback: self.step_before_fallback,
            best_step: self.best_step,
            best_heartbeat_step: self.best_heartbeat_step,
            restarts: self.restarts,
            has_progressed: true,
            ..RestartBudget::default()
        };
    }

    /// A heartbeat has this step. A new highest step is progress, too.
    pub(super) fn heartbeat_step(&mut self, step: Option<u64>) {
        if step > self.best_heartbeat_step {
            self.best_heartbeat_step = step;
            self.refill();
        }
    }

    /// Restarts since the last progress.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// The step of the first attempt is known.
    pub(super) fn starts_from(&mut self, step: Option<u64>) {
        self.best_step = self.best_step.max(step);
    }

    /// The next attempt resumes from an older checkpoint.
    pub(super) fn fell_back_to(&mut self, step: Option<u64>) {
        self.step_before_fallback = self.step_before_fallback.max(self.best_step);
        self.best_step = step;
    }

    /// Decides about `failure`. Call `progressed` for its commits first.
    pub(super) fn decide(&mut self, policy: &Policy, failure: Failure) -> Decision {
        if policy.max_restarts == 0 {
            return Decision::GiveUp(String::new());
        }
        if let End::Code(code) = failure.end
            && prospect(code) == Prospect::Permanent
            && !failure.hung
        {
            return Decision::GiveUp(format!("a restart does not help against exit code {code}"));
        }
        let outside = failure.is_killed_from_outside();
        let asks = matches!(failure.end, End::Code(code) if prospect(code) == Prospect::Asked);
        let is_suspect =
            failure.without_progress && failure.lasted < SUSPECT_WITHIN && !outside && !failure.is_transient();
        self.suspect_failures = if is_suspect { self.suspect_failures + 1 } else { 0 };
        let may_fall_back = !self.fell_back && self.used < policy.max_restarts;
        let falls_back = self.suspect_failures >= SUSPECT_LIMIT && may_fall_back;
        // The first death after a new checkpoint does not prove that the checkpoint is bad; a second one does.
        let is_open = is_suspect && self.has_older && may_fall_back;
        let this = (failure.name(), failure.step);
        let again = self.last.replace(this.clone()).as_ref() == Some(&this);
        if falls_back {
            self.fell_back = true;
            return Decision::FallBack(self.pause(policy, failure.lasted, asks));
        }
        if again
            && !is_open
            && let Some(step) = failure.step.filter(|_| !outside && !failure.is_transient() && !failure.with_progress)
        {
            return Decision::GiveUp(format!(
                "it failed the same way ({}) twice at step {step}, so another attempt would fail, too",
                this.0
            ));
        }
        if let Some(why) = self.used_its_only_retry(failure) {
            return Decision::GiveUp(why);
        }
        self.quick_failures = if failure.lasted < QUICK && !self.has_progressed { self.quick_failures + 1 } else { 0 };
        if self.quick_failures >= QUICK_LIMIT && self.used > 0 {
            return Decision::GiveUp(format!(
                "{} failures in a row within {} s of the start",
                self.quick_failures,
                QUICK.as_secs()
            ));
        }
        if self.used >= policy.max_restarts {
            return Decision::GiveUp(budget_used_up(policy));
        }
        Decision::Restart(self.pause(policy, failure.lasted, asks))
    }

    /// Decides about a failed start with a transient cause. It is not a crash, so only the budget limits it.
    pub(super) fn decide_start(&mut self, policy: &Policy) -> Decision {
        if policy.max_restarts == 0 {
            return Decision::GiveUp(String::new());
        }
        if self.used >= policy.max_restarts {
            return Decision::GiveUp(budget_used_up(policy));
        }
        Decision::Restart(self.pause(policy, Duration::ZERO, false))
    }

    fn used_its_only_retry(&mut self, failure: Failure) -> Option<String> {
        let name = failure.name();
        if !(failure.oom || prospect(failure.end.code()) == Prospect::Once && !failure.hung) {
            return None;
        }
        if !self.retried.contains(&name) {
            self.retried.push(name);
            return None;
        }
        Some(format!("{name} twice without progress"))
    }

    /// Counts the restart and returns the pause before it: doubled each time, varied by up to 20 %, so that a thousand
    /// jobs that died of one cause do not restart at the same time. `asks`: the trainer asks for the restart.
    fn pause(&mut self, policy: &Policy, lasted: Duration, asks: bool) -> Duration {
        let has_progressed = std::mem::take(&mut self.has_progressed);
        self.restarts += 1;
        if self.used == 0 && lasted >= HEALTHY {
            self.used = 1;
            return Duration::ZERO;
        }
        let backoff = policy.backoff_first.saturating_mul(1u32.checked_shl(self.used.min(16)).unwrap_or(u32::MAX));
        if !(asks && has_progressed) {
            self.used += 1;
        }
        let pause = backoff.min(policy.backoff_max);
        policy.seed.map_or(pause, |seed| pause.mul_f64(0.8 + 0.4 * fraction(seed, self.restarts)))
    }
}

fn budget_used_up(policy: &Policy) -> String {
    format!("the restart budget ({}) is used up", policy.max_restarts)
}

/// A pseudo-random number from 0 to 1: SplitMix64 of the seed and a count.
fn fraction(seed: u64, count: u32) -> f64 {
    let mut z = seed.wrapping_add(u64::from(count).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;

//! Whether a crashed attempt is worth another one.

use std::time::Duration;

use super::policy::Policy;
use crate::rules::exit::{self, End};

/// An attempt that failed sooner than this, without a new checkpoint, looks like a crash loop.
const QUICK: Duration = Duration::from_secs(60);
/// So many quick failures in a row end it.
const QUICK_LIMIT: u32 = 3;
/// Wrong usage, as most programs report it.
const USAGE: u8 = 2;
/// What TensorFlow's preemption handler leaves with: it saved and asks for a restart.
const ASKS_FOR_RESTART: [u8; 2] = [42, exit::STOPPED];
/// What passes: EX_TEMPFAIL, and SIGINT from somebody else.
const PASSES: [u8; 2] = [75, 130];
/// ILL, BUS and FPE come from the program or from a full disk; a second time they come from the program.
const ONCE: [u8; 3] = [132, 135, 136];
const BUS: u8 = 135;
/// By SIGKILL: as a shell says it, and as Composer's launcher does, which leaves with Python's -9.
const KILLED: [u8; 2] = [137, 247];
/// A trainer that ran for so long before it failed is started again at once.
const HEALTHY: Duration = Duration::from_secs(600);
/// Dead so soon after going on from a checkpoint, it may be the checkpoint's fault.
const POISONED: Duration = Duration::from_secs(300);
/// So often from the same one.
const POISONED_LIMIT: u32 = 2;

/// A failed attempt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure {
    pub(super) end: End,
    pub(super) oom: bool,
    /// We ended it because it showed no sign of life.
    pub(super) hung: bool,
    /// From exec to the end.
    pub(super) lasted: Duration,
    /// The newest step there is to go on from.
    pub(super) step: Option<u64>,
    /// It went on from a checkpoint, and there is still no newer one.
    pub(super) stuck: bool,
    /// There is another checkpoint than the one it went on from.
    pub(super) saved: bool,
}

impl Failure {
    fn name(&self) -> String {
        match self {
            Failure { hung: true, .. } => "hung".to_owned(),
            Failure { oom: true, .. } => "out of memory".to_owned(),
            Failure { end, .. } => end.to_string(),
        }
    }

    /// By its exit code: a shell around the trainer passes the signal on as a code.
    fn is_killed_from_outside(&self) -> bool {
        KILLED.contains(&self.end.code()) && !self.oom && !self.hung
    }

    /// Whether another try is asked for, or may end otherwise, however often it came at this step: no checkpoint is to blame.
    fn is_passing(&self) -> bool {
        let code = self.end.code();
        !self.oom && !self.hung && (ASKS_FOR_RESTART.contains(&code) || PASSES.contains(&code))
    }
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Start again after this pause.
    After(Duration),
    /// The same after this pause, but from an older checkpoint, if there is one.
    Older(Duration),
    /// Give up; the clause says why.
    No(String),
}

/// What is remembered from attempt to attempt.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    /// Restarts in all.
    restarts: u32,
    /// Those since the last progress.
    used: u32,
    quick: u32,
    last: Option<(String, Option<u64>)>,
    /// Failures that are tried once more only, since the last progress.
    once: Vec<String>,
    /// Deaths soon after going on from the same checkpoint.
    poisoned: u32,
    fell_back: bool,
    /// This run made one checkpoint after another, or several lie there: there is an older one to go back to.
    has_older: bool,
    /// There was progress since the last failure.
    fresh: bool,
    best_step: Option<u64>,
    /// The best step before an older checkpoint was gone back to.
    peak: Option<u64>,
    /// The highest step that a heartbeat named.
    best_beat: Option<u64>,
}

impl Memory {
    /// A checkpoint was seen or committed: a newer one than any before refills the budget.
    pub(super) fn progressed(&mut self, step: Option<u64>) {
        if step > self.best_step {
            self.has_older |= self.best_step.is_some();
            self.best_step = step;
            self.refill();
        }
    }

    /// Whether another lies beside the newest: an attempt may have made several between two looks, or without a store none
    /// that was heard of.
    pub(super) fn sees_older(&mut self, is_there: bool) {
        self.has_older |= is_there;
    }

    fn refill(&mut self) {
        *self = Memory {
            // Once, until training is beyond where it went back from: else it might go to and fro for ever.
            fell_back: self.fell_back && self.best_step <= self.peak,
            has_older: self.has_older,
            peak: self.peak,
            best_step: self.best_step,
            best_beat: self.best_beat,
            restarts: self.restarts,
            fresh: true,
            ..Memory::default()
        };
    }

    /// A heartbeat named this step: one above any before is progress, too.
    pub(super) fn beaten(&mut self, step: Option<u64>) {
        if step > self.best_beat {
            self.best_beat = step;
            self.refill();
        }
    }

    /// Restarts since the last progress.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// The step to start from is known: what is there already is no progress.
    pub(super) fn starts_from(&mut self, step: Option<u64>) {
        self.best_step = self.best_step.max(step);
    }

    /// The next attempt goes on from an older checkpoint, and what is newer than that is progress.
    pub(super) fn goes_back_to(&mut self, step: Option<u64>) {
        self.peak = self.peak.max(self.best_step);
        self.best_step = step;
    }

    /// Whether to restart after `failure`. `progressed` must have been told of its step first.
    pub(super) fn judge(&mut self, policy: &Policy, failure: Failure) -> Answer {
        if policy.max_restarts == 0 {
            return Answer::No(String::new());
        }
        // Where no step tells, only time does: a trainer may save what it went on from again at once, and crash on.
        if failure.saved && failure.step.is_none() && failure.lasted >= HEALTHY {
            self.refill();
        }
        if let End::Code(code @ (USAGE | exit::NOT_STARTED | exit::NOT_EXECUTABLE | exit::NOT_FOUND)) = failure.end
            && !failure.hung
        {
            return Answer::No(format!("exit code {code} is one that a restart does not cure"));
        }
        let outside = failure.is_killed_from_outside();
        let asks = matches!(failure.end, End::Code(code) if ASKS_FOR_RESTART.contains(&code));
        let is_suspect = failure.stuck && failure.lasted < POISONED && !outside && !failure.is_passing();
        self.poisoned = if is_suspect { self.poisoned + 1 } else { 0 };
        let may_fall_back = !self.fell_back && self.used < policy.max_restarts;
        let falls_back = self.poisoned >= POISONED_LIMIT && may_fall_back;
        // The death after which the checkpoint was new says nothing of it; a second one from it does.
        let is_open = is_suspect && self.has_older && may_fall_back;
        let this = (failure.name(), failure.step);
        let again = self.last.replace(this.clone()).as_ref() == Some(&this);
        if falls_back {
            self.fell_back = true;
            return Answer::Older(self.pause(policy, failure.lasted, asks));
        }
        if again
            && !is_open
            && let Some(step) = failure.step.filter(|_| !outside && !failure.is_passing())
        {
            return Answer::No(format!(
                "it failed the same way ({}) twice at step {step}, so another attempt would, too",
                this.0
            ));
        }
        if let Some(why) = self.is_once_too_often(failure) {
            return Answer::No(why);
        }
        self.quick = if failure.lasted < QUICK && !self.fresh { self.quick + 1 } else { 0 };
        if self.quick >= QUICK_LIMIT && self.used > 0 {
            return Answer::No(format!("{} failures in a row within {} s of the start", self.quick, QUICK.as_secs()));
        }
        if self.used >= policy.max_restarts {
            return Answer::No(spent(policy));
        }
        Answer::After(self.pause(policy, failure.lasted, asks))
    }

    /// Whether to try again to start what could not be started for a cause that passes: it is no crash, only the budget
    /// ends it.
    pub(super) fn judge_start(&mut self, policy: &Policy) -> Answer {
        if policy.max_restarts == 0 {
            return Answer::No(String::new());
        }
        if self.used >= policy.max_restarts {
            return Answer::No(spent(policy));
        }
        Answer::After(self.pause(policy, Duration::ZERO, false))
    }

    fn is_once_too_often(&mut self, failure: Failure) -> Option<String> {
        let name = failure.name();
        if !(failure.oom || ONCE.contains(&failure.end.code()) && !failure.hung) {
            return None;
        }
        if !self.once.contains(&name) {
            self.once.push(name);
            return None;
        }
        let is_bus = failure.end.code() == BUS && !failure.oom;
        let hint = if is_bus {
            "; a full /dev/shm does that: give the container more of it (docker run --shm-size)"
        } else {
            ""
        };
        Some(format!("{name} twice without progress{hint}"))
    }

    /// Counts the restart, and says how long to wait for it: doubled each time, up to a fifth more or less, so that a
    /// thousand jobs that died of one cause do not come back at one instant. `asks`: the trainer wants the restart.
    fn pause(&mut self, policy: &Policy, lasted: Duration, asks: bool) -> Duration {
        let fresh = std::mem::take(&mut self.fresh);
        self.restarts += 1;
        if self.used == 0 && lasted >= HEALTHY {
            self.used = 1;
            return Duration::ZERO;
        }
        let doubled = policy.backoff_first.saturating_mul(1u32.checked_shl(self.used.min(16)).unwrap_or(u32::MAX));
        if !(asks && fresh) {
            self.used += 1;
        }
        let pause = doubled.min(policy.backoff_max);
        policy.seed.map_or(pause, |seed| pause.mul_f64(0.8 + 0.4 * fraction(seed, self.restarts)))
    }
}

fn spent(policy: &Policy) -> String {
    format!("the restart budget ({}) is spent", policy.max_restarts)
}

/// From 0 to 1, as good as random: SplitMix64 of the seed and a count.
fn fraction(seed: u64, count: u32) -> f64 {
    let mut z = seed.wrapping_add(u64::from(count).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;

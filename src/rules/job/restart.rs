//! Whether a crashed attempt is worth another one (product page section 3.5, contracts/checkpoints.md section 8).

use std::time::Duration;

use super::policy::Policy;
use crate::rules::exit::{self, End};
use crate::rules::signal::Signal;

/// An attempt that failed sooner than this, without a new checkpoint, looks like a crash loop.
const QUICK: Duration = Duration::from_secs(60);
/// So many quick failures in a row end it.
const QUICK_LIMIT: u32 = 3;
/// Wrong usage, as most programs report it.
const USAGE: u8 = 2;

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
}

impl Failure {
    fn name(&self) -> String {
        match self {
            Failure { hung: true, .. } => "hung".to_owned(),
            Failure { oom: true, .. } => "out of memory".to_owned(),
            Failure { end, .. } => end.to_string(),
        }
    }
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Start again after this pause.
    After(Duration),
    /// Give up; the clause says why.
    No(String),
}

/// What is remembered from attempt to attempt.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    /// Restarts since the last progress.
    used: u32,
    quick: u32,
    last: Option<(String, Option<u64>)>,
    best_step: Option<u64>,
    /// The highest step that a heartbeat named.
    best_beat: Option<u64>,
}

impl Memory {
    /// A checkpoint was seen or committed: a newer one than any before refills the budget.
    pub(super) fn progressed(&mut self, step: Option<u64>) {
        if step > self.best_step {
            self.best_step = step;
            self.used = 0;
            self.quick = 0;
        }
    }

    /// A heartbeat named this step: one above any before is progress, too.
    pub(super) fn beaten(&mut self, step: Option<u64>) {
        if step > self.best_beat {
            self.best_beat = step;
            self.used = 0;
            self.quick = 0;
            self.last = None;
        }
    }

    /// The step to start from is known: what is there already is no progress.
    pub(super) fn starts_from(&mut self, step: Option<u64>) {
        self.best_step = self.best_step.max(step);
    }

    /// Whether to restart after `failure`. `progressed` must have been told of its step first.
    pub(super) fn judge(&mut self, policy: &Policy, failure: Failure) -> Answer {
        if policy.max_restarts == 0 {
            return Answer::No(String::new());
        }
        if let End::Code(code @ (USAGE | exit::NOT_STARTED | exit::NOT_EXECUTABLE | exit::NOT_FOUND)) = failure.end
            && !failure.hung
        {
            return Answer::No(format!("exit code {code} is one that a restart does not cure"));
        }
        let killed_from_outside = failure.end == End::Signal(Signal::KILL) && !failure.oom && !failure.hung;
        let this = (failure.name(), failure.step);
        let again = self.last.replace(this.clone()).as_ref() == Some(&this);
        if again && failure.step.is_some() && !killed_from_outside {
            return Answer::No(format!("the same failure ({}) twice at step {}", this.0, failure.step.unwrap_or(0)));
        }
        if again && failure.oom {
            return Answer::No("out of memory twice without progress".to_owned());
        }
        self.quick = if failure.lasted < QUICK { self.quick + 1 } else { 0 };
        if self.quick >= QUICK_LIMIT && self.used > 0 {
            return Answer::No(format!("{} failures in a row within {} s of the start", self.quick, QUICK.as_secs()));
        }
        if self.used >= policy.max_restarts {
            return Answer::No(format!("the restart budget ({}) is spent", policy.max_restarts));
        }
        let doubled = policy.backoff_first.saturating_mul(1u32.checked_shl(self.used.min(16)).unwrap_or(u32::MAX));
        self.used += 1;
        Answer::After(doubled.min(policy.backoff_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(max_restarts: u32) -> Policy {
        Policy { max_restarts, ..Policy::default() }
    }

    fn crash(code: u8, step: Option<u64>, seconds: u64) -> Failure {
        Failure { end: End::Code(code), oom: false, hung: false, lasted: Duration::from_secs(seconds), step }
    }

    fn after(answer: Answer) -> u64 {
        match answer {
            Answer::After(pause) => pause.as_secs(),
            Answer::No(why) => panic!("{why}"),
        }
    }

    #[test]
    fn the_pause_doubles_up_to_its_maximum() {
        let (policy, mut memory) = (policy(20), Memory::default());
        let pauses: Vec<u64> = (0..8).map(|n| after(memory.judge(&policy, crash(n + 10, None, 100)))).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn two_restarts_mean_at_most_three_starts() {
        let (policy, mut memory) = (policy(2), Memory::default());
        after(memory.judge(&policy, crash(1, None, 100)));
        after(memory.judge(&policy, crash(3, None, 100)));
        assert!(matches!(memory.judge(&policy, crash(4, None, 100)), Answer::No(why) if why.contains("budget")));
    }

    #[test]
    fn a_newer_checkpoint_refills_the_budget_and_an_old_one_does_not() {
        let (policy, mut memory) = (policy(1), Memory::default());
        memory.starts_from(Some(10));
        after(memory.judge(&policy, crash(1, Some(10), 100)));
        memory.progressed(Some(15));
        assert_eq!(after(memory.judge(&policy, crash(1, Some(15), 100))), 1);
        memory.progressed(Some(15));
        assert!(matches!(memory.judge(&policy, crash(9, Some(15), 100)), Answer::No(_)));
    }

    #[test]
    fn the_same_failure_twice_at_one_step_is_not_tried_a_third_time() {
        let (policy, mut memory) = (policy(5), Memory::default());
        after(memory.judge(&policy, crash(1, Some(10), 100)));
        assert!(matches!(memory.judge(&policy, crash(1, Some(10), 100)), Answer::No(why) if why.contains("step 10")));
    }

    #[test]
    fn being_killed_from_outside_twice_at_one_step_is_no_failure_of_the_program() {
        let (policy, mut memory) = (policy(5), Memory::default());
        let killed = Failure { end: End::Signal(Signal::KILL), ..crash(0, Some(10), 100) };
        after(memory.judge(&policy, killed));
        after(memory.judge(&policy, killed));
    }

    #[test]
    fn out_of_memory_is_tried_once_more_and_no_further() {
        let (policy, mut memory) = (policy(5), Memory::default());
        let oom = Failure { end: End::Signal(Signal::KILL), oom: true, ..crash(0, None, 100) };
        after(memory.judge(&policy, oom));
        assert!(matches!(memory.judge(&policy, oom), Answer::No(why) if why.contains("memory")));
    }

    #[test]
    fn three_quick_failures_without_a_checkpoint_are_a_crash_loop() {
        let (policy, mut memory) = (policy(50), Memory::default());
        after(memory.judge(&policy, crash(7, None, 1)));
        after(memory.judge(&policy, crash(7, None, 1)));
        assert!(matches!(memory.judge(&policy, crash(7, None, 1)), Answer::No(why) if why.contains("in a row")));
    }

    #[test]
    fn what_a_restart_cannot_cure_is_not_restarted() {
        for code in [2, 125, 126, 127] {
            let answer = Memory::default().judge(&policy(5), crash(code, None, 100));
            assert!(matches!(answer, Answer::No(why) if why.contains(&code.to_string())));
        }
    }
}

//! Whether a crashed attempt is worth another one (product page section 3.5, contracts/checkpoints.md section 8).

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
const KILLED: u8 = 137;
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
        self.end.code() == KILLED && !self.oom && !self.hung
    }

    /// Whether another try is asked for, or may end otherwise, however often it came at this step.
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
            self.best_step = step;
            self.refill();
        }
    }

    fn refill(&mut self) {
        *self = Memory {
            // Once, until training is beyond where it went back from: else it might go to and fro for ever.
            fell_back: self.fell_back && self.best_step <= self.peak,
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
        let is_suspect = failure.stuck && failure.lasted < POISONED && !outside;
        self.poisoned = if is_suspect { self.poisoned + 1 } else { 0 };
        let falls_back = self.poisoned >= POISONED_LIMIT && !self.fell_back && self.used < policy.max_restarts;
        let this = (failure.name(), failure.step);
        let again = self.last.replace(this.clone()).as_ref() == Some(&this);
        if falls_back {
            self.fell_back = true;
            return Answer::Older(self.pause(policy, failure.lasted, asks));
        }
        if again && let Some(step) = failure.step.filter(|_| !outside && !failure.is_passing()) {
            return Answer::No(format!("the same failure ({}) twice at step {step}", this.0));
        }
        if let Some(why) = self.is_once_too_often(failure) {
            return Answer::No(why);
        }
        self.quick = if failure.lasted < QUICK { self.quick + 1 } else { 0 };
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
mod tests {
    use super::*;
    use crate::rules::signal::Signal;

    fn policy(max_restarts: u32) -> Policy {
        Policy { max_restarts, ..Policy::default() }
    }

    fn crash(code: u8, step: Option<u64>, seconds: u64) -> Failure {
        Failure {
            end: End::Code(code),
            oom: false,
            hung: false,
            lasted: Duration::from_secs(seconds),
            step,
            stuck: false,
            saved: false,
        }
    }

    fn after(answer: Answer) -> u64 {
        match answer {
            Answer::After(pause) => pause.as_secs(),
            other => panic!("{other:?}"),
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
    fn without_steps_a_newer_checkpoint_refills_the_budget_after_ten_minutes_and_one_saved_at_once_does_not() {
        let saved = |seconds| Failure { saved: true, ..crash(1, None, seconds) };
        let (policy, mut memory) = (policy(1), Memory::default());
        for _ in 0..9 {
            after(memory.judge(&policy, saved(600)));
        }
        assert!(matches!(memory.judge(&policy, saved(599)), Answer::No(why) if why.contains("budget")));
    }

    #[test]
    fn the_same_failure_twice_at_one_step_is_not_tried_a_third_time() {
        let (policy, mut memory) = (policy(5), Memory::default());
        after(memory.judge(&policy, crash(1, Some(10), 100)));
        assert!(matches!(memory.judge(&policy, crash(1, Some(10), 100)), Answer::No(why) if why.contains("step 10")));
    }

    #[test]
    fn who_asks_for_a_restart_or_says_that_it_passes_is_tried_again_at_one_step_as_long_as_the_budget_lasts() {
        for code in [42, 75, 130, 143] {
            let (policy, mut memory) = (policy(3), Memory::default());
            for _ in 0..3 {
                after(memory.judge(&policy, crash(code, Some(10), 100)));
            }
            assert!(
                matches!(memory.judge(&policy, crash(code, Some(10), 100)), Answer::No(why) if why.contains("budget"))
            );
            let hung = Failure { hung: true, ..crash(code, Some(10), 100) };
            let mut memory = Memory::default();
            after(memory.judge(&policy, hung));
            assert!(matches!(memory.judge(&policy, hung), Answer::No(why) if why.contains("twice at step 10")));
        }
    }

    #[test]
    fn being_killed_from_outside_twice_at_one_step_is_no_failure_of_the_program() {
        let (policy, mut memory) = (policy(5), Memory::default());
        let killed = Failure { end: End::Signal(Signal::KILL), ..crash(0, Some(10), 100) };
        after(memory.judge(&policy, killed));
        after(memory.judge(&policy, killed));
        let through_a_shell = crash(137, Some(10), 100);
        let mut memory = Memory::default();
        after(memory.judge(&policy, through_a_shell));
        after(memory.judge(&policy, through_a_shell));
        let hung = Failure { hung: true, ..through_a_shell };
        after(memory.judge(&policy, hung));
        assert!(matches!(memory.judge(&policy, hung), Answer::No(why) if why.contains("twice at step 10")));
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
    fn pauses_are_spread_by_a_fifth_and_never_beyond() {
        let mut pauses: Vec<Duration> = Vec::new();
        for seed in 0..200 {
            let policy = Policy { seed: Some(seed), ..policy(5) };
            match Memory::default().judge(&policy, crash(1, None, 100)) {
                Answer::After(pause) => pauses.push(pause),
                other => panic!("{other:?}"),
            }
        }
        pauses.sort();
        let (least, most) = (pauses[0], pauses[199]);
        assert!(least >= Duration::from_millis(800) && least < Duration::from_millis(830), "{least:?}");
        assert!(most <= Duration::from_millis(1200) && most > Duration::from_millis(1170), "{most:?}");
    }

    #[test]
    fn after_ten_healthy_minutes_the_first_restart_comes_at_once() {
        let (policy, mut memory) = (policy(5), Memory::default());
        assert_eq!(memory.judge(&policy, crash(1, None, 600)), Answer::After(Duration::ZERO));
        assert_eq!(after(memory.judge(&policy, crash(3, None, 600))), 2);
    }

    #[test]
    fn a_bus_error_is_tried_once_more_and_then_blamed_on_shared_memory() {
        for end in [End::Code(135), End::Signal(Signal::new(7).expect("BUS"))] {
            let (policy, mut memory) = (policy(5), Memory::default());
            let bus = Failure { end, ..crash(0, None, 100) };
            after(memory.judge(&policy, bus));
            after(memory.judge(&policy, crash(1, None, 100)));
            assert!(matches!(memory.judge(&policy, bus), Answer::No(why) if why.contains("/dev/shm")));
        }
    }

    #[test]
    fn who_saved_and_asks_for_a_restart_is_not_charged_for_it() {
        let (policy, mut memory) = (policy(1), Memory::default());
        for step in 1..20 {
            memory.progressed(Some(step));
            after(memory.judge(&policy, crash(42, Some(step), 100)));
        }
        after(memory.judge(&policy, crash(1, Some(19), 100)));
        assert!(matches!(memory.judge(&policy, crash(42, Some(19), 100)), Answer::No(_)));
    }

    #[test]
    fn two_deaths_soon_after_the_same_checkpoint_fall_back_to_an_older_one_once() {
        let (policy, mut memory) = (policy(9), Memory::default());
        let stuck = |step| Failure { stuck: true, ..crash(1, Some(step), 100) };
        after(memory.judge(&policy, stuck(20)));
        assert!(matches!(memory.judge(&policy, stuck(20)), Answer::Older(_)));
        after(memory.judge(&policy, stuck(10)));
        assert!(matches!(memory.judge(&policy, stuck(10)), Answer::No(why) if why.contains("step 10")));
    }

    #[test]
    fn who_went_back_makes_progress_from_there_and_goes_back_again_only_from_beyond() {
        let (policy, mut memory) = (policy(2), Memory::default());
        let stuck = |step, code| Failure { stuck: true, ..crash(code, Some(step), 100) };
        memory.progressed(Some(20));
        after(memory.judge(&policy, stuck(20, 1)));
        assert!(matches!(memory.judge(&policy, stuck(20, 1)), Answer::Older(_)));
        memory.goes_back_to(Some(10));
        memory.progressed(Some(15));
        after(memory.judge(&policy, stuck(15, 1)));
        after(memory.judge(&policy, stuck(15, 3)));
        memory.progressed(Some(25));
        after(memory.judge(&policy, stuck(25, 1)));
        assert!(matches!(memory.judge(&policy, stuck(25, 1)), Answer::Older(_)));
    }

    #[test]
    fn a_late_death_or_one_from_outside_does_not_blame_the_checkpoint() {
        let (policy, mut memory) = (policy(9), Memory::default());
        let late = Failure { stuck: true, ..crash(1, Some(20), 301) };
        let killed = Failure { end: End::Signal(Signal::KILL), lasted: Duration::from_secs(1), ..late };
        let through_a_shell = Failure { end: End::Code(137), ..killed };
        for failure in [late, killed, through_a_shell, Failure { end: End::Code(3), ..late }] {
            after(memory.judge(&policy, failure));
        }
    }

    #[test]
    fn what_a_restart_cannot_cure_is_not_restarted() {
        for code in [2, 125, 126, 127] {
            let answer = Memory::default().judge(&policy(5), crash(code, None, 100));
            assert!(matches!(answer, Answer::No(why) if why.contains(&code.to_string())));
        }
    }
}

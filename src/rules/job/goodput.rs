//! Goodput: the time of a run by cause. The state of the job tells the cause, except while the command runs; there the
//! steps that the trainer reports divide the time.
//!
//! | cause | time |
//! |---|---|
//! | start | before the first state, fetching the training data, until exec has succeeded, and the pause before a restart |
//! | peers | the wait for peers or for the gang |
//! | restore | finding and fetching a checkpoint, before the first attempt and between two |
//! | first step | from the start of the command to its first step |
//! | repeated | steps that an earlier attempt of this run, or an earlier run of the job, had reached |
//! | training | the other time in which the command runs |
//! | commit | the last commit and the copy of the model, after the command has ended |
//! | stopped | from a request to stop, or the end of a main child, until no process is left |
//!
//! If no step was ever reported, all time of the command is training. The silence of a hang is training until it is
//! noticed.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::event::Uptime;
use super::machine::{Machine, State};

/// A cause of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the head comment has the table")]
pub enum Cause {
    #[default]
    Start,
    Peers,
    Restore,
    FirstStep,
    Repeated,
    Training,
    Commit,
    Stopped,
}

/// Every cause, in the order of the report.
const CAUSES: [Cause; 8] = [
    Cause::Start,
    Cause::Peers,
    Cause::Restore,
    Cause::FirstStep,
    Cause::Repeated,
    Cause::Training,
    Cause::Commit,
    Cause::Stopped,
];

/// The shortest pause between two readings of the heartbeat, and the pause as a share of the attempt's age.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const PAUSE_SHARE: u32 = 10;

impl Cause {
    /// The name in the verdict and in the label of the metric.
    pub fn word(self) -> &'static str {
        match self {
            Cause::Start => "start",
            Cause::Peers => "peers",
            Cause::Restore => "restore",
            Cause::FirstStep => "first_step",
            Cause::Repeated => "repeated",
            Cause::Training => "training",
            Cause::Commit => "commit",
            Cause::Stopped => "stopped",
        }
    }

    /// The cause for the present state; `Training` while the command runs.
    pub fn of(machine: &Machine) -> Cause {
        match machine.state() {
            State::Fetching | State::Launching | State::Waiting => Cause::Start,
            State::Gathering | State::Assembling => Cause::Peers,
            State::Restoring | State::Refreshing | State::Surveying | State::Arming => Cause::Restore,
            State::Running if !machine.is_stopping() => Cause::Training,
            State::Flushing => Cause::Commit,
            State::Running | State::Draining | State::Done => Cause::Stopped,
        }
    }
}

/// The account of a run. Times must not decrease, except those of steps, which may be reported late.
#[derive(Debug, Clone, Default)]
pub struct Goodput {
    /// Time without that of the last attempt and of the present cause.
    settled: Totals,
    cause: Cause,
    since: Uptime,
    /// When the last attempt ran. Its end is absent while it runs.
    attempt: Option<(Uptime, Option<Uptime>)>,
    /// When its first step was seen, and its first step beyond those of the earlier attempts.
    first_step_at: Option<Uptime>,
    new_step_at: Option<Uptime>,
    /// The highest step of the run, and of the attempts before the last one.
    highest: Option<u64>,
    highest_before: Option<u64>,
    /// The highest step of earlier runs of the job, if known.
    reached: Option<u64>,
    /// The lowest and the highest step of the last attempt, and the first step of the run.
    span: Option<(u64, u64)>,
    first: Option<u64>,
    /// The repeated steps of the attempts before the last one.
    repeated_steps: u64,
    /// When the heartbeat must be read again.
    look_at: Option<Uptime>,
}

/// Time by cause. Its JSON form is an object of seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals([Duration; CAUSES.len()]);

impl Totals {
    /// The time of a cause.
    pub fn of(&self, cause: Cause) -> Duration {
        self.0[cause as usize]
    }

    /// The whole time of the run.
    pub fn sum(&self) -> Duration {
        self.0.iter().sum()
    }

    /// Milliseconds by cause. Their sum is the rounded time of the run.
    pub fn millis(&self) -> [(Cause, u64); CAUSES.len()] {
        let mut before = Duration::ZERO;
        let round = |time: Duration| ((time.as_nanos() + 500_000) / 1_000_000) as u64;
        CAUSES.map(|cause| {
            let after = before + self.of(cause);
            let millis = round(after) - round(before);
            before = after;
            (cause, millis)
        })
    }

    fn add(&mut self, cause: Cause, from: Uptime, to: Uptime) {
        self.0[cause as usize] += to.saturating_sub(from);
    }
}

impl Serialize for Totals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.millis().map(|(cause, millis)| (cause.word(), millis as f64 / 1000.0)))
    }
}

impl Goodput {
    /// The job's state has this cause from now on. A new attempt begins where `Training` follows another cause.
    pub fn enter(&mut self, now: Uptime, cause: Cause) {
        if cause == self.cause {
            return;
        }
        let now = now.max(self.since);
        match self.cause {
            Cause::Training => self.attempt = self.attempt.map(|(from, _)| (from, Some(now))),
            other => self.settled.add(other, self.since, now),
        }
        if cause == Cause::Training {
            self.settle_attempt(now);
            self.repeated_steps = self.repeated_steps();
            self.attempt = Some((now, None));
            self.highest_before = self.highest.max(self.reached);
            (self.first_step_at, self.new_step_at, self.span) = (None, None, None);
        }
        (self.cause, self.since) = (cause, now);
        self.looked(now);
    }

    /// The trainer reached this step. A step between two attempts belongs to the earlier one.
    pub fn step(&mut self, at: Uptime, step: u64) {
        self.highest = self.highest.max(Some(step));
        self.span = Some(self.span.map_or((step, step), |(low, high)| (low.min(step), high.max(step))));
        self.first = self.first.or(self.span.map(|(low, _)| low));
        let first = self.first_step_at.get_or_insert(at);
        *first = at.min(*first);
        if self.highest_before.is_none_or(|before| step > before) {
            let new = self.new_step_at.get_or_insert(at);
            *new = at.min(*new);
            self.look_at = None;
        }
    }

    /// An earlier run of the job had reached this step.
    pub fn reached_before(&mut self, step: u64) {
        self.reached = self.reached.max(Some(step));
        self.highest_before = self.highest_before.max(Some(step));
        if self.span.is_some_and(|(_, high)| high <= step) {
            self.new_step_at = None;
            self.look_at = (self.cause == Cause::Training).then_some(self.since);
        }
    }

    /// The attempt that has just begun resumes from this step: the next step is its first one, even if a later one is seen first.
    pub fn resumes_from(&mut self, step: u64) {
        self.span = Some((step.saturating_add(1), step));
    }

    /// The first step of the run, and its highest.
    pub fn steps(&self) -> (Option<u64>, Option<u64>) {
        (self.first, self.highest)
    }

    /// The highest step of the run and of the runs before it.
    pub fn reached(&self) -> Option<u64> {
        self.highest.max(self.reached)
    }

    /// How many steps were repeated, because an earlier attempt or an earlier run had reached them.
    pub fn repeated_steps(&self) -> u64 {
        let repeated = |(low, high): (u64, u64)| (high.min(self.highest_before?) + 1).checked_sub(low);
        self.repeated_steps + self.span.and_then(repeated).unwrap_or(0)
    }

    /// When the heartbeat must be read to learn when this attempt reached its first step and its first new one. The
    /// pauses grow with the attempt's age.
    pub fn look_at(&self) -> Option<Uptime> {
        self.look_at
    }

    /// The heartbeat was read.
    pub fn looked(&mut self, now: Uptime) {
        let pause = (now.saturating_sub(self.since) / PAUSE_SHARE).max(SHORTEST_PAUSE);
        let is_known = self.cause != Cause::Training || self.new_step_at.is_some();
        self.look_at = (!is_known).then_some(now + pause);
    }

    /// The time until now, by cause.
    pub fn totals(&self, now: Uptime) -> Totals {
        let now = now.max(self.since);
        let mut account = self.clone();
        account.settle_attempt(now);
        if self.cause != Cause::Training {
            account.settled.add(self.cause, self.since, now);
        }
        account.settled
    }

    fn settle_attempt(&mut self, now: Uptime) {
        let Some((from, to)) = self.attempt.take() else { return };
        let to = to.unwrap_or(now);
        // Without any step of the run, nothing divides the time.
        let unknown = if self.highest.is_some() { to } else { from };
        let first_step = self.first_step_at.unwrap_or(unknown).clamp(from, to);
        let new_step = self.new_step_at.unwrap_or(unknown).clamp(first_step, to);
        self.settled.add(Cause::FirstStep, from, first_step);
        self.settled.add(Cause::Repeated, first_step, new_step);
        self.settled.add(Cause::Training, new_step, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn secs(s: u64) -> Uptime {
        Duration::from_secs(s)
    }

    /// The whole seconds of each cause that has any.
    fn seconds(goodput: &Goodput, now: u64) -> Vec<(&'static str, u64)> {
        let totals = goodput.totals(secs(now));
        assert_eq!(totals.sum(), secs(now));
        CAUSES.iter().map(|c| (c.word(), totals.of(*c).as_secs())).filter(|(_, s)| *s > 0).collect()
    }

    #[test]
    fn a_restart_repeats_the_steps_up_to_the_highest_one() {
        let mut goodput = Goodput::default();
        for (at, cause) in [(1, Cause::Restore), (4, Cause::Peers), (6, Cause::Start), (7, Cause::Training)] {
            goodput.enter(secs(at), cause);
        }
        goodput.step(secs(10), 1);
        goodput.step(secs(100), 90);
        for (at, cause) in [(110, Cause::Stopped), (111, Cause::Restore), (114, Cause::Start), (115, Cause::Training)] {
            goodput.enter(secs(at), cause);
        }
        goodput.step(secs(120), 50);
        goodput.step(secs(140), 90);
        assert_eq!(seconds(&goodput, 141)[4], ("repeated", 21), "the end of the repetition is not known yet");
        goodput.step(secs(150), 100);
        goodput.enter(secs(200), Cause::Commit);
        let expected = [
            ("start", 3),
            ("peers", 2),
            ("restore", 6),
            ("first_step", 3 + 5),
            ("repeated", 30),
            ("training", 100 + 50),
            ("commit", 10),
            ("stopped", 1),
        ];
        assert_eq!(seconds(&goodput, 210), expected);
    }

    #[test]
    fn without_steps_all_time_of_the_command_is_training() {
        let mut goodput = Goodput::default();
        goodput.enter(secs(1), Cause::Training);
        assert_eq!(seconds(&goodput, 9), [("start", 1), ("training", 8)]);
        assert_eq!(goodput.look_at(), Some(secs(2)));
        goodput.looked(secs(101));
        assert_eq!(goodput.look_at(), Some(secs(111)));
        goodput.enter(secs(102), Cause::Stopped);
        assert_eq!(goodput.look_at(), None);
    }

    #[test]
    fn an_attempt_without_a_step_never_got_past_the_first_one_if_another_did() {
        let mut goodput = Goodput::default();
        goodput.enter(secs(0), Cause::Training);
        goodput.step(secs(1), 7);
        assert_eq!(goodput.look_at(), None, "nothing is left to learn");
        goodput.enter(secs(5), Cause::Start);
        goodput.enter(secs(6), Cause::Training);
        goodput.enter(secs(8), Cause::Stopped);
        assert_eq!(seconds(&goodput, 8), [("start", 1), ("first_step", 1 + 2), ("training", 4)]);
    }

    #[test]
    fn a_step_that_is_reported_after_the_end_of_its_attempt_still_counts() {
        let mut goodput = Goodput::default();
        goodput.enter(secs(0), Cause::Training);
        goodput.enter(secs(9), Cause::Stopped);
        goodput.step(secs(4), 1);
        assert_eq!(seconds(&goodput, 10), [("first_step", 4), ("training", 5), ("stopped", 1)]);
    }

    #[test]
    fn steps_that_an_earlier_run_had_reached_are_repeated() {
        let mut goodput = Goodput::default();
        goodput.reached_before(400);
        goodput.enter(secs(1), Cause::Training);
        goodput.resumes_from(300);
        goodput.step(secs(4), 303);
        assert_eq!((goodput.steps(), goodput.repeated_steps()), ((Some(301), Some(303)), 3));
        goodput.step(secs(10), 401);
        goodput.enter(secs(20), Cause::Stopped);
        goodput.enter(secs(21), Cause::Training);
        goodput.resumes_from(390);
        goodput.step(secs(23), 391);
        goodput.step(secs(24), 450);
        assert_eq!((goodput.reached(), goodput.repeated_steps()), (Some(450), 100 + 11));
        let expected = [("start", 1), ("first_step", 3 + 2), ("repeated", 6 + 1), ("training", 10 + 6), ("stopped", 1)];
        assert_eq!(seconds(&goodput, 30), expected);
    }

    #[test]
    fn an_earlier_run_that_becomes_known_late_counts_from_then_on() {
        let mut goodput = Goodput::default();
        goodput.enter(secs(1), Cause::Training);
        goodput.step(secs(2), 5);
        goodput.reached_before(9);
        goodput.step(secs(6), 10);
        assert_eq!(seconds(&goodput, 8), [("start", 1), ("first_step", 1), ("repeated", 4), ("training", 2)]);
        assert_eq!(goodput.repeated_steps(), 5);
    }

    #[test]
    fn milliseconds_add_up_to_the_rounded_time_of_the_run() {
        let totals = Totals([Duration::from_micros(1_400); CAUSES.len()]);
        assert_eq!(totals.millis().iter().map(|(_, millis)| millis).sum::<u64>(), 11);
    }

    #[test]
    fn the_object_has_the_seconds_of_every_cause() {
        let mut goodput = Goodput::default();
        goodput.enter(secs(1), Cause::Training);
        let object = serde_json::to_value(goodput.totals(Duration::from_millis(3_500))).expect("an object");
        let zero = |cause| object[cause] == 0.0;
        assert_eq!((&object["start"], &object["training"]), (&1.0.into(), &2.5.into()));
        assert!(["peers", "restore", "first_step", "repeated", "commit", "stopped"].into_iter().all(zero), "{object}");
    }

    proptest! {
        #[test]
        fn the_causes_always_add_up_to_the_time_of_the_run(
            events in prop::collection::vec((0u64..50, 0usize..CAUSES.len(), prop::option::of((0u64..20, 0u64..60))), 0..60),
        ) {
            let (mut goodput, mut now) = (Goodput::default(), Duration::ZERO);
            for (pause, cause, step) in events {
                now += secs(pause);
                if let Some((step, ago)) = step {
                    goodput.step(now.saturating_sub(secs(ago)), step);
                }
                prop_assert_eq!(goodput.totals(now).sum(), now);
                goodput.enter(now, CAUSES[cause]);
                prop_assert_eq!(goodput.totals(now).sum(), now);
            }
            prop_assert_eq!(goodput.totals(now + secs(3)).sum(), now + secs(3));
        }
    }
}

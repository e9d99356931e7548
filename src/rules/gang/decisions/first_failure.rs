//! The first failure: which of several failures was the cause.

use std::time::Duration;

use super::super::message::{Class, Failure, FirstFailure};
use crate::cluster::seat::Seat;

/// Failures within this time of the earliest are ordered by their class.
const TIE: Duration = Duration::from_millis(50);
/// An abort within this time after another failure counts as its consequence.
const ABORT: Duration = Duration::from_secs(5);
/// The report of a success may arrive this much later than that of a failure which it has caused.
const EARLY: Duration = Duration::from_millis(200);
/// SIGABRT as an exit code of a shell.
const ABORTED: u8 = 134;
const SIGABRT: u8 = 6;

/// A failure with its time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FailureReport {
    /// The time of receipt minus the age, by the leader's clock.
    pub failed_at: Duration,
    /// The failure, its seat and its host.
    pub first: FirstFailure,
    /// The agent's connection was closed at that time.
    pub is_close: bool,
    /// The trainer had closed its connections before the gang was halted, and ended later.
    pub is_early: bool,
}

impl FailureReport {
    /// A failure that was reported `age` milliseconds after it happened.
    pub fn new(now: Duration, age: u64, seat: Seat, host: &str, failure: Failure) -> FailureReport {
        let failed_at = now.saturating_sub(Duration::from_millis(age));
        let first = FirstFailure { seat, host: host.to_owned(), failure: failure.bounded() };
        FailureReport { failed_at, first, is_close: false, is_early: false }
    }

    /// The likelihood that it caused the other failures, the most likely first. The container of an agent whose connection was
    /// closed is gone, which breaks the collectives of the others.
    fn rank(&self, earliest: Duration) -> (Class, bool) {
        match self.class(earliest) {
            Class::Lost if self.is_close => (Class::Signal, true),
            class => (class, false),
        }
    }

    fn class(&self, earliest: Duration) -> Class {
        let is_later = self.failed_at > earliest && self.failed_at - earliest <= ABORT;
        if self.is_abort() && is_later { Class::Consequence } else { self.first.failure.class }
    }

    /// Whether the end of another trainer's connections may have caused it.
    fn may_follow(&self) -> bool {
        matches!(self.first.failure.class, Class::Code | Class::Consequence) || self.is_abort()
    }

    fn is_abort(&self) -> bool {
        let failure = &self.first.failure;
        failure.code == Some(ABORTED) || failure.signal == Some(SIGABRT)
    }
}

/// The earliest failure; of those within 50 ms, the one whose class is the most likely cause. A consequence is returned only
/// if there is no other failure. A trainer that had closed its connections before comes before the failures that this causes.
pub fn first(reports: &[FailureReport]) -> Option<&FailureReport> {
    let death = first_death(reports)?;
    let early = reports.iter().filter(|report| report.is_early && death.may_follow());
    Some(early.min_by_key(|report| (report.failed_at, report.first.seat)).unwrap_or(death))
}

fn first_death(reports: &[FailureReport]) -> Option<&FailureReport> {
    let earliest = reports.iter().map(|report| report.failed_at).min()?;
    let causes = |report: &&FailureReport| report.class(earliest) != Class::Consequence;
    let cause = reports.iter().filter(causes).map(|report| report.failed_at).min();
    let begin = cause.unwrap_or(earliest);
    let tied =
        reports.iter().filter(|report| report.failed_at <= begin + TIE && report.failed_at >= begin.min(earliest));
    tied.min_by_key(|report| (report.rank(earliest), report.failed_at, report.first.seat))
}

/// The first failure, if this replica's trainer had ended with 0 at `ended_at`: that closes its connections, and then the
/// trainers of the others fail. `None`: the failure has a cause of its own, or came before.
pub fn after_early_success(ended_at: Duration, seat: Seat, host: &str, death: &FailureReport) -> Option<FirstFailure> {
    let Failure { step, detail, .. } = &death.first.failure;
    if !death.may_follow() || seat == death.first.seat || ended_at > death.failed_at + EARLY {
        return None;
    }
    let before = death.failed_at.saturating_sub(ended_at).as_secs_f64();
    let detail = format!(
        "its trainer ended with exit code 0 while the others trained; {} on {} failed {before:.1} s later: {detail}",
        death.first.seat, death.first.host
    );
    let failure = Failure { class: Class::Code, code: Some(0), signal: None, step: *step, detail };
    Some(FirstFailure { seat, host: host.to_owned(), failure: failure.bounded() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::spec::Role;

    fn report(at_ms: u64, index: u32, class: Class, signal: Option<u8>) -> FailureReport {
        let failure = Failure { class, code: None, signal, step: None, detail: String::new() };
        FailureReport::new(Duration::from_millis(at_ms), 0, Seat::new(Role::Worker, index), "host", failure)
    }

    #[test]
    fn the_earliest_failure_is_the_cause() {
        let reports = [report(900, 1, Class::Code, None), report(100, 2, Class::Code, None)];
        assert_eq!(first(&reports).unwrap().first.seat.index, 2);
    }

    #[test]
    fn of_failures_at_about_the_same_time_a_gpu_failure_outranks_an_exit_code() {
        let reports = [report(100, 1, Class::Code, None), report(140, 2, Class::Gpu, None)];
        assert_eq!(first(&reports).unwrap().first.seat.index, 2);
    }

    #[test]
    fn a_trainer_that_closed_its_connections_caused_the_exit_codes_of_the_others_and_no_kill() {
        let early = |at_ms| FailureReport { is_early: true, ..report(at_ms, 1, Class::Code, None) };
        assert_eq!(first(&[report(100, 2, Class::Code, None), early(3_000)]).unwrap().first.seat.index, 1);
        assert_eq!(first(&[report(100, 2, Class::Signal, Some(9)), early(3_000)]).unwrap().first.seat.index, 2);
    }

    #[test]
    fn a_broken_pipe_or_an_abort_after_another_failure_is_not_the_cause() {
        let reports = [
            report(90, 1, Class::Consequence, None),
            report(130, 2, Class::Signal, Some(9)),
            report(135, 3, Class::Signal, Some(6)),
        ];
        assert_eq!(first(&reports).unwrap().first.seat.index, 2);
        assert_eq!(first(&reports[..1]).unwrap().first.seat.index, 1, "if there is no other failure");
        assert_eq!(first(&[]), None);
    }

    #[test]
    fn a_closed_connection_of_an_agent_outranks_the_exit_codes_that_follow_it() {
        let mut lost = report(130, 2, Class::Lost, None);
        let crash = report(100, 1, Class::Code, None);
        assert_eq!(first(&[crash.clone(), lost.clone()]).unwrap().first.seat.index, 1, "a silent agent");
        lost.is_close = true;
        assert_eq!(first(&[crash.clone(), lost.clone()]).unwrap().first.seat.index, 2);
        let killed = report(100, 3, Class::Signal, Some(9));
        assert_eq!(first(&[killed, crash, lost]).unwrap().first.seat.index, 3);
    }

    #[test]
    fn a_trainer_that_ended_with_0_before_the_others_failed_is_the_first_failure() {
        let seat = Seat::new(Role::Worker, 0);
        let early = |ms, death: &FailureReport| after_early_success(Duration::from_millis(ms), seat, "h", death);
        let death = report(5_000, 1, Class::Code, None);
        let first = early(2_000, &death).expect("it is the cause");
        assert_eq!((first.seat, first.failure.code), (seat, Some(0)));
        assert!(first.failure.detail.contains("worker/1 on host failed 3.0 s later"), "{}", first.failure.detail);
        assert!(early(5_100, &death).is_some() && early(5_300, &death).is_none());
        assert!(early(2_000, &report(5_000, 1, Class::Gpu, None)).is_none(), "a cause of its own");
        assert!(early(2_000, &report(5_000, 1, Class::Signal, Some(6))).is_some(), "NCCL's watchdog aborts");
    }
}

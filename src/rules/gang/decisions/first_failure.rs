//! The first failure: which of several failures was the cause.

use std::time::Duration;

use super::super::message::{Class, Failure, FirstFailure};
use crate::cluster::seat::Seat;

/// Failures within this time of the earliest are ordered by their class.
const TIE: Duration = Duration::from_millis(50);
/// An abort within this time after another failure counts as its consequence.
const ABORT: Duration = Duration::from_secs(5);
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
}

impl FailureReport {
    /// A failure that was reported `age` milliseconds after it happened.
    pub fn new(now: Duration, age: u64, seat: Seat, host: &str, failure: Failure) -> FailureReport {
        let failed_at = now.saturating_sub(Duration::from_millis(age));
        FailureReport { failed_at, first: FirstFailure { seat, host: host.to_owned(), failure: failure.bounded() } }
    }

    fn class(&self, earliest: Duration) -> Class {
        let failure = &self.first.failure;
        let aborted = failure.code == Some(ABORTED) || failure.signal == Some(SIGABRT);
        let is_later = self.failed_at > earliest && self.failed_at - earliest <= ABORT;
        if aborted && is_later { Class::Consequence } else { failure.class }
    }
}

/// The earliest failure; of those within 50 ms, the one whose class is the most likely cause. A consequence is returned only
/// if there is no other failure.
pub fn first(reports: &[FailureReport]) -> Option<&FirstFailure> {
    let earliest = reports.iter().map(|report| report.failed_at).min()?;
    let causes = |report: &&FailureReport| report.class(earliest) != Class::Consequence;
    let cause = reports.iter().filter(causes).map(|report| report.failed_at).min();
    let begin = cause.unwrap_or(earliest);
    let tied =
        reports.iter().filter(|report| report.failed_at <= begin + TIE && report.failed_at >= begin.min(earliest));
    let chosen = tied.min_by_key(|report| (report.class(earliest), report.failed_at, report.first.seat));
    chosen.map(|report| &report.first)
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
        assert_eq!(first(&reports).unwrap().seat.index, 2);
    }

    #[test]
    fn of_failures_at_about_the_same_time_a_gpu_failure_outranks_an_exit_code() {
        let reports = [report(100, 1, Class::Code, None), report(140, 2, Class::Gpu, None)];
        assert_eq!(first(&reports).unwrap().seat.index, 2);
    }

    #[test]
    fn a_broken_pipe_or_an_abort_after_another_failure_is_not_the_cause() {
        let reports = [
            report(90, 1, Class::Consequence, None),
            report(130, 2, Class::Signal, Some(9)),
            report(135, 3, Class::Signal, Some(6)),
        ];
        assert_eq!(first(&reports).unwrap().seat.index, 2);
        assert_eq!(first(&reports[..1]).unwrap().seat.index, 1, "if there is no other failure");
        assert_eq!(first(&[]), None);
    }
}

//! Which of several deaths was the cause.

use std::time::Duration;

use super::super::message::{Class, Failure, FirstFailure};
use super::super::seat::Seat;

/// Deaths within this time of the earliest are ordered by their class.
const TIE: Duration = Duration::from_millis(50);
/// A trainer that aborts this soon after another death does so because of it.
const ABORT: Duration = Duration::from_secs(5);
/// SIGABRT, as an exit code of a shell.
const ABORTED: u8 = 134;
const SIGABRT: u8 = 6;

/// One death, as the leader heard of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fall {
    /// Arrival minus age, by the leader's clock.
    pub died: Duration,
    /// What is said of it.
    pub first: FirstFailure,
}

impl Fall {
    /// A death that was reported `age` milliseconds after it happened.
    pub fn new(now: Duration, age: u64, seat: Seat, host: &str, failure: Failure) -> Fall {
        let died = now.saturating_sub(Duration::from_millis(age));
        Fall { died, first: FirstFailure { seat, host: host.to_owned(), failure: failure.bounded() } }
    }

    fn class(&self, earliest: Duration) -> Class {
        let failure = &self.first.failure;
        let aborted = failure.code == Some(ABORTED) || failure.signal == Some(SIGABRT);
        let is_later = self.died > earliest && self.died - earliest <= ABORT;
        if aborted && is_later { Class::Consequence } else { failure.class }
    }
}

/// The first failure: the earliest; of those within 50 ms the one whose class is more likely to be a cause. A consequence is
/// named only where there is nothing else.
pub fn first(falls: &[Fall]) -> Option<&FirstFailure> {
    let earliest = falls.iter().map(|fall| fall.died).min()?;
    let causes = |fall: &&Fall| fall.class(earliest) != Class::Consequence;
    let cause = falls.iter().filter(causes).map(|fall| fall.died).min();
    let begin = cause.unwrap_or(earliest);
    let tied = falls.iter().filter(|fall| fall.died <= begin + TIE && fall.died >= begin.min(earliest));
    let chosen = tied.min_by_key(|fall| (fall.class(earliest), fall.died, fall.first.seat));
    chosen.map(|fall| &fall.first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::spec::Role;

    fn fall(at_ms: u64, index: u32, class: Class, signal: Option<u8>) -> Fall {
        let failure = Failure { class, code: None, signal, step: None, detail: String::new() };
        Fall::new(Duration::from_millis(at_ms), 0, Seat::new(Role::Worker, index), "host", failure)
    }

    #[test]
    fn the_earliest_death_is_the_cause() {
        let falls = [fall(900, 1, Class::Code, None), fall(100, 2, Class::Code, None)];
        assert_eq!(first(&falls).unwrap().seat.index, 2);
    }

    #[test]
    fn among_deaths_at_about_the_same_time_a_gpu_outranks_an_exit_code() {
        let falls = [fall(100, 1, Class::Code, None), fall(140, 2, Class::Gpu, None)];
        assert_eq!(first(&falls).unwrap().seat.index, 2);
    }

    #[test]
    fn a_broken_pipe_or_an_abort_after_another_death_is_no_cause() {
        let falls = [
            fall(90, 1, Class::Consequence, None),
            fall(130, 2, Class::Signal, Some(9)),
            fall(135, 3, Class::Signal, Some(6)),
        ];
        assert_eq!(first(&falls).unwrap().seat.index, 2);
        assert_eq!(first(&falls[..1]).unwrap().seat.index, 1, "where there is nothing else");
        assert_eq!(first(&[]), None);
    }
}

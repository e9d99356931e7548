//! The restart budget of the gang, which the leader keeps in its [`Record`].

use std::time::Duration;

use super::super::Generation;
use super::super::message::{Choice, Class, FirstFailure, Record};

/// A shorter generation counts as quick.
const QUICK: Duration = Duration::from_secs(60);
/// After this many quick generations in a row without a newer agreed step the gang gives up.
const QUICK_LIMIT: u32 = 3;

/// The decision after a halt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Start another generation after this pause.
    Restart(Duration),
    /// Give up, for this reason.
    GiveUp(String),
}

/// The limits on restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The maximum number of charged restarts without a newer agreed step.
    pub max_restarts: u32,
    /// The first pause.
    pub shortest: Duration,
    /// The longest pause.
    pub longest: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { max_restarts: 3, shortest: Duration::from_secs(1), longest: Duration::from_secs(60) }
    }
}

impl Record {
    /// Records an agreement. A newer checkpoint than any before refills the budget. A checkpoint without a step counts as newer
    /// if its hash differs from the last one's.
    pub fn agreed_on(&mut self, generation: Generation, choice: Choice) {
        self.generation = generation;
        self.from_nothing = choice == Choice::Start && self.kept.is_none();
        let (step, hash) = (choice.step(), choice.hash());
        let is_other = step.is_none() && hash.is_some() && hash != self.agreed_hash;
        self.agreed_hash = hash;
        if step > self.agreed || is_other {
            self.agreed = self.agreed.max(step);
            (self.charged, self.quick, self.last) = (0, 0, None);
        }
    }

    /// Records that all members with checkpoints have committed this step.
    pub fn keep(&mut self, step: u64) {
        (self.kept, self.from_nothing) = (self.kept.max(Some(step)), false);
    }

    /// Records the end of a generation that lasted this long. Preemptions and lost machines are not charged.
    pub fn ended(&mut self, limits: &Limits, first: &FirstFailure, lasted: Duration) -> Decision {
        self.first = Some(first.clone());
        let failure = &first.failure;
        if matches!(failure.class, Class::Preempted | Class::Lost) {
            return Decision::Restart(Duration::ZERO);
        }
        let same = failure.step.is_some() && self.last == Some((failure.class, failure.step));
        self.last = Some((failure.class, failure.step));
        self.quick = if lasted < QUICK { self.quick + 1 } else { 0 };
        if same {
            return Decision::GiveUp("the same failure came twice at the same step".to_owned());
        }
        if self.quick >= QUICK_LIMIT {
            return Decision::GiveUp(format!("{QUICK_LIMIT} generations ended within a minute of their start"));
        }
        if self.charged >= limits.max_restarts {
            return Decision::GiveUp(format!("--max-restarts {} is used up", limits.max_restarts));
        }
        self.charged += 1;
        let pause = limits.shortest.saturating_mul(1 << (self.charged - 1).min(16));
        Decision::Restart(pause.min(limits.longest))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::message::{Failure, Step};
    use super::*;
    use crate::cluster::seat::Seat;
    use crate::cluster::spec::Role;

    const LONG: Duration = Duration::from_secs(600);

    fn first(class: Class, step: Option<u64>) -> FirstFailure {
        let failure = Failure { class, code: Some(1), signal: None, step, detail: String::new() };
        FirstFailure { seat: Seat::new(Role::Worker, 0), host: "h".into(), failure }
    }

    fn charges(record: &mut Record, class: Class, step: Option<u64>, lasted: Duration) -> Decision {
        record.ended(&Limits::default(), &first(class, step), lasted)
    }

    #[test]
    fn three_restarts_are_allowed_and_a_newer_agreed_step_refills_them() {
        let mut record = Record::default();
        for seconds in [1, 2, 4] {
            assert_eq!(charges(&mut record, Class::Code, None, LONG), Decision::Restart(Duration::from_secs(seconds)));
        }
        assert!(matches!(charges(&mut record, Class::Code, None, LONG), Decision::GiveUp(_)));
        record.agreed_on(1, Choice::Own(10));
        assert_eq!(charges(&mut record, Class::Code, None, LONG), Decision::Restart(Duration::from_secs(1)));
    }

    #[test]
    fn a_different_checkpoint_without_a_step_refills_the_budget_and_the_same_does_not() {
        let mut record = Record::default();
        let chiefs = |hash| Choice::Chiefs(Step { step: None, hash, is_stored: true });
        record.agreed_on(1, chiefs(1));
        assert_eq!(charges(&mut record, Class::Code, None, LONG), Decision::Restart(Duration::from_secs(1)));
        record.agreed_on(1, chiefs(1));
        assert_eq!(charges(&mut record, Class::Code, None, LONG), Decision::Restart(Duration::from_secs(2)));
        record.agreed_on(1, chiefs(2));
        assert_eq!(charges(&mut record, Class::Code, None, LONG), Decision::Restart(Duration::from_secs(1)));
    }

    #[test]
    fn lost_machines_and_preemptions_are_not_charged() {
        let mut record = Record::default();
        for _ in 0..20 {
            assert_eq!(charges(&mut record, Class::Lost, Some(3), Duration::ZERO), Decision::Restart(Duration::ZERO));
            assert_eq!(
                charges(&mut record, Class::Preempted, Some(3), Duration::ZERO),
                Decision::Restart(Duration::ZERO)
            );
        }
        assert_eq!(record.charged, 0);
    }

    #[test]
    fn the_gang_gives_up_after_the_same_failure_at_the_same_step_unless_a_newer_step_was_agreed_on() {
        let mut record = Record::default();
        assert!(matches!(charges(&mut record, Class::Code, Some(7), LONG), Decision::Restart(_)));
        record.agreed_on(1, Choice::Own(5));
        assert!(matches!(charges(&mut record, Class::Code, Some(7), LONG), Decision::Restart(_)));
        assert!(matches!(charges(&mut record, Class::Code, Some(7), LONG), Decision::GiveUp(_)));
    }

    #[test]
    fn the_gang_gives_up_after_three_generations_that_end_within_a_minute() {
        let mut record = Record::default();
        assert!(matches!(charges(&mut record, Class::Signal, None, Duration::ZERO), Decision::Restart(_)));
        assert!(matches!(charges(&mut record, Class::Code, None, Duration::ZERO), Decision::Restart(_)));
        assert!(matches!(charges(&mut record, Class::Code, None, Duration::ZERO), Decision::GiveUp(_)));
    }
}

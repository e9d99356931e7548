//! The restart budget of the gang, which the leader keeps in its [`Record`].

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Generation;
use super::super::message::{Choice, Class, FirstFailure, Record, millis};
use crate::cluster::seat::Seat;
use crate::process::exit::{Prospect, prospect};

/// A shorter generation counts as quick.
const QUICK: Duration = Duration::from_secs(60);
/// After this many quick generations in a row without a newer agreed step the gang gives up.
const QUICK_LIMIT: u32 = 3;

/// The pauses before the restarts after the second loss of a seat, and after later ones.
const SHORTEST_LOSS_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_LOSS_PAUSE: Duration = Duration::from_secs(60);
/// After this many losses of one seat without a newer agreed step the gang gives up.
const LOSS_LIMIT: usize = 5;
/// The maximum number of losses in a record.
const MOST_LOSSES: usize = 64;

/// The loss of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Loss {
    /// Its seat.
    pub seat: Seat,
    /// The milliseconds from the start of its generation to its end; `None`: unknown, because it led.
    pub lasted: Option<u64>,
}

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
            (self.losses, self.retried) = Default::default();
        }
    }

    /// Records that all members with checkpoints have committed this step.
    pub fn keep(&mut self, step: u64) {
        (self.kept, self.from_nothing) = (self.kept.max(Some(step)), false);
    }

    /// Records the loss of a seat's agent. The first loss of a seat is free, the next ones are followed by growing pauses.
    pub fn lost(&mut self, seat: Seat, lasted: Option<Duration>) -> Decision {
        self.losses.push(Loss { seat, lasted: lasted.map(millis) });
        let more = self.losses.len().saturating_sub(MOST_LOSSES);
        self.losses.drain(..more);
        let of_seat: Vec<&Loss> = self.losses.iter().filter(|loss| loss.seat == seat).collect();
        if of_seat.len() >= LOSS_LIMIT {
            let time = |loss: &&Loss| {
                loss.lasted.map_or("an unknown time".to_owned(), |lasted| format!("{:.1} s", lasted as f64 / 1_000.0))
            };
            let times: Vec<String> = of_seat.iter().map(time).collect();
            return Decision::GiveUp(format!(
                "its agent was lost {} times without a newer agreed checkpoint, {} after the start of its generation",
                of_seat.len(),
                times.join(", ")
            ));
        }
        let Some(doublings) = of_seat.len().checked_sub(2) else { return Decision::Restart(Duration::ZERO) };
        Decision::Restart(SHORTEST_LOSS_PAUSE.saturating_mul(1 << doublings.min(16)).min(LONGEST_LOSS_PAUSE))
    }

    /// Records the end of a generation that lasted this long. Preemptions are not charged.
    pub fn ended(&mut self, limits: &Limits, first: &FirstFailure, lasted: Duration) -> Decision {
        self.first = Some(first.clone());
        let failure = &first.failure;
        match failure.class {
            Class::Preempted => return Decision::Restart(Duration::ZERO),
            Class::Lost => return self.lost(first.seat, Some(lasted)),
            _ => {}
        }
        let is_own = matches!(failure.class, Class::Code | Class::Signal);
        let of_code = failure.code.filter(|_| is_own).map_or(Prospect::Unknown, prospect);
        if let (Prospect::Permanent, Class::Code, Some(code)) = (of_code, failure.class, failure.code) {
            return Decision::GiveUp(format!("a restart does not help against exit code {code}"));
        }
        if let (Prospect::Once, Some(code)) = (of_code, failure.code) {
            if self.retried.contains(&code) {
                return Decision::GiveUp(format!("exit code {code} twice without a newer agreed checkpoint"));
            }
            self.retried.push(code);
        }
        let is_outside = matches!(of_code, Prospect::Asked | Prospect::Transient | Prospect::Killed);
        let same = !is_outside && failure.step.is_some() && self.last == Some((failure.class, failure.step));
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
    fn preemptions_are_not_charged() {
        let mut record = Record::default();
        for _ in 0..20 {
            let restart = charges(&mut record, Class::Preempted, Some(3), Duration::ZERO);
            assert_eq!(restart, Decision::Restart(Duration::ZERO));
        }
        assert_eq!(record.charged, 0);
    }

    #[test]
    fn the_first_loss_of_a_seat_is_free_and_the_fifth_without_a_newer_step_ends_the_gang() {
        let mut record = Record::default();
        let lost = |record: &mut Record| charges(record, Class::Lost, Some(3), Duration::from_millis(1_200));
        for seconds in [0, 1, 2, 4] {
            assert_eq!(lost(&mut record), Decision::Restart(Duration::from_secs(seconds)));
        }
        let mut advanced = record.clone();
        assert_eq!(record.lost(Seat::new(Role::Chief, 0), None), Decision::Restart(Duration::ZERO), "another seat");
        let Decision::GiveUp(why) = lost(&mut record) else { panic!("it goes on") };
        assert!(why.contains("5 times") && why.contains("1.2 s, 1.2 s"), "{why}");
        assert_eq!(record.charged, 0);
        advanced.agreed_on(2, Choice::Own(10));
        assert_eq!(lost(&mut advanced), Decision::Restart(Duration::ZERO));
    }

    fn exits(record: &mut Record, code: u8, step: u64) -> Decision {
        let mut failed = first(Class::Code, Some(step));
        failed.failure.code = Some(code);
        record.ended(&Limits { max_restarts: 100, ..Limits::default() }, &failed, LONG)
    }

    #[test]
    fn the_codes_mean_the_same_as_in_a_single_run() {
        let gives_up = |decision| matches!(decision, Decision::GiveUp(_));
        for code in [2, 125, 126, 127, 205] {
            assert!(gives_up(exits(&mut Record::default(), code, 1)), "{code}");
        }
        for code in [42, 75, 130, 137, 143] {
            let mut record = Record::default();
            assert!((0..5).all(|_| !gives_up(exits(&mut record, code, 7))), "{code}");
        }
        let mut record = Record::default();
        assert!(!gives_up(exits(&mut record, 135, 1)) && gives_up(exits(&mut record, 135, 2)));
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

//! How an attempt begins, and what follows where it cannot: another try while the cause may pass, or the end. Once an attempt
//! has run, that one is the story, and never that nothing began.

use super::{Leaders, Machine, STUCK, State};
use crate::rules::exit::End;
use crate::rules::job::event::{Action, Resume, Timer, Uptime};
use crate::rules::job::restart::Answer;
use crate::rules::job::verdict::Reason;

/// Why an attempt could not be started.
#[derive(Debug, Clone)]
pub(super) struct NotStarted {
    pub(super) code: u8,
    pub(super) detail: String,
    /// The cause may be gone soon.
    pub(super) passes: bool,
}

/// What is told of an attempt at the end.
#[derive(Debug, Clone, Default)]
pub(super) struct Story {
    ended: Option<(End, Option<bool>)>,
    leaders: Leaders,
    hung: Option<String>,
    resumed: Option<Resume>,
}

impl Machine {
    pub(super) fn spawn(&mut self) -> Vec<Action> {
        self.state = State::Launching;
        self.attempt += 1;
        self.before = Story {
            ended: self.ended.take(),
            leaders: std::mem::replace(&mut self.leaders, Leaders::of(self.policy.processes)),
            hung: self.hung.take(),
            resumed: std::mem::replace(&mut self.resumed, self.resume.clone()),
        };
        self.not_started = None;
        self.asked = None;
        self.passed_over = None;
        vec![Action::Spawn { attempt: self.attempt, resume: self.resume.clone() }]
    }

    pub(super) fn on_spawned(&mut self, now: Uptime) -> Vec<Action> {
        if self.state != State::Launching {
            return Vec::new();
        }
        self.state = State::Running;
        self.started_at = now;
        let held = std::mem::take(&mut self.held);
        let sent: Vec<Action> = held.into_iter().map(|signal| self.send(signal)).collect();
        self.watch(now).into_iter().chain(sent).collect()
    }

    /// `others` of the attempt run already: without this one they are of no use.
    pub(super) fn on_not_spawned(&mut self, now: Uptime, why: NotStarted, others: bool) -> Vec<Action> {
        if self.state != State::Launching {
            return Vec::new();
        }
        self.not_started = Some(why);
        if others { self.drain(now) } else { self.not_begun(now) }
    }

    /// Nothing is left of an attempt that could not be started, or what is left cannot be ended.
    pub(super) fn not_begun(&mut self, now: Uptime) -> Vec<Action> {
        let Some(NotStarted { code, detail, passes }) = self.not_started.clone() else { return Vec::new() };
        let mut detail = match self.attempt {
            1 => detail,
            attempt => format!("attempt {attempt} could not be started: {detail}"),
        };
        if !passes {
            return self.exit(Reason::NotStarted, code, detail);
        }
        self.tell_of_the_one_before();
        let is_the_last = self.stop.is_some() || self.asked.is_some() || self.killing.is_some();
        if !is_the_last {
            match self.memory.judge_start(&self.policy) {
                Answer::No(why) if why.is_empty() => {}
                Answer::No(why) => detail = format!("{detail}; {why}"),
                Answer::After(pause) | Answer::Older(pause) => {
                    self.state = State::Waiting;
                    return vec![Action::Arm(Timer::Backoff, now + pause)];
                }
            }
        }
        if self.killing.is_some() && self.policy.max_restarts > 0 && self.stop.is_none() {
            detail = format!("{detail}; {STUCK}");
        }
        if self.ended.is_none() && self.stop.is_none() {
            return self.exit(Reason::NotStarted, code, detail);
        }
        self.gave_up = detail;
        self.flush(now)
    }

    fn tell_of_the_one_before(&mut self) {
        let before = std::mem::take(&mut self.before);
        (self.ended, self.leaders) = (before.ended, before.leaders);
        (self.hung, self.resumed) = (before.hung, before.resumed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ended, feed, outcome, running, secs, term};
    use super::*;
    use crate::rules::job::{Event, Policy, Processes};
    use crate::rules::signal::Signal;

    fn refused(others: bool) -> Event {
        Event::NotSpawned { code: 125, detail: "no process".into(), passes: true, others }
    }

    fn missing() -> Event {
        Event::NotSpawned { code: 127, detail: "not found".into(), passes: false, others: false }
    }

    fn budget(max_restarts: u32) -> Policy {
        Policy { max_restarts, ..Policy::default() }
    }

    /// Its first attempt failed with 9, and the second is being started.
    fn at_a_restart(policy: Policy) -> Machine {
        let mut machine = running(policy);
        let again = feed(&mut machine, 100.0, [ended(9), Event::TreeEmpty, Event::Due(Timer::Backoff)]);
        assert!(matches!(again.last(), Some(Action::Spawn { attempt: 2, .. })), "{again:?}");
        machine
    }

    #[test]
    fn a_start_that_fails_for_a_cause_that_passes_is_tried_again_while_the_budget_lasts() {
        let mut machine = at_a_restart(budget(5));
        for (attempt, pause) in [(3, 2.0), (4, 4.0), (5, 8.0), (6, 16.0)] {
            let wait = machine.step(secs(200.0), refused(false));
            assert_eq!(wait, [Action::Arm(Timer::Backoff, secs(200.0 + pause))]);
            let again = machine.step(secs(200.0), Event::Due(Timer::Backoff));
            assert_eq!(again, [Action::Spawn { attempt, resume: None }]);
        }
        feed(&mut machine, 200.0, [Event::Spawned { pids: vec![8] }, ended(0)]);
        let end = outcome(machine.step(secs(200.0), Event::TreeEmpty));
        assert_eq!((end.reason, end.exit_code, end.attempts), (Reason::Finished, 0, 6));
    }

    #[test]
    fn a_job_that_ran_and_cannot_be_started_again_leaves_as_its_last_attempt_did() {
        let mut machine = at_a_restart(budget(2));
        feed(&mut machine, 101.0, [refused(false), Event::Due(Timer::Backoff)]);
        let end = outcome(machine.step(secs(103.0), refused(false)));
        assert_eq!((end.reason, end.exit_code, end.child), (Reason::Failed, 9, Some(End::Code(9))));
        let told =
            "failed with exit code 9; attempt 3 could not be started: no process; the restart budget (2) is spent";
        assert_eq!(end.detail, format!("the command {told}"));
    }

    #[test]
    fn the_last_commit_is_made_where_no_attempt_can_be_started_any_more() {
        let mut machine = running(Policy { checkpoints: true, store: true, max_restarts: 1, ..Policy::default() });
        let found = Event::Restored { resume: None, committed: None, older: false };
        feed(&mut machine, 100.0, [ended(9), Event::TreeEmpty, found, Event::Due(Timer::Backoff)]);
        let flush = machine.step(secs(101.0), refused(false));
        assert!(matches!(flush.last(), Some(Action::Flush { leaving: false, .. })), "{flush:?}");
    }

    #[test]
    fn the_first_start_is_tried_again_too_and_without_a_budget_nothing_began() {
        let first = |policy| {
            let mut machine = Machine::new(policy);
            machine.step(secs(0.0), Event::Started);
            machine
        };
        let end = outcome(first(budget(0)).step(secs(0.0), refused(false)));
        assert_eq!((end.reason, end.exit_code, end.detail.as_str()), (Reason::NotStarted, 125, "no process"));
        let mut machine = first(budget(1));
        feed(&mut machine, 0.0, [refused(false), Event::Due(Timer::Backoff)]);
        let end = outcome(machine.step(secs(2.0), refused(false)));
        assert_eq!((end.reason, end.exit_code, end.attempts), (Reason::NotStarted, 125, 2));
        assert!(
            end.detail.contains("attempt 2 could not be started: no process; the restart budget"),
            "{}",
            end.detail
        );
        let end = outcome(first(budget(5)).step(secs(0.0), missing()));
        assert_eq!((end.exit_code, end.detail.as_str(), end.attempts), (127, "not found", 1));
    }

    #[test]
    fn a_command_that_is_gone_at_a_restart_is_not_found_and_it_is_said_at_which() {
        let end = outcome(at_a_restart(budget(5)).step(secs(101.0), missing()));
        assert_eq!((end.reason, end.exit_code), (Reason::NotStarted, 127));
        assert_eq!(end.detail, "attempt 2 could not be started: not found");
    }

    #[test]
    fn who_is_told_to_stop_as_a_start_fails_tries_no_more() {
        let mut machine = at_a_restart(budget(5));
        machine.step(secs(101.0), term());
        let end = outcome(machine.step(secs(101.0), refused(false)));
        assert_eq!((end.reason, end.exit_code), (Reason::Stopped, 143));
        assert!(end.detail.ends_with("ended with exit code 9; attempt 2 could not be started: no process"), "{end:?}");
        let mut machine = Machine::new(budget(5));
        feed(&mut machine, 0.0, [Event::Started, term()]);
        let end = outcome(machine.step(secs(0.0), refused(false)));
        assert!(end.exit_code == 143 && end.detail.ends_with("had not been started; no process"), "{end:?}");
        let mut machine = at_a_restart(budget(5));
        machine.step(secs(101.0), Event::Signal { signal: Signal::INT, sender: Some(0) });
        assert_eq!(outcome(machine.step(secs(101.0), refused(false))).exit_code, 9);
    }

    #[test]
    fn what_was_started_of_an_attempt_ends_before_the_next_and_is_not_the_story() {
        let mut machine = at_a_restart(Policy { processes: Processes { count: 2, first_rank: 0 }, ..budget(2) });
        for at in [101.0, 110.0] {
            let drain = machine.step(secs(at), refused(true));
            assert!(drain.contains(&Action::TermTree), "{drain:?}");
            let term = Event::MainEnded { local_rank: 0, end: End::Signal(Signal::TERM), oom: Some(false) };
            machine.step(secs(at), term);
            if at < 110.0 {
                machine.step(secs(at), Event::TreeEmpty);
                assert_eq!((machine.state(), machine.deadline), (&State::Waiting, None));
                machine.step(secs(at), Event::Due(Timer::Backoff));
            }
        }
        let end = outcome(machine.step(secs(111.0), Event::TreeEmpty));
        assert_eq!((end.reason, end.exit_code, end.rank), (Reason::Failed, 9, Some(0)));
    }

    #[test]
    fn nothing_is_started_beside_what_is_stuck_of_an_attempt_that_could_not_be_started() {
        let mut machine = at_a_restart(Policy { processes: Processes { count: 2, first_rank: 0 }, ..budget(9) });
        feed(&mut machine, 101.0, [refused(true), Event::Due(Timer::Grace)]);
        let end = outcome(machine.step(secs(103.0), Event::Due(Timer::Stuck)));
        assert_eq!((end.reason, end.exit_code), (Reason::Failed, 9));
        let told = format!("attempt 2 could not be started: no process; {STUCK}");
        assert!(end.detail.ends_with(&told), "{}", end.detail);
    }
}

//! How an attempt starts, and what follows if it cannot: a retry while the cause may go away, or the end. Once an
//! attempt has run, the verdict describes that attempt.

use super::main_children::MainChildren;
use super::parts::Attempt;
use super::{Machine, STUCK, State};
use crate::gang::message::Class;
use crate::job::event::{Action, Timer, Uptime};
use crate::job::restart::Decision;
use crate::job::verdict::Reason;
use crate::process::exit::End;

/// Why an attempt could not be started.
#[derive(Debug, Clone)]
pub(super) struct NotStarted {
    pub(super) code: u8,
    pub(super) detail: String,
    /// The cause may go away.
    pub(super) is_transient: bool,
}

impl Machine {
    pub(super) fn spawn(&mut self) -> Vec<Action> {
        self.state = State::Launching;
        let attempt = Attempt {
            number: self.attempt.number + 1,
            resumed: self.next.resume.clone(),
            main_children: MainChildren::of(self.policy.processes),
            ..Attempt::default()
        };
        self.restarts.attempt_before = std::mem::replace(&mut self.attempt, attempt);
        self.next.passed_over = None;
        let generation = self.generation();
        vec![Action::Spawn { attempt: self.attempt.number, generation, resume: self.next.resume.clone() }]
    }

    pub(super) fn on_spawned(&mut self, now: Uptime) -> Vec<Action> {
        if self.state != State::Launching {
            return Vec::new();
        }
        self.state = State::Running;
        self.attempt.started_at = now;
        let held = std::mem::take(&mut self.next.held_signals);
        let mut actions: Vec<Action> = self.watch(now).into_iter().collect();
        actions.extend(held.into_iter().map(|signal| self.send(signal)));
        actions.extend(self.sweep_soon(now));
        actions
    }

    /// If `others` of the attempt run already, they are stopped.
    pub(super) fn on_not_spawned(&mut self, now: Uptime, why: NotStarted, others: bool) -> Vec<Action> {
        if self.state != State::Launching {
            return Vec::new();
        }
        self.attempt.not_started = Some(why);
        if others { self.drain(now) } else { self.after_failed_start(now) }
    }

    /// No process is left of an attempt that could not be started, or the rest cannot be ended.
    pub(super) fn after_failed_start(&mut self, now: Uptime) -> Vec<Action> {
        let Some(NotStarted { code, detail, is_transient }) = self.attempt.not_started.clone() else {
            return Vec::new();
        };
        let mut detail = match self.attempt.number {
            1 => detail,
            attempt => format!("attempt {attempt} could not be started: {detail}"),
        };
        if self.is_in_gang() && self.stopping.stop.is_none() {
            let report = self.failure_report(Class::Code, Some(End::Code(code)), detail.clone());
            let may_try_again = self.stopping.kill_from.is_none() && self.attempt.keyboard_signal_at.is_none();
            if is_transient && may_try_again {
                return self.start_again_with_gang(report);
            }
            return [report].into_iter().chain(self.exit(Reason::NotStarted, code, detail)).collect();
        }
        if !is_transient {
            return self.exit(Reason::NotStarted, code, detail);
        }
        self.restore_attempt_before();
        let no_retry = self.stopping.stop.is_some()
            || self.attempt.keyboard_signal_at.is_some()
            || self.stopping.kill_from.is_some();
        if !no_retry {
            match self.restarts.budget.decide_start(&self.policy) {
                Decision::GiveUp(why) if why.is_empty() => {}
                Decision::GiveUp(why) => detail = format!("{detail}; {why}"),
                Decision::Restart(pause) | Decision::FallBack(pause) => {
                    self.state = State::Waiting;
                    return vec![Action::Arm(Timer::Backoff, now + pause)];
                }
            }
        }
        if self.stopping.kill_from.is_some() && self.policy.max_restarts > 0 && self.stopping.stop.is_none() {
            detail = format!("{detail}; {STUCK}");
        }
        if self.attempt.ended.is_none() && self.stopping.stop.is_none() {
            return self.exit(Reason::NotStarted, code, detail);
        }
        self.restarts.no_restart_reason = detail;
        self.flush(now)
    }

    fn restore_attempt_before(&mut self) {
        let before = std::mem::take(&mut self.restarts.attempt_before);
        (self.attempt.ended, self.attempt.main_children) = (before.ended, before.main_children);
        (self.attempt.hung, self.attempt.resumed) = (before.hung, before.resumed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ended, feed, is_term_tree, outcome, running, secs, term};
    use super::*;
    use crate::job::{Event, Policy, Processes};
    use crate::process::exit::End;
    use crate::process::signal::Signal;

    fn refused(others: bool) -> Event {
        Event::NotSpawned { code: 125, detail: "no process".into(), is_transient: true, others }
    }

    fn missing() -> Event {
        Event::NotSpawned { code: 127, detail: "not found".into(), is_transient: false, others: false }
    }

    fn budget(max_restarts: u32) -> Policy {
        Policy { max_restarts, ..Policy::default() }
    }

    /// Its first attempt failed with code 9, and the second is being started.
    fn at_a_restart(policy: Policy) -> Machine {
        let mut machine = running(policy);
        let again = feed(&mut machine, 100.0, [ended(9), Event::TreeEmpty, Event::Due(Timer::Backoff)]);
        assert!(matches!(again.last(), Some(Action::Spawn { attempt: 2, .. })), "{again:?}");
        machine
    }

    #[test]
    fn a_start_that_fails_for_a_transient_cause_is_retried_while_the_budget_lasts() {
        let mut machine = at_a_restart(budget(5));
        for (attempt, pause) in [(3, 2.0), (4, 4.0), (5, 8.0), (6, 16.0)] {
            let wait = machine.step(secs(200.0), refused(false));
            assert_eq!(wait, [Action::Arm(Timer::Backoff, secs(200.0 + pause))]);
            let again = machine.step(secs(200.0), Event::Due(Timer::Backoff));
            assert_eq!(again, [Action::Spawn { attempt, generation: None, resume: None }]);
        }
        feed(&mut machine, 200.0, [Event::Spawned { pids: vec![8] }, ended(0)]);
        let end = outcome(machine.step(secs(200.0), Event::TreeEmpty));
        assert_eq!((end.reason, end.exit_code, end.attempts), (Reason::Finished, 0, 6));
    }

    #[test]
    fn a_job_that_ran_and_cannot_be_restarted_exits_like_its_last_attempt() {
        let mut machine = at_a_restart(budget(2));
        feed(&mut machine, 101.0, [refused(false), Event::Due(Timer::Backoff)]);
        let end = outcome(machine.step(secs(103.0), refused(false)));
        assert_eq!((end.reason, end.exit_code, end.child), (Reason::Failed, 9, Some(End::Code(9))));
        let expected =
            "failed with exit code 9; attempt 3 could not be started: no process; the restart budget (2) is used up";
        assert_eq!(end.detail, format!("the command {expected}"));
    }

    #[test]
    fn the_last_commit_is_made_if_no_further_attempt_can_be_started() {
        let mut machine = running(Policy { checkpoints: true, store: true, max_restarts: 1, ..Policy::default() });
        let found = Event::Restored { resume: None, committed: None, older: false, is_further: false };
        feed(&mut machine, 100.0, [ended(9), Event::TreeEmpty, found, Event::Due(Timer::Backoff)]);
        let flush = machine.step(secs(101.0), refused(false));
        assert!(matches!(flush.last(), Some(Action::Flush { leaving: false, .. })), "{flush:?}");
    }

    #[test]
    fn the_first_start_is_retried_too_and_without_a_budget_nothing_starts() {
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
    fn a_command_that_is_missing_at_a_restart_is_127_and_the_attempt_is_named() {
        let end = outcome(at_a_restart(budget(5)).step(secs(101.0), missing()));
        assert_eq!((end.reason, end.exit_code), (Reason::NotStarted, 127));
        assert_eq!(end.detail, "attempt 2 could not be started: not found");
    }

    #[test]
    fn a_stop_during_a_failed_start_prevents_a_retry() {
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
    fn a_partly_started_attempt_ends_before_the_next_and_is_not_the_result() {
        let mut machine = at_a_restart(Policy { processes: Processes { count: 2, first_rank: 0 }, ..budget(2) });
        for at in [101.0, 110.0] {
            let drain = machine.step(secs(at), refused(true));
            assert!(drain.iter().any(is_term_tree), "{drain:?}");
            let term = Event::MainEnded { local_rank: 0, end: End::Signal(Signal::TERM), oom: Some(false) };
            machine.step(secs(at), term);
            if at < 110.0 {
                machine.step(secs(at), Event::TreeEmpty);
                assert_eq!((machine.state(), machine.stopping.deadline), (&State::Waiting, None));
                machine.step(secs(at), Event::Due(Timer::Backoff));
            }
        }
        let end = outcome(machine.step(secs(111.0), Event::TreeEmpty));
        assert_eq!((end.reason, end.exit_code, end.rank), (Reason::Failed, 9, Some(0)));
    }

    #[test]
    fn nothing_is_started_while_processes_of_a_failed_start_are_stuck() {
        let mut machine = at_a_restart(Policy { processes: Processes { count: 2, first_rank: 0 }, ..budget(9) });
        feed(&mut machine, 101.0, [refused(true), Event::Due(Timer::Grace)]);
        let end = outcome(machine.step(secs(103.0), Event::Due(Timer::Stuck)));
        assert_eq!((end.reason, end.exit_code), (Reason::Failed, 9));
        let expected = format!("attempt 2 could not be started: no process; {STUCK}");
        assert!(end.detail.ends_with(&expected), "{}", end.detail);
    }
}

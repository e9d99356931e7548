//! The end of a job after its tree is empty: the last commit, and the copy of a finished job's model.

use std::time::Duration;

use super::parts::{Cause, Stop};
use super::{Machine, State};
use crate::job::event::{Action, Flushed, Timer, Uptime};
use crate::job::verdict::Reason;
use crate::process::active_time::LATE;
use crate::process::exit;
use crate::process::exit::End;
use crate::process::signal::Signal;

/// A commit that transfers nothing for this long is given up.
const FLUSH_LIMIT: Duration = Duration::from_secs(300);
/// The time for the commit to report its result after its deadline.
const RESULT_TIME: Duration = Duration::from_millis(500);

/// What to do about a model that could not be copied.
pub const COPY_AGAIN: &str = "everything else is done, start the job again or copy the model by hand";

/// What to do about a checkpoint that was not committed; its disk may still exist.
const COMMIT_AGAIN: &str =
    "the newest checkpoint may not be safe, start the job again with its checkpoint directory to commit it";

/// A launcher may exit this much later than its killed process: Open MPI's mpirun takes more than 2 s.
const LAUNCHER_DELAY: Duration = Duration::from_secs(3);

/// Whether an exit code of a shell or launcher means that a signal killed the trainer. MPICH's mpiexec exits with the
/// bare number of SIGKILL, and Composer's launcher with Python's negative number, which is 256 minus the signal (SEGV
/// to ILL). HUP, INT and TERM do not count, because trainers handle them.
fn means_killed(code: u8) -> bool {
    i32::from(code) == Signal::KILL.number()
        || code > 128 && ![129, 130, 143].contains(&code) && Signal::new(i32::from(code) - 128).is_some()
        || (245..=252).contains(&code)
}

impl Machine {
    /// If the trainer was killed, the save that it was writing may be torn. A trainer that was asked to stop and left
    /// in time has finished writing, and so has a trainer that exited by itself with any code.
    pub(super) fn mark_unsure(&self, now: Uptime) -> Option<Action> {
        let (end, _) = self.attempt.ended.filter(|_| self.policy.checkpoints)?;
        let is_asked = self.stopping.stop.is_some() || self.answered_a_request(now);
        let before_launcher_exit = || self.attempt.ended_at.saturating_sub(LAUNCHER_DELAY);
        let is_launcher_code = matches!(end, End::Code(code) if !is_asked && means_killed(code));
        let at = match (end, self.stopping.kill_from) {
            (_, Some(killed_at)) if is_launcher_code => before_launcher_exit().min(killed_at),
            (_, Some(killed_at)) => killed_at,
            (End::Signal(_), None) if !is_asked || self.attempt.hung.is_some() => self.attempt.ended_at,
            _ if is_launcher_code => before_launcher_exit(),
            _ => return None,
        };
        Some(Action::MarkUnsure { at: at.max(self.attempt.started_at) })
    }

    /// The tree is empty, and no attempt follows.
    pub(super) fn flush(&mut self, now: Uptime) -> Vec<Action> {
        let fenced = matches!(self.stopping.stop, Some(Stop { cause: Cause::Fenced { .. }, .. }));
        if !self.policy.store || fenced || self.attempt.number == 0 {
            return self.publish_or_finish(now);
        }
        self.state = State::Flushing;
        let flush = Action::Flush {
            deadline: self.notices.leave_by.map(|(_, gone)| gone),
            leaving: self.stopping.stop.is_some() || self.stopping.interrupted.is_some(),
            failed: self.stopping.stop.is_none() && !self.ended_well(),
        };
        self.report_last_commit().into_iter().chain([self.flush_limit(now), flush]).collect()
    }

    /// The limit moves while bytes are transferred, but never beyond the announced end.
    pub(super) fn flush_limit(&mut self, now: Uptime) -> Action {
        let limit = now + FLUSH_LIMIT;
        self.commits.give_up_at = self.notices.leave_by.map_or(limit, |(_, gone)| limit.min(gone + RESULT_TIME));
        Action::Arm(Timer::FlushLimit, self.commits.give_up_at)
    }

    /// The checkpoints are safe: copies a finished job's model, or ends.
    fn publish_or_finish(&mut self, now: Uptime) -> Vec<Action> {
        if self.policy.model.is_none() || self.commits.has_published || !self.succeeded() {
            return self.finish();
        }
        self.commits.has_published = true;
        (self.commits.is_deleting_old, self.commits.awaits_others) = (false, false);
        self.state = State::Flushing;
        vec![self.flush_limit(now), Action::Publish]
    }

    pub(super) fn on_flushed(&mut self, now: Uptime, flushed: Flushed) -> Vec<Action> {
        if self.state != State::Flushing {
            return Vec::new();
        }
        match flushed {
            Flushed::Done { step } => {
                self.note_newest(step);
                self.publish_or_finish(now)
            }
            Flushed::Stepless => {
                self.commits.step = None;
                self.publish_or_finish(now)
            }
            Flushed::Failed(detail) => self.commit_failed(detail),
            // There was no promise to be in time, so a stop stays a stop.
            Flushed::OutOfTime(detail) if self.stopping.stop.is_some() => {
                self.restarts.no_restart_reason = detail;
                self.finish()
            }
            Flushed::OutOfTime(detail) => {
                let by = self
                    .notices
                    .acted_on
                    .as_ref()
                    .map(|source| format!("preempted ({source}) before {} was complete: ", self.pending_work().0));
                self.commit_failed(by.unwrap_or_default() + &detail)
            }
        }
    }

    /// The work that the end of the job waits for, and the advice if it fails.
    pub(super) fn pending_work(&self) -> (String, &'static str) {
        match self.policy.model.as_ref().filter(|_| self.commits.has_published) {
            Some(store) => (format!("the copy of the model to {store}"), COPY_AGAIN),
            None => ("the last commit".to_owned(), COMMIT_AGAIN),
        }
    }

    /// The child's own failure stays the reason; a success or a stop whose checkpoint is not safe is 204.
    pub(super) fn commit_failed(&mut self, detail: String) -> Vec<Action> {
        if self.stopping.stop.is_none() && !self.ended_well() {
            self.restarts.no_restart_reason = detail;
            return self.finish();
        }
        self.exit(Reason::Store, exit::STORE, detail)
    }

    /// Nothing was transferred for too long, or the announced time has run out.
    pub(super) fn on_flush_limit(&mut self, now: Uptime) -> Vec<Action> {
        let (pending, advice) = self.pending_work();
        if self.notices.leave_by.is_some_and(|(_, gone)| gone <= now) {
            let then = match self.commits.step {
                _ if self.commits.has_published => format!("; {advice}"),
                Some(step) => format!("; step {step}, committed before, is kept"),
                None => String::new(),
            };
            return self
                .on_flushed(now, Flushed::OutOfTime(format!("the time ran out before {pending} was complete{then}")));
        }
        // This process was frozen, so nothing could be transferred.
        if now.saturating_sub(self.commits.give_up_at) > LATE {
            return vec![self.flush_limit(now)];
        }
        let limit = FLUSH_LIMIT.as_secs();
        self.commit_failed(format!("{pending} transferred nothing for {limit} s: the store hangs, check it; {advice}"))
    }

    /// Records the step of the newest commit in the store.
    pub(super) fn note_newest(&mut self, step: Option<u64>) {
        // An attempt that fell back to an older checkpoint may have committed nothing, while the store still has a
        // newer commit.
        let is_old = step == self.attempt.resumed.as_ref().and_then(|r| r.step);
        self.commits.step = if is_old { self.commits.step.max(step) } else { step.or(self.commits.step) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ended, running, secs, term};
    use super::*;
    use crate::job::{Event, Policy};

    fn unsure(actions: &[Action]) -> Vec<Uptime> {
        let at = |action: &Action| if let Action::MarkUnsure { at } = action { Some(*at) } else { None };
        actions.iter().filter_map(at).collect()
    }

    fn keeps() -> Machine {
        running(Policy { checkpoints: true, store: true, ..Policy::default() })
    }

    fn dies(machine: &mut Machine, at: f64, end: Event, empty: f64) -> Vec<Uptime> {
        machine.step(secs(at), end);
        unsure(&machine.step(secs(empty), Event::TreeEmpty))
    }

    #[test]
    fn a_last_commit_that_transfers_is_awaited_and_one_that_hangs_is_given_up() {
        let mut machine = keeps();
        machine.step(secs(1.0), ended(0));
        machine.step(secs(1.0), Event::TreeEmpty);
        for at in [2.0, 290.0, 580.0] {
            let limit = Action::Arm(Timer::FlushLimit, secs(at) + FLUSH_LIMIT);
            assert_eq!(machine.step(secs(at), Event::Transferring), [limit]);
        }
        let given_up = machine.step(secs(880.0), Event::Due(Timer::FlushLimit));
        let Some(Action::Exit(outcome)) = given_up.last() else { panic!("{given_up:?}") };
        assert_eq!((outcome.reason, outcome.exit_code), (Reason::Store, exit::STORE));
    }

    #[test]
    fn a_last_commit_is_not_given_up_because_of_a_freeze() {
        let mut machine = keeps();
        machine.step(secs(1.0), ended(0));
        machine.step(secs(1.0), Event::TreeEmpty);
        let again = machine.step(secs(3600.0), Event::Due(Timer::FlushLimit));
        assert_eq!(again, [Action::Arm(Timer::FlushLimit, secs(3600.0) + FLUSH_LIMIT)]);
        let given_up = machine.step(secs(3901.0), Event::Due(Timer::FlushLimit));
        assert!(
            matches!(given_up[..], [Action::Exit(ref outcome)] if outcome.exit_code == exit::STORE),
            "{given_up:?}"
        );
        let mut machine = keeps();
        machine.step(secs(0.5), Event::Preempted { id: "a".into(), source: "a".into(), lead: Duration::from_secs(30) });
        machine.step(secs(1.0), ended(0));
        machine.step(secs(1.0), Event::TreeEmpty);
        let over = machine.step(secs(3600.0), Event::Due(Timer::FlushLimit));
        assert!(matches!(over[..], [Action::Exit(ref outcome)] if outcome.exit_code == exit::STOPPED), "{over:?}");
    }

    #[test]
    fn a_signal_after_the_last_commit_does_not_change_the_result() {
        for (is_through, signal) in
            [(true, Signal::HUP), (true, Signal::TERM), (false, Signal::TERM), (false, Signal::HUP)]
        {
            let mut machine = keeps();
            machine.step(secs(1.0), ended(0));
            machine.step(secs(1.0), Event::TreeEmpty);
            if is_through {
                machine.step(secs(2.0), Event::Tidying);
            }
            let asked = machine.step(secs(3.0), Event::Signal { signal, sender: None });
            if !is_through && signal == Signal::HUP {
                assert!(matches!(asked[..], [Action::Exit(_)]), "{asked:?}");
                continue;
            }
            assert_eq!(asked, [Action::CommitSoon { notice: true }]);
            let done = machine.step(secs(3.1), Event::Flushed(Flushed::Done { step: Some(4) }));
            let Some(Action::Exit(outcome)) = done.last() else { panic!("{done:?}") };
            assert_eq!((outcome.reason, outcome.exit_code), (Reason::Finished, 0));
        }
    }

    #[test]
    fn a_last_commit_that_waits_for_other_processes_survives_the_first_signal() {
        for signal in [Signal::INT, Signal::HUP, Signal::TERM] {
            let mut machine = keeps();
            machine.step(secs(1.0), ended(0));
            machine.step(secs(1.0), Event::TreeEmpty);
            machine.step(secs(1.1), Event::AwaitsOthers(Some(secs(30.0))));
            let asked = machine.step(secs(2.0), Event::Signal { signal, sender: None });
            assert_eq!(asked, [Action::CommitSoon { notice: true }], "{signal}");
            let mut again = || machine.step(secs(2.1), Event::Signal { signal: Signal::INT, sender: None });
            assert!(matches!(again()[..], [Action::Exit(ref outcome)] if outcome.reason == Reason::Store));
        }
        let mut machine = keeps();
        machine.step(secs(1.0), ended(0));
        machine.step(secs(1.0), Event::TreeEmpty);
        machine.step(secs(1.1), Event::AwaitsOthers(Some(secs(30.0))));
        machine.step(secs(1.2), Event::AwaitsOthers(None));
        let asked = machine.step(secs(2.0), Event::Signal { signal: Signal::INT, sender: None });
        assert!(matches!(asked[..], [Action::Exit(_)]), "the commit itself: {asked:?}");
    }

    #[test]
    fn a_killed_trainer_is_distinguished_from_one_that_exited_or_was_asked_to() {
        let signalled = |signal| Event::MainEnded { local_rank: 0, end: End::Signal(signal), oom: Some(false) };
        for code in [0, 1, 143, 201, 241, 244, 253, 255] {
            assert_eq!(dies(&mut keeps(), 4.0, ended(code), 5.0), []);
        }
        assert_eq!(dies(&mut keeps(), 4.0, signalled(Signal::KILL), 5.0), [secs(4.0)]);
        for before_launcher_exit in [137, 139, 9, 245, 247, 252] {
            assert_eq!(dies(&mut keeps(), 4.0, ended(before_launcher_exit), 5.0), [secs(1.0)]);
            assert_eq!(dies(&mut keeps(), 2.0, ended(before_launcher_exit), 2.5), [keeps().attempt.started_at]);
        }
        let stopped = || {
            let mut machine = keeps();
            machine.step(secs(1.0), term());
            machine
        };
        assert_eq!(dies(&mut stopped(), 2.0, ended(143), 2.1), []);
        assert_eq!(
            dies(&mut stopped(), 2.0, signalled(Signal::TERM), 2.01),
            [],
            "it was asked to stop, and exited in time"
        );
        let mut machine = stopped();
        machine.step(secs(26.0), Event::Due(Timer::Grace));
        assert_eq!(dies(&mut machine, 26.5, signalled(Signal::KILL), 26.6), [secs(26.0)]);
    }

    #[test]
    fn a_rank_that_outlives_its_launcher_does_not_make_a_torn_save_valid() {
        let mut machine = keeps();
        machine.step(secs(10.0), ended(137));
        machine.step(secs(35.0), Event::Due(Timer::Grace));
        assert_eq!(unsure(&machine.step(secs(35.1), Event::TreeEmpty)), [secs(7.0)]);
    }
}

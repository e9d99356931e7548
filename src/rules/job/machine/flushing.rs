//! What a life ends with when its tree is empty: the last commit, and the model of a job that finished.

use std::time::Duration;

use super::{Cause, Machine, State, Stop};
use crate::rules::awake::LATE;
use crate::rules::exit::{self, End};
use crate::rules::job::event::{Action, Flushed, Timer, Uptime};
use crate::rules::job::verdict::Reason;
use crate::rules::signal::Signal;

/// A commit that moves no byte for this long is given up.
const FLUSH_LIMIT: Duration = Duration::from_secs(300);
/// What the commit's own word may take after its time is up.
const LAST_WORD: Duration = Duration::from_millis(500);

/// What to do about a model that could not be copied.
pub const COPY_AGAIN: &str = "the job is done but for that, start it again or copy it by hand";

/// The same where it is a checkpoint, whose disk may be there yet.
const COMMIT_AGAIN: &str = "the newest checkpoint may not be safe, start the job again where it lies to commit it";

/// Nobody answers a signal in so short a time.
const AT_ONCE: Duration = Duration::from_millis(50);
/// Who dies of the signal that ends the job was mostly doing something else than saving: only what was written just then is
/// in doubt.
const JUST_THEN: Duration = Duration::from_millis(500);

/// A launcher may leave so much later than the process that was killed below it: Open MPI's mpirun takes more than 2 s.
const LAUNCHERS_DELAY: Duration = Duration::from_secs(3);

/// So much older than it is may a file look: its time is that of the kernel's last tick, or of a share's server.
const FILES_CLOCK: Duration = Duration::from_millis(100);

/// A shell's or launcher's word for the signal that killed the trainer; MPICH's mpiexec has the bare number of SIGKILL, and who
/// leaves with Python's number for a death (Composer's launcher) 256 less it, from SEGV to ILL. HUP, INT and TERM are answered
/// rather than died of.
fn tells_of_a_kill(code: u8) -> bool {
    i32::from(code) == Signal::KILL.number()
        || code > 128 && ![129, 130, 143].contains(&code) && Signal::new(i32::from(code) - 128).is_some()
        || (245..=252).contains(&code)
}

impl Machine {
    /// Where the trainer was killed rather than that it left: what it was saving then may be torn.
    pub(super) fn doubt(&self, now: Uptime) -> Option<Action> {
        let (end, _) = self.ended.filter(|_| self.policy.checkpoints)?;
        let is_asked = self.stop.is_some() || self.answered_a_request(now);
        let of_a_launcher = match end {
            End::Code(code) if !is_asked && tells_of_a_kill(code) => {
                Some(self.ended_at.saturating_sub(LAUNCHERS_DELAY))
            }
            _ => None,
        };
        let (at, most) = match (end, self.killing) {
            (_, Some(killed_at)) => (of_a_launcher.map_or(killed_at, |at| at.min(killed_at)), Duration::MAX),
            (End::Signal(_), _) if !is_asked || self.hung.is_some() => (self.ended_at, Duration::MAX),
            // A shell around the trainer dies of what the trainer answers.
            (End::Signal(_), _) if now.saturating_sub(self.ended_at) < AT_ONCE => (self.ended_at, JUST_THEN),
            _ => match of_a_launcher {
                Some(at) => (at, Duration::MAX),
                None => (self.others_stopped(now)?, JUST_THEN),
            },
        };
        // What it found as it started is not its own.
        let started = self.started_at.saturating_sub(FILES_CLOCK);
        let at = at.max(started);
        let most = most.min(at.saturating_sub(started));
        Some(Action::Doubt { at, most })
    }

    /// When those were stopped that did not end by themselves, where one of several failed: a rank may have been saving.
    fn others_stopped(&self, now: Uptime) -> Option<Uptime> {
        let died = self.last_stopped().filter(|at| now.saturating_sub(*at) < AT_ONCE)?;
        // A rank with a GPU is long in dying.
        Some(if self.stop.is_none() { self.ended_at } else { died })
    }

    /// The tree is empty for good.
    pub(super) fn flush(&mut self, now: Uptime) -> Vec<Action> {
        let fenced = matches!(self.stop, Some(Stop { cause: Cause::Fenced { .. }, .. }));
        if !self.policy.store || fenced || self.attempt == 0 {
            return self.publish_or_finish(now);
        }
        self.state = State::Flushing;
        vec![
            self.flush_limit(now),
            Action::Flush {
                deadline: self.leave_by.map(|(_, gone)| gone),
                leaving: self.stop.is_some() || self.interrupted.is_some(),
                failed: self.stop.is_none() && !self.ended_well(),
            },
        ]
    }

    /// As long as bytes move, but never beyond the end that was announced.
    pub(super) fn flush_limit(&mut self, now: Uptime) -> Action {
        let limit = now + FLUSH_LIMIT;
        self.flush_by = self.leave_by.map_or(limit, |(_, gone)| limit.min(gone + LAST_WORD));
        Action::Arm(Timer::FlushLimit, self.flush_by)
    }

    /// Checkpoints are safe; what a finished job leaves beside them is next.
    pub(super) fn publish_or_finish(&mut self, now: Uptime) -> Vec<Action> {
        if self.policy.model.is_none() || self.published || !self.succeeded() {
            return self.finish();
        }
        self.published = true;
        (self.is_tidying, self.awaits_others) = (false, false);
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
                self.committed = None;
                self.publish_or_finish(now)
            }
            Flushed::Failed(detail) => self.lost_commit(detail),
            // Nothing was promised to be in time: a stop stays a stop.
            Flushed::OutOfTime(detail) if self.stop.is_some() => {
                self.gave_up = detail;
                self.finish()
            }
            Flushed::OutOfTime(detail) => {
                let by = self
                    .leaving
                    .as_ref()
                    .map(|source| format!("preempted ({source}) before {} was through: ", self.owed().0));
                self.lost_commit(by.unwrap_or_default() + &detail)
            }
        }
    }

    /// What the end waits for, and what to say where it does not come.
    pub(super) fn owed(&self) -> (String, &'static str) {
        match self.policy.model.as_ref().filter(|_| self.published) {
            Some(store) => (format!("the copy of the model to {store}"), COPY_AGAIN),
            None => ("the last commit".to_owned(), COMMIT_AGAIN),
        }
    }

    /// The child's own failure stays the story; a success or a stop whose checkpoint is not safe is 204.
    pub(super) fn lost_commit(&mut self, detail: String) -> Vec<Action> {
        if self.stop.is_none() && !self.ended_well() {
            self.gave_up = detail;
            return self.finish();
        }
        self.exit(Reason::Store, exit::STORE, detail)
    }

    /// No byte has moved for too long, or the time that was announced is up.
    pub(super) fn on_flush_limit(&mut self, now: Uptime) -> Vec<Action> {
        let (deed, lost) = self.owed();
        if self.leave_by.is_some_and(|(_, gone)| gone <= now) {
            let then = match self.committed {
                _ if self.published => format!("; {lost}"),
                Some(step) => format!("; step {step}, committed before, stands"),
                None => String::new(),
            };
            return self
                .on_flushed(now, Flushed::OutOfTime(format!("the time was up before {deed} was through{then}")));
        }
        // We stood still ourselves: nothing could move.
        if now.saturating_sub(self.flush_by) > LATE {
            return vec![self.flush_limit(now)];
        }
        let limit = FLUSH_LIMIT.as_secs();
        self.lost_commit(format!("{deed} moved no byte for {limit} s: the store hangs, look at it; {lost}"))
    }

    /// The keeper says what the store holds of the directory.
    pub(super) fn note_newest(&mut self, step: Option<u64>) {
        // An attempt that went back may have left a newer commit behind, and made none.
        let is_old = step == self.resumed.as_ref().and_then(|r| r.step);
        self.committed = if is_old { self.committed.max(step) } else { step.or(self.committed) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ended, running, secs, term};
    use super::*;
    use crate::rules::job::{Event, Policy, Processes};

    fn doubts(actions: &[Action]) -> Vec<(Uptime, Duration)> {
        let doubt = |action: &Action| if let Action::Doubt { at, most } = action { Some((*at, *most)) } else { None };
        actions.iter().filter_map(doubt).collect()
    }

    fn keeps() -> Machine {
        running(Policy { checkpoints: true, store: true, ..Policy::default() })
    }

    fn dies(machine: &mut Machine, at: f64, end: Event, empty: f64) -> Vec<(Uptime, Duration)> {
        machine.step(secs(at), end);
        doubts(&machine.step(secs(empty), Event::TreeEmpty))
    }

    #[test]
    fn a_last_commit_that_goes_on_is_waited_for_and_one_that_hangs_is_given_up() {
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
    fn a_last_commit_that_was_frozen_with_us_is_not_given_up_for_that() {
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
    fn a_job_whose_last_commit_is_through_is_done_whoever_asks_it_to_leave() {
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
            assert_eq!(asked, [Action::Hasten { notice: true }]);
            let done = machine.step(secs(3.1), Event::Flushed(Flushed::Done { step: Some(4) }));
            let Some(Action::Exit(outcome)) = done.last() else { panic!("{done:?}") };
            assert_eq!((outcome.reason, outcome.exit_code), (Reason::Finished, 0));
        }
    }

    #[test]
    fn a_last_commit_that_waits_for_the_other_processes_is_not_broken_off_by_the_first_signal() {
        for signal in [Signal::INT, Signal::HUP, Signal::TERM] {
            let mut machine = keeps();
            machine.step(secs(1.0), ended(0));
            machine.step(secs(1.0), Event::TreeEmpty);
            machine.step(secs(1.1), Event::AwaitsOthers(Some(secs(30.0))));
            let asked = machine.step(secs(2.0), Event::Signal { signal, sender: None });
            assert_eq!(asked, [Action::Hasten { notice: true }], "{signal}");
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
    fn what_a_trainer_wrote_as_it_was_killed_is_in_doubt_and_not_what_it_left_behind() {
        let signalled = |signal| Event::MainEnded { local_rank: 0, end: End::Signal(signal), oom: Some(false) };
        for code in [0, 1, 143, 201, 241, 244, 253, 255] {
            assert_eq!(dies(&mut keeps(), 4.0, ended(code), 5.0), []);
        }
        // As far back as the attempt goes, whose trainer found what is older.
        let started = |machine: &Machine| machine.started_at.saturating_sub(FILES_CLOCK);
        let since_its_start = |machine: &Machine, at: f64| (secs(at), secs(at) - started(machine));
        let start = since_its_start(&keeps(), 4.0);
        assert_eq!(dies(&mut keeps(), 4.0, signalled(Signal::KILL), 5.0), [start]);
        for of_a_launcher in [137, 139, 9, 245, 247, 252] {
            assert_eq!(dies(&mut keeps(), 4.0, ended(of_a_launcher), 5.0), [since_its_start(&keeps(), 1.0)]);
            assert_eq!(dies(&mut keeps(), 2.0, ended(of_a_launcher), 2.5), [(started(&keeps()), Duration::ZERO)]);
        }
        let stopped = || {
            let mut machine = keeps();
            machine.step(secs(1.0), term());
            machine
        };
        assert_eq!(dies(&mut stopped(), 2.0, ended(143), 2.1), []);
        assert_eq!(dies(&mut stopped(), 2.0, signalled(Signal::TERM), 2.01), [(secs(2.0), JUST_THEN)]);
        assert_eq!(dies(&mut stopped(), 2.0, signalled(Signal::TERM), 9.0), [], "a shell, before its trainer");
        let mut machine = stopped();
        machine.step(secs(26.0), Event::Due(Timer::Grace));
        assert_eq!(dies(&mut machine, 26.5, signalled(Signal::KILL), 26.6), [since_its_start(&machine, 26.0)]);
    }

    #[test]
    fn what_a_rank_wrote_as_another_ones_failure_stopped_it_is_in_doubt() {
        let four = || {
            let processes = Processes { count: 4, first_rank: 0 };
            let mut machine = Machine::new(Policy { checkpoints: true, processes, ..Policy::default() });
            machine.step(secs(0.0), Event::Started);
            machine.step(secs(0.0), Event::Restored { resume: None, committed: None, older: false });
            machine.step(secs(0.1), Event::Spawned { pids: vec![10, 11, 12, 13] });
            machine
        };
        let rank = |local_rank, end| Event::MainEnded { local_rank, end, oom: Some(false) };
        let term = End::Signal(Signal::TERM);
        for (last, empty, seen) in [
            (term, 6.51, vec![(secs(5.0), JUST_THEN)]),
            (term, 9.0, vec![]),
            (End::Code(143), 6.51, vec![]),
            (End::Signal(Signal::new(6).expect("a signal")), 6.51, vec![]),
        ] {
            let mut machine = four();
            machine.step(secs(5.0), rank(2, End::Code(1)));
            machine.step(secs(5.1), rank(1, term));
            machine.step(secs(6.5), rank(0, last));
            assert_eq!(doubts(&machine.step(secs(empty), Event::TreeEmpty)), seen, "{last:?}, {empty}");
        }
        let mut machine = four();
        machine.step(secs(5.0), super::super::tests::term());
        for local_rank in 1..4 {
            machine.step(secs(5.5), rank(local_rank, End::Code(143)));
        }
        machine.step(secs(7.0), rank(0, term));
        assert_eq!(doubts(&machine.step(secs(7.01), Event::TreeEmpty)), [(secs(7.0), JUST_THEN)]);
    }

    #[test]
    fn a_rank_that_outlives_its_launcher_does_not_make_what_was_torn_before_it_whole() {
        let mut machine = keeps();
        machine.step(secs(10.0), ended(137));
        machine.step(secs(35.0), Event::Due(Timer::Grace));
        let seen = doubts(&machine.step(secs(35.1), Event::TreeEmpty));
        assert_eq!(seen.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [secs(7.0)]);
    }
}

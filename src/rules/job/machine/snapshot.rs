//! The state of a living job, for the status.

use super::parts::Cause;
use super::{Machine, State};
use crate::job::event::Uptime;

/// Every name of a state.
pub const STATES: [&str; 14] = [
    "fetching",
    "restoring",
    "gathering",
    "launching",
    "running",
    "stopping",
    "draining",
    "refreshing",
    "waiting",
    "surveying",
    "assembling",
    "arming",
    "flushing",
    "done",
];

/// The state of a job. Times are since trainit started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// One of [`STATES`].
    pub state: &'static str,
    /// Whether the command runs now.
    pub is_running: bool,
    /// Starts of the command so far.
    pub attempt: u32,
    /// Restarts since the last progress.
    pub restarts_used: u32,
    /// Restarts allowed without progress.
    pub restarts_allowed: u32,
    /// When the present or the last attempt started.
    pub attempt_at: Option<Uptime>,
    /// The checkpoint that it, or the first attempt before its start, resumes from.
    pub resumed_from: Option<String>,
    /// The step of that checkpoint.
    pub resumed_step: Option<u64>,
    /// The step of the newest commit.
    pub committed_step: Option<u64>,
    /// Whether checkpoints are committed to a store.
    pub has_store: bool,
    /// Why the job is being stopped, or will be. A hang counts only if no other attempt follows.
    pub leaving: Option<String>,
    /// The reason is a failure, not a request: a failed GPU, or a newer run that owns the store.
    pub is_failing: bool,
    /// When the remaining processes of the tree get SIGKILL.
    pub kill_at: Option<Uptime>,
    /// When the machine goes away, if that was announced.
    pub machine_gone_at: Option<Uptime>,
}

impl Machine {
    /// The state now.
    pub fn snapshot(&self) -> Snapshot {
        let is_running = matches!(self.state, State::Running);
        let state = match self.state {
            State::Fetching => "fetching",
            State::Restoring => "restoring",
            State::Launching => "launching",
            State::Running if self.stopping.stop.is_some() => "stopping",
            State::Running => "running",
            State::Draining => "draining",
            State::Refreshing => "refreshing",
            State::Gathering => "gathering",
            State::Waiting => "waiting",
            State::Surveying => "surveying",
            State::Assembling => "assembling",
            State::Arming => "arming",
            State::Flushing => "flushing",
            State::Done => "done",
        };
        let resumed = if self.attempt.number == 0 { &self.next.resume } else { &self.attempt.resumed };
        let late = self.next_end().map(|source| format!("preempted ({source}), not yet near"));
        let leaving = self.stopping.stop.as_ref().map(|stop| match &stop.cause {
            Cause::Signal { sender: Some(pid) } if *pid > 0 => format!("stopped by SIGTERM from pid {pid}"),
            Cause::Signal { .. } => "stopped by SIGTERM".to_owned(),
            Cause::Notice { source } => format!("preempted ({source})"),
            Cause::Gpu { detail } | Cause::Fenced { detail, .. } => detail.clone(),
        });
        let may_follow = match self.state {
            State::Waiting => true,
            State::Flushing | State::Done => false,
            _ => self.restarts.budget.used() < self.policy.max_restarts,
        };
        let hung = self.attempt.hung.as_ref().filter(|_| !may_follow).map(|why| format!("the command hung: {why}"));
        Snapshot {
            state,
            is_running,
            attempt: self.attempt.number,
            restarts_used: self.restarts.budget.used(),
            restarts_allowed: self.policy.max_restarts,
            attempt_at: (self.attempt.number > 0 && self.state != State::Launching).then_some(self.attempt.started_at),
            resumed_from: resumed.as_ref().map(|r| r.from.clone()),
            resumed_step: resumed.as_ref().and_then(|r| r.step),
            committed_step: self.commits.step,
            has_store: self.policy.store,
            leaving: leaving.or(hung).or(late),
            is_failing: self
                .stopping
                .stop
                .as_ref()
                .is_some_and(|stop| matches!(stop.cause, Cause::Gpu { .. } | Cause::Fenced { .. })),
            kill_at: self.stopping.deadline.filter(|_| self.stopping.stop.is_some() || self.attempt.hung.is_some()),
            machine_gone_at: self.notices.leave_by.map(|(end, _)| end),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::job::Policy;
    use crate::job::event::{Event, Timer};
    use crate::process::exit::End;
    use crate::process::signal::Signal;

    const SECOND: Duration = Duration::from_secs(1);

    fn running() -> Machine {
        let mut machine = Machine::new(Policy { max_restarts: 3, ..Policy::default() });
        machine.step(Duration::ZERO, Event::Started);
        assert_eq!((machine.snapshot().state, machine.snapshot().attempt_at), ("launching", None));
        machine.step(SECOND, Event::Spawned { pids: vec![7] });
        machine
    }

    #[test]
    fn a_running_job_is_reported_with_its_attempt() {
        let snapshot = running().snapshot();
        assert!(STATES.contains(&snapshot.state) && STATES.contains(&"launching"));
        assert_eq!(
            (snapshot.state, snapshot.is_running, snapshot.attempt, snapshot.restarts_allowed),
            ("running", true, 1, 3)
        );
        assert_eq!((snapshot.attempt_at, snapshot.leaving, snapshot.kill_at), (Some(SECOND), None, None));
    }

    #[test]
    fn only_restarts_since_the_last_progress_are_reported() {
        let mut machine = running();
        let crash = Event::MainEnded { local_rank: 0, end: End::Code(1), oom: Some(false) };
        for event in [crash, Event::TreeEmpty, Event::Due(Timer::Backoff)] {
            machine.step(2 * SECOND, event);
        }
        assert_eq!((machine.snapshot().attempt, machine.snapshot().restarts_used), (2, 1));
        machine.step(
            3 * SECOND,
            Event::Committed { unit: "u".into(), step: Some(5), took: SECOND, lag: SECOND, is_progress: true },
        );
        assert_eq!((machine.snapshot().attempt, machine.snapshot().restarts_used), (2, 0));
    }

    #[test]
    fn a_stop_is_reported_with_its_reason_and_deadline() {
        let mut machine = running();
        machine.step(2 * SECOND, Event::Signal { signal: Signal::TERM, sender: Some(31) });
        let snapshot = machine.snapshot();
        assert_eq!((snapshot.state, snapshot.leaving.as_deref()), ("stopping", Some("stopped by SIGTERM from pid 31")));
        assert_eq!(snapshot.kill_at, Some(2 * SECOND + Policy::default().stop_grace));
        assert!(!snapshot.is_failing);
    }

    #[test]
    fn a_preemption_is_reported_with_the_machines_end_and_so_is_a_distant_one() {
        let mut machine = running();
        machine.step(
            2 * SECOND,
            Event::Preempted { id: String::new(), source: "gce preempted".into(), lead: 30 * SECOND },
        );
        assert_eq!(machine.snapshot().leaving.as_deref(), Some("preempted (gce preempted)"));
        assert_eq!(machine.snapshot().machine_gone_at, Some(32 * SECOND));
        let mut late = running();
        late.step(2 * SECOND, Event::Preempted { id: String::new(), source: "azure".into(), lead: 3600 * SECOND });
        assert_eq!(late.snapshot().state, "running");
        assert!(late.snapshot().leaving.is_some_and(|why| why.contains("not yet near")));
    }

    #[test]
    fn a_failed_gpu_is_a_failure_and_not_a_request() {
        let mut machine = running();
        machine.step(2 * SECOND, Event::GpuFailed { detail: "GPU 1: lost".into() });
        assert_eq!((machine.snapshot().is_failing, machine.snapshot().leaving.as_deref()), (true, Some("GPU 1: lost")));
    }
}

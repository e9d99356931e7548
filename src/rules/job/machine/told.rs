//! What there is to say of a job to somebody who asks while it lives.

use super::{Cause, Machine, State};
use crate::rules::job::event::Uptime;

/// Every state there is a word for.
pub const STATES: [&str; 10] = [
    "restoring",
    "gathering",
    "launching",
    "running",
    "stopping",
    "draining",
    "refreshing",
    "waiting",
    "flushing",
    "done",
];

/// Where a job stands. Times are since trainit started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// One of [`STATES`].
    pub state: &'static str,
    /// Whether the command runs now.
    pub is_running: bool,
    /// Starts of the command so far.
    pub attempt: u32,
    /// Restarts since the last progress.
    pub restarts_used: u32,
    /// So many of those there may be.
    pub restarts_allowed: u32,
    /// When the current (or last) attempt began.
    pub attempt_at: Option<Uptime>,
    /// What it (or the first, before it begins) goes on from.
    pub resumed_from: Option<String>,
    /// Its step.
    pub resumed_step: Option<u64>,
    /// The step of the newest commit.
    pub committed_step: Option<u64>,
    /// Whether checkpoints are committed to a store at all.
    pub has_store: bool,
    /// Why it is being stopped, or will be; a hung attempt only where no other follows.
    pub leaving: Option<String>,
    /// That is no wish from outside but a failure: a GPU, or a newer run that owns the store.
    pub is_failing: bool,
    /// When whatever is left of the process tree gets SIGKILL.
    pub kill_at: Option<Uptime>,
    /// When the machine goes away, where that was announced.
    pub machine_gone_at: Option<Uptime>,
}

impl Machine {
    /// What to say now.
    pub fn told(&self) -> Told {
        let is_running = matches!(self.state, State::Running);
        let state = match self.state {
            State::Restoring => "restoring",
            State::Launching => "launching",
            State::Running if self.stop.is_some() => "stopping",
            State::Running => "running",
            State::Draining => "draining",
            State::Refreshing => "refreshing",
            State::Gathering => "gathering",
            State::Waiting => "waiting",
            State::Flushing => "flushing",
            State::Done => "done",
        };
        let resumed = if self.attempt == 0 { &self.resume } else { &self.resumed };
        let late = self.next_end().map(|source| format!("preempted ({source}), not yet near"));
        let leaving = self.stop.as_ref().map(|stop| match &stop.cause {
            Cause::Signal { sender: Some(pid) } if *pid > 0 => format!("stopped by SIGTERM from pid {pid}"),
            Cause::Signal { .. } => "stopped by SIGTERM".to_owned(),
            Cause::Notice { source } => format!("preempted ({source})"),
            Cause::Gpu { detail } | Cause::Fenced { detail, .. } => detail.clone(),
        });
        let may_follow = match self.state {
            State::Waiting => true,
            State::Flushing | State::Done => false,
            _ => self.memory.used() < self.policy.max_restarts,
        };
        let hung = self.hung.as_ref().filter(|_| !may_follow).map(|why| format!("the command hung: {why}"));
        Told {
            state,
            is_running,
            attempt: self.attempt,
            restarts_used: self.memory.used(),
            restarts_allowed: self.policy.max_restarts,
            attempt_at: (self.attempt > 0 && self.state != State::Launching).then_some(self.started_at),
            resumed_from: resumed.as_ref().map(|r| r.from.clone()),
            resumed_step: resumed.as_ref().and_then(|r| r.step),
            committed_step: self.committed,
            has_store: self.policy.store,
            leaving: leaving.or(hung).or(late),
            is_failing: self
                .stop
                .as_ref()
                .is_some_and(|stop| matches!(stop.cause, Cause::Gpu { .. } | Cause::Fenced { .. })),
            kill_at: self.deadline.filter(|_| self.stop.is_some() || self.hung.is_some()),
            machine_gone_at: self.leave_by.map(|(end, _)| end),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rules::exit::End;
    use crate::rules::job::Policy;
    use crate::rules::job::event::{Event, Timer};
    use crate::rules::signal::Signal;

    const SECOND: Duration = Duration::from_secs(1);

    fn running() -> Machine {
        let mut machine = Machine::new(Policy { max_restarts: 3, ..Policy::default() });
        machine.step(Duration::ZERO, Event::Started);
        assert_eq!((machine.told().state, machine.told().attempt_at), ("launching", None));
        machine.step(SECOND, Event::Spawned { pids: vec![7] });
        machine
    }

    #[test]
    fn a_running_job_is_told_with_its_attempt() {
        let told = running().told();
        assert!(STATES.contains(&told.state) && STATES.contains(&"launching"));
        assert_eq!((told.state, told.is_running, told.attempt, told.restarts_allowed), ("running", true, 1, 3));
        assert_eq!((told.attempt_at, told.leaving, told.kill_at), (Some(SECOND), None, None));
    }

    #[test]
    fn what_is_used_of_the_budget_is_told_and_not_what_was_refilled() {
        let mut machine = running();
        let crash = Event::MainEnded { local_rank: 0, end: End::Code(1), oom: Some(false) };
        for event in [crash, Event::TreeEmpty, Event::Due(Timer::Backoff)] {
            machine.step(2 * SECOND, event);
        }
        assert_eq!((machine.told().attempt, machine.told().restarts_used), (2, 1));
        machine.step(3 * SECOND, Event::Committed { unit: "u".into(), step: Some(5), took: SECOND, lag: SECOND });
        assert_eq!((machine.told().attempt, machine.told().restarts_used), (2, 0));
    }

    #[test]
    fn a_stop_is_told_with_its_reason_and_deadline() {
        let mut machine = running();
        machine.step(2 * SECOND, Event::Signal { signal: Signal::TERM, sender: Some(31) });
        let told = machine.told();
        assert_eq!((told.state, told.leaving.as_deref()), ("stopping", Some("stopped by SIGTERM from pid 31")));
        assert_eq!(told.kill_at, Some(2 * SECOND + Policy::default().stop_grace));
        assert!(!told.is_failing);
    }

    #[test]
    fn a_preemption_is_told_with_the_machines_end_and_a_far_one_too() {
        let mut machine = running();
        machine.step(
            2 * SECOND,
            Event::Preempted { id: String::new(), source: "gce preempted".into(), lead: 30 * SECOND },
        );
        assert_eq!(machine.told().leaving.as_deref(), Some("preempted (gce preempted)"));
        assert_eq!(machine.told().machine_gone_at, Some(32 * SECOND));
        let mut late = running();
        late.step(2 * SECOND, Event::Preempted { id: String::new(), source: "azure".into(), lead: 3600 * SECOND });
        assert_eq!(late.told().state, "running");
        assert!(late.told().leaving.is_some_and(|why| why.contains("not yet near")));
    }

    #[test]
    fn a_failed_gpu_is_a_failure_and_not_a_wish() {
        let mut machine = running();
        machine.step(2 * SECOND, Event::GpuFailed { detail: "GPU 1: lost".into() });
        assert_eq!((machine.told().is_failing, machine.told().leaving.as_deref()), (true, Some("GPU 1: lost")));
    }
}

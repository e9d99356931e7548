//! The history of a run, shared by the event loop, the threads that collect metrics and those that show it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::edge::clock::{self, Clock};
use crate::rules::job::goodput::{Cause, Totals};
use crate::rules::job::{Event, Machine, Mirrored, Reason, Uptime};
use crate::rules::life::account::{Began, Ending};
use crate::rules::life::run::{Earlier, Identity, Run};
use crate::rules::life::save_plan;
use crate::rules::metric::ledger::Measured;
use crate::rules::metric::report::reported::Reported;
use crate::rules::status::history;

/// The history. A clone is the same history.
#[derive(Debug, Clone)]
pub(in crate::supervisor) struct History {
    clock: Clock,
    /// Whether it is shown. Otherwise only the goodput is recorded.
    is_shown: bool,
    shared: Arc<Mutex<history::History>>,
    /// How the run ended.
    ending: Arc<Mutex<Option<Ending>>>,
    /// Counts commits and the end, for the threads that write about them.
    changes: Arc<watch::Sender<u32>>,
}

impl History {
    /// An empty history.
    pub(in crate::supervisor) fn new(clock: Clock, is_shown: bool) -> History {
        History { clock, is_shown, shared: Arc::default(), ending: Arc::default(), changes: Arc::default() }
    }

    /// The machine has handled an event.
    pub(in crate::supervisor) fn note(&self, now: Uptime, event: &Event, machine: &Machine) {
        let mut locked = self.lock();
        let history = &mut *locked;
        history.goodput.enter(now, Cause::of(machine));
        history.account.note(now, event, machine, &mut history.goodput);
        if matches!(event, Event::Mirrored(Mirrored::Committed { .. })) {
            self.changes.send_modify(|count| *count = count.wrapping_add(1));
        }
        if matches!(event, Event::Spawned { .. }) {
            history.pace.begin();
        }
        // There may be a flood of them, and they are not shown.
        if self.is_shown && !matches!(event, Event::Reaped { .. }) {
            history.timeline.note(now, event, &machine.snapshot());
        }
    }

    /// The trainer reported a metric, at this time since 1970.
    pub(in crate::supervisor) fn measured(&self, measured: &Measured, seconds_since_1970: f64) {
        if let Some(step) = measured.given_step() {
            self.step(seconds_since_1970, step);
        }
        if let Some(step) = measured.step().filter(|_| self.is_shown) {
            self.lock().curves.add(measured.tag(), step, measured.value());
        }
    }

    /// The trainer reached this step at this time since 1970.
    pub(in crate::supervisor) fn step(&self, seconds_since_1970: f64, step: u64) {
        let wall = clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let age = Duration::try_from_secs_f64(wall - seconds_since_1970).unwrap_or_default();
        let at = self.clock.now().saturating_sub(age);
        let mut history = self.lock();
        history.goodput.step(at, step);
        history.account.step(at, step);
        history.pace.step(at, step);
    }

    /// A process of the job reported this itself.
    pub(in crate::supervisor) fn reported(&self, report: Reported) {
        if let Some(step) = report.step {
            self.step(report.time, step);
        }
        self.set_total_steps(report.total);
        for mut found in report.metrics {
            let Some(tag) = found.tag.take() else { continue };
            let (measured, _) = self.lock().reported.record(&tag, found);
            if let Some(measured) = measured {
                self.measured(&measured, report.time);
            }
        }
    }

    /// The last values of the metrics that processes of the job reported themselves.
    pub(in crate::supervisor) fn reported_values(&self) -> BTreeMap<String, String> {
        self.lock().reported.last_values()
    }

    /// The present step of the attempt, and its steps a second.
    pub(in crate::supervisor) fn pace(&self) -> (Option<u64>, Option<f64>) {
        let history = self.lock();
        (history.pace.last(), history.pace.per_second())
    }

    /// The training's last step is known.
    pub(in crate::supervisor) fn set_total_steps(&self, total: Option<u64>) {
        let mut history = self.lock();
        history.total_steps = total.or(history.total_steps);
    }

    /// The training's last step.
    pub(in crate::supervisor) fn total_steps(&self) -> Option<u64> {
        self.lock().total_steps
    }

    /// When the heartbeat must be read.
    pub(in crate::supervisor) fn look_at(&self) -> Option<Uptime> {
        self.lock().goodput.look_at()
    }

    /// The heartbeat was read.
    pub(in crate::supervisor) fn looked(&self, now: Uptime) {
        self.lock().goodput.looked(now);
    }

    /// The time until now, by cause.
    pub(in crate::supervisor) fn totals(&self, now: Uptime) -> Totals {
        self.lock().goodput.totals(now)
    }

    /// The time since the start of the run.
    pub(in crate::supervisor) fn now(&self) -> Uptime {
        self.clock.now()
    }

    /// What is known about saves and faults.
    pub(in crate::supervisor) fn measured_saves(&self, accelerators: u64) -> save_plan::Measured {
        self.lock().account.measured(self.clock.now(), accelerators)
    }

    /// What the runs before this one tell.
    pub(in crate::supervisor) fn follows(&self, earlier: Earlier) {
        let mut history = self.lock();
        if let Some(step) = earlier.step {
            history.goodput.reached_before(step);
        }
        history.account.follows(earlier);
    }

    /// The run has ended.
    pub(in crate::supervisor) fn end(&self, ending: Ending) {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = Some(ending);
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Whether the run has ended.
    pub(in crate::supervisor) fn has_ended(&self) -> bool {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether it ended by itself with success.
    pub(in crate::supervisor) fn has_finished(&self) -> bool {
        let ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        ending.as_ref().is_some_and(|ending| ending.reason == Reason::Finished.word())
    }

    /// Receives each commit, and the end.
    pub(in crate::supervisor) fn changes(&self) -> watch::Receiver<u32> {
        self.changes.subscribe()
    }

    /// The run's object of this moment.
    pub(in crate::supervisor) fn run(&self, identity: &Identity, began: Began) -> Run {
        let ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (history, now) = (self.lock(), self.clock.now());
        history.account.run(identity, began, now, &history.goodput, ending.as_ref())
    }

    /// A copy of the present history.
    pub(in crate::supervisor) fn copy(&self) -> history::History {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, history::History> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The life of the watching probe: when to start one, when to kill it, and what is known without one.
//!
//! There is never more than one: a new probe is started only after the last one was reaped. Without a probe everything
//! is `unknown`, which stops no job; one warning reports the beginning of this state, and one line its end.
//! Deliberately absent: the process itself.
//!
//! ```text
//! Waiting ──order Spawn──> Running ──overrun: order Kill──> Dying
//!    ^                        └──────────reaped──────────────┘ │
//!    └───────────── back-off ──────────────────────────────────┘        (Off: no GPUs here, nothing to watch)
//! ```

use std::time::Duration;

use super::Discovery;
use super::answer::{self, Ending, Report, Site};
use super::ledger::Finding;
use super::protocol::{Findings, Limits, Line, Overrun, Reader};
use super::watch::{Watch, WatchPolicy};
use crate::process::exit::End;

/// The pause after the first failure, unless the sample interval is shorter; then it doubles.
const FIRST_BACKOFF: Duration = Duration::from_secs(10);
const LONGEST_BACKOFF: Duration = Duration::from_secs(600);
/// A killed probe that survives this long is stuck in the kernel.
const STUCK_AFTER: Duration = Duration::from_secs(2);

/// An order to the owner of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Start a watching probe, then call [`Lifecycle::started`].
    Spawn,
    /// Kill the probe (its whole process group) with SIGKILL. It is reaped later.
    Kill,
}

/// News about the GPUs.
#[derive(Debug, Clone, PartialEq)]
pub enum GpuEvent {
    /// The first discovery is complete, with or without GPUs; boxed because of its size.
    Found(Box<Discovery>),
    /// Every GPU was sampled once more.
    Round,
    /// Something happened on a GPU.
    Finding(Finding),
    /// No readings are available at present; the reason. Not repeated until [`GpuEvent::Available`].
    Unavailable(String),
    /// Readings are available again.
    Available,
}

#[derive(Debug)]
enum State {
    Waiting {
        next: Duration,
    },
    Running {
        pid: i32,
        reader: Reader,
        findings: Findings,
    },
    /// `stuck_at`: when to report that it survives, unless that was reported.
    Dying {
        pid: i32,
        findings: Findings,
        last_call: String,
        overrun: Option<Overrun>,
        stuck_at: Option<Duration>,
    },
    Off,
}

/// The life of the watching probe, one process at a time.
#[derive(Debug)]
pub struct Lifecycle {
    state: State,
    call_limit: Duration,
    site: Site,
    first_backoff: Duration,
    backoff: Duration,
    /// A round of samples has begun.
    has_samples: bool,
    /// The wait for events was announced and has not returned. It may hang, too.
    awaits_events: bool,
    /// Why no readings are available, if so.
    unavailable: Option<String>,
    found: bool,
    /// The probe was killed on purpose, so the next one may start at once.
    is_paused: bool,
    watch: Watch,
}

impl Lifecycle {
    /// A lifecycle that starts a probe at once. `call_limit` is `--gpu-timeout`, `interval` is `--gpu-interval`.
    pub fn new(call_limit: Duration, interval: Duration, site: Site, policy: WatchPolicy) -> Lifecycle {
        let state = State::Waiting { next: Duration::ZERO };
        let (first_backoff, watch) = (FIRST_BACKOFF.min(interval), Watch::new(policy));
        let backoff = first_backoff;
        Lifecycle {
            state,
            call_limit,
            site,
            first_backoff,
            backoff,
            has_samples: false,
            awaits_events: false,
            unavailable: None,
            found: false,
            is_paused: false,
            watch,
        }
    }

    /// The state of the GPUs, also for questions about a death.
    pub fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// Why no readings are available at present.
    pub fn unavailable(&self) -> Option<&str> {
        self.unavailable.as_deref()
    }

    /// The state of the GPUs.
    pub fn watched(&self) -> &Watch {
        &self.watch
    }

    /// The running (or dying) probe.
    pub fn pid(&self) -> Option<i32> {
        match self.state {
            State::Running { pid, .. } | State::Dying { pid, .. } => Some(pid),
            State::Waiting { .. } | State::Off => None,
        }
    }

    /// The next order, if any. Each order is returned once.
    pub fn order(&mut self, now: Duration) -> Option<Order> {
        match &self.state {
            State::Waiting { next } if now >= *next => Some(Order::Spawn),
            State::Running { reader, .. } => {
                let overrun = reader.overrun(now)?;
                self.kill(now, Some(overrun));
                Some(Order::Kill)
            }
            State::Waiting { .. } | State::Dying { .. } | State::Off => None,
        }
    }

    /// When to call [`Lifecycle::order`] or [`Lifecycle::due`] again.
    pub fn deadline(&self) -> Option<Duration> {
        let own = match &self.state {
            State::Waiting { next } => Some(*next),
            State::Running { reader, .. } => Some(reader.deadline()),
            State::Dying { stuck_at, .. } => *stuck_at,
            State::Off => None,
        };
        own.into_iter().chain(self.watch.deadline()).min()
    }

    /// Decides what only needed time.
    pub fn due(&mut self, now: Duration) -> Vec<GpuEvent> {
        let mut events: Vec<GpuEvent> = self.watch.due(now).into_iter().map(GpuEvent::Finding).collect();
        events.extend(self.report_stuck(now));
        events
    }

    /// No other probe can be started while a killed one exists. That is reported without waiting for its death, which
    /// may never happen.
    fn report_stuck(&mut self, now: Duration) -> Option<GpuEvent> {
        let State::Dying { last_call, overrun, stuck_at, .. } = &mut self.state else { return None };
        stuck_at.take_if(|at| now >= *at)?;
        let hung = overrun.clone().and_then(|overrun| {
            let report_stuck = report(Findings::default(), Ending::Stuck(overrun), last_call.clone(), String::new());
            answer::problem(&report_stuck, &self.site)
        });
        let reason = hung.unwrap_or_else(|| "the GPU probe is stuck in the kernel and cannot be killed".to_owned());
        self.unavailable.is_none().then(|| GpuEvent::Unavailable(self.unavailable.insert(reason).clone()))
    }

    /// The order to spawn was carried out. Errors are the reason for a failure.
    pub fn started(&mut self, now: Duration, probe: Result<i32, String>) -> Vec<GpuEvent> {
        match probe {
            Ok(pid) => {
                self.awaits_events = false;
                self.watch.begin();
                let reader = Reader::new(now, Limits::watch(self.call_limit));
                self.state = State::Running { pid, reader, findings: Findings::default() };
                Vec::new()
            }
            Err(reason) => {
                let report = report(Findings::default(), Ending::NotStarted(reason), String::new(), String::new());
                self.ended(now, report)
            }
        }
    }

    /// Adds output of the probe.
    pub fn feed(&mut self, now: Duration, bytes: &[u8]) -> Vec<GpuEvent> {
        let mut events = Vec::new();
        let State::Running { reader, findings, .. } = &mut self.state else { return events };
        let (mut is_round, mut is_well) = (false, false);
        for line in reader.feed(now, bytes) {
            is_well |= std::mem::take(&mut self.awaits_events);
            self.awaits_events = matches!(line, Line::Call { wait_ms: Some(_), .. });
            // The second round begins, so the first one is complete.
            is_round |= self.awaits_events;
            self.has_samples |= matches!(line, Line::Gpu { sampled: true, .. } | Line::GpuError { .. });
            events.extend(self.watch.line(now, &line).into_iter().map(GpuEvent::Finding));
            if !matches!(line, Line::Event { .. }) {
                findings.add(line);
            }
        }
        if is_well {
            self.backoff = self.first_backoff;
            if self.unavailable.take().is_some() {
                events.push(GpuEvent::Available);
            }
        }
        if is_round && !std::mem::replace(&mut self.found, true) {
            // A watching probe never ends, but its first round is complete.
            let round = Findings { ended: true, ..std::mem::take(findings) };
            let all = report(round, Ending::Ended(End::Code(0)), String::new(), String::new());
            events.push(GpuEvent::Found(Box::new(answer::interpret(all, None, &self.site))));
        }
        if is_round {
            events.extend(self.watch.listed().into_iter().map(GpuEvent::Finding));
            events.extend(std::mem::take(&mut self.has_samples).then_some(GpuEvent::Round));
        }
        events
    }

    /// The probe was reaped; `words` is the last line of its standard error.
    pub fn reaped(&mut self, now: Duration, end: End, words: String) -> Vec<GpuEvent> {
        let state = std::mem::replace(&mut self.state, State::Off);
        if std::mem::take(&mut self.is_paused) {
            self.state = State::Waiting { next: now };
            return Vec::new();
        }
        let (findings, ending, last_call) = match state {
            State::Running { reader, findings, .. } => {
                let last_call = reader.last_call().to_owned();
                (findings, Ending::Ended(end), last_call)
            }
            State::Dying { findings, last_call, overrun: Some(overrun), .. } => {
                (findings, Ending::Overrun(overrun), last_call)
            }
            // A paused probe was handled above.
            State::Dying { overrun: None, .. } | State::Waiting { .. } | State::Off => return Vec::new(),
        };
        self.ended(now, report(findings, ending, last_call, words))
    }

    /// Stops the probe. The next one is due when the killed one was reaped.
    pub fn pause(&mut self, now: Duration) -> Option<Order> {
        let State::Running { .. } = self.state else { return None };
        self.is_paused = true;
        self.kill(now, None);
        Some(Order::Kill)
    }

    fn kill(&mut self, now: Duration, overrun: Option<Overrun>) {
        self.state = match std::mem::replace(&mut self.state, State::Off) {
            State::Running { pid, reader, findings } => {
                let (last_call, stuck_at) = (reader.last_call().to_owned(), Some(now.saturating_add(STUCK_AFTER)));
                State::Dying { pid, findings, last_call, overrun, stuck_at }
            }
            other => other,
        };
    }

    /// A probe ended unexpectedly: reports why, and sets the time of the next one.
    fn ended(&mut self, now: Duration, report: Report) -> Vec<GpuEvent> {
        let mut events = Vec::new();
        let problem = answer::problem(&report, &self.site);
        let refused = report.findings.error.as_ref().and_then(|(call, code, _)| Some((call.clone(), (*code)?)));
        if let Some((call, code)) = refused.filter(|_| self.found) {
            events.extend(self.watch.refused(&call, code).into_iter().map(GpuEvent::Finding));
        }
        if !self.found && report.findings.error.is_some() && !self.site.control_node {
            // No GPU exists here and none is expected, so there is nothing to watch. Only a wrong setting causes a
            // warning.
            self.found = true;
            events.push(GpuEvent::Found(Box::new(answer::interpret(report, None, &self.site))));
            return events;
        }
        self.state = State::Waiting { next: now.saturating_add(self.backoff) };
        self.backoff = self.backoff.saturating_mul(2).min(LONGEST_BACKOFF);
        let reason = problem.unwrap_or_else(|| "the GPU probe ended".to_owned());
        if self.unavailable.replace(reason.clone()).is_none() {
            events.push(GpuEvent::Unavailable(reason));
        }
        events
    }
}

fn report(findings: Findings, ending: Ending, last_call: String, words: String) -> Report {
    Report { program: "trainit".to_owned(), findings, ending, last_call, words }
}

#[cfg(test)]
mod tests;

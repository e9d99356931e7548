//! The life of the watching probe: when to start one, when to kill it, what to believe while there is none.
//!
//! Never two at once: a new one is started only after the last was reaped. Without a probe everything is `unknown`, which
//! stops no job; one warning says so, and one line says that it is over. Deliberately absent: the process itself.
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
use crate::rules::exit::End;

/// The pause after the first failure, unless the watch's interval is shorter; then it doubles.
const FIRST_BACKOFF: Duration = Duration::from_secs(10);
const LONGEST_BACKOFF: Duration = Duration::from_secs(600);
/// A killed probe that has not gone after this is stuck in the kernel.
const STUCK_AFTER: Duration = Duration::from_secs(2);

/// What the owner of the process has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Start a watching probe, then call [`Lifecycle::started`].
    Spawn,
    /// Kill the one that runs (its whole process group) with SIGKILL; it is reaped when it is reaped.
    Kill,
}

/// What there is to know.
#[derive(Debug, Clone, PartialEq)]
pub enum GpuEvent {
    /// The GPUs have been found, for the first time (or none were); boxed for its size.
    Found(Box<Discovery>),
    /// Each of them was sampled once more.
    Round,
    /// Something happened to one of them.
    Finding(Finding),
    /// Nothing can be known for now; the reason. Not said again until [`GpuEvent::Sighted`].
    Blind(String),
    /// Telemetry is back.
    Sighted,
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
    /// `stuck_at`: when to say that it does not go, until that is said.
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
    /// A round of samples is under way.
    sampled: bool,
    /// The wait for events was announced and has not come back: it too may hang.
    waiting: bool,
    /// Why nothing is known, while that is so.
    blind: Option<String>,
    found: bool,
    /// The probe was killed on purpose; the next may follow at once.
    paused: bool,
    watch: Watch,
}

impl Lifecycle {
    /// Wants a probe at once. `call_limit` is `--gpu-timeout`, `interval` is `--gpu-interval`.
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
            sampled: false,
            waiting: false,
            blind: None,
            found: false,
            paused: false,
            watch,
        }
    }

    /// What is known of the GPUs; also where a death is asked about.
    pub fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// Why nothing is known of the GPUs for now.
    pub fn blind(&self) -> Option<&str> {
        self.blind.as_deref()
    }

    /// What is known of the GPUs.
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

    /// What has to be done now, if anything. Each order is given once.
    pub fn order(&mut self, now: Duration) -> Option<Order> {
        match &self.state {
            State::Waiting { next } if now >= *next => Some(Order::Spawn),
            State::Running { reader, .. } => {
                let overrun = reader.overrun(now)?;
                self.die(now, Some(overrun));
                Some(Order::Kill)
            }
            State::Waiting { .. } | State::Dying { .. } | State::Off => None,
        }
    }

    /// When to ask again for an order, or for what is [`Lifecycle::due`].
    pub fn deadline(&self) -> Option<Duration> {
        let own = match &self.state {
            State::Waiting { next } => Some(*next),
            State::Running { reader, .. } => Some(reader.deadline()),
            State::Dying { stuck_at, .. } => *stuck_at,
            State::Off => None,
        };
        own.into_iter().chain(self.watch.deadline()).min()
    }

    /// What only needed time to be decided.
    pub fn due(&mut self, now: Duration) -> Vec<GpuEvent> {
        let mut events: Vec<GpuEvent> = self.watch.due(now).into_iter().map(GpuEvent::Finding).collect();
        events.extend(self.stuck(now));
        events
    }

    /// No other can be started while it is there: that is said without waiting for its death, which may never come.
    fn stuck(&mut self, now: Duration) -> Option<GpuEvent> {
        let State::Dying { last_call, overrun, stuck_at, .. } = &mut self.state else { return None };
        stuck_at.take_if(|at| now >= *at)?;
        let hung = overrun.clone().and_then(|overrun| {
            let stuck = report(Findings::default(), Ending::Stuck(overrun), last_call.clone(), String::new());
            answer::problem(&stuck, &self.site)
        });
        let reason = hung.unwrap_or_else(|| "the GPU probe is stuck in the kernel and cannot be killed".to_owned());
        self.blind.is_none().then(|| GpuEvent::Blind(self.blind.insert(reason).clone()))
    }

    /// The order to spawn was carried out. Errors are the reason why it could not be.
    pub fn started(&mut self, now: Duration, probe: Result<i32, String>) -> Vec<GpuEvent> {
        match probe {
            Ok(pid) => {
                self.waiting = false;
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

    /// The probe said something.
    pub fn feed(&mut self, now: Duration, bytes: &[u8]) -> Vec<GpuEvent> {
        let mut events = Vec::new();
        let State::Running { reader, findings, .. } = &mut self.state else { return events };
        let (mut is_round, mut is_well) = (false, false);
        for line in reader.feed(now, bytes) {
            is_well |= std::mem::take(&mut self.waiting);
            self.waiting = matches!(line, Line::Call { wait_ms: Some(_), .. });
            // The second round begins: everything was heard once.
            is_round |= self.waiting;
            self.sampled |= matches!(line, Line::Gpu { sampled: true, .. } | Line::GpuError { .. });
            events.extend(self.watch.line(now, &line).into_iter().map(GpuEvent::Finding));
            if !matches!(line, Line::Event { .. }) {
                findings.add(line);
            }
        }
        if is_well {
            self.backoff = self.first_backoff;
            if self.blind.take().is_some() {
                events.push(GpuEvent::Sighted);
            }
        }
        if is_round && !std::mem::replace(&mut self.found, true) {
            // The probe has not ended, and never will; what it said is complete all the same.
            let heard = Findings { ended: true, ..std::mem::take(findings) };
            let all = report(heard, Ending::Ended(End::Code(0)), String::new(), String::new());
            events.push(GpuEvent::Found(Box::new(answer::conclude(all, None, &self.site))));
        }
        if is_round {
            events.extend(self.watch.listed().into_iter().map(GpuEvent::Finding));
            events.extend(std::mem::take(&mut self.sampled).then_some(GpuEvent::Round));
        }
        events
    }

    /// The probe was reaped; `words` is the last line it wrote to standard error.
    pub fn reaped(&mut self, now: Duration, end: End, words: String) -> Vec<GpuEvent> {
        let state = std::mem::replace(&mut self.state, State::Off);
        if std::mem::take(&mut self.paused) {
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
            // One that was paused was passed over above.
            State::Dying { overrun: None, .. } | State::Waiting { .. } | State::Off => return Vec::new(),
        };
        self.ended(now, report(findings, ending, last_call, words))
    }

    /// No probe for now. The next is due as soon as the one that is to be killed is reaped.
    pub fn pause(&mut self, now: Duration) -> Option<Order> {
        let State::Running { .. } = self.state else { return None };
        self.paused = true;
        self.die(now, None);
        Some(Order::Kill)
    }

    fn die(&mut self, now: Duration, overrun: Option<Overrun>) {
        self.state = match std::mem::replace(&mut self.state, State::Off) {
            State::Running { pid, reader, findings } => {
                let (last_call, stuck_at) = (reader.last_call().to_owned(), Some(now.saturating_add(STUCK_AFTER)));
                State::Dying { pid, findings, last_call, overrun, stuck_at }
            }
            other => other,
        };
    }

    /// A probe is gone that should not be: why, and when to try again.
    fn ended(&mut self, now: Duration, report: Report) -> Vec<GpuEvent> {
        let mut events = Vec::new();
        let problem = answer::problem(&report, &self.site);
        let refused = report.findings.error.as_ref().and_then(|(call, code, _)| Some((call.clone(), (*code)?)));
        if let Some((call, code)) = refused.filter(|_| self.found) {
            events.extend(self.watch.refused(&call, code).into_iter().map(GpuEvent::Finding));
        }
        if !self.found && report.findings.error.is_some() && !self.site.control_node {
            // No GPU is here and none was promised: there is nothing to watch, and nothing to warn of but a bad setting.
            self.found = true;
            events.push(GpuEvent::Found(Box::new(answer::conclude(report, None, &self.site))));
            return events;
        }
        self.state = State::Waiting { next: now.saturating_add(self.backoff) };
        self.backoff = self.backoff.saturating_mul(2).min(LONGEST_BACKOFF);
        let reason = problem.unwrap_or_else(|| "the GPU probe ended".to_owned());
        if self.blind.replace(reason.clone()).is_none() {
            events.push(GpuEvent::Blind(reason));
        }
        events
    }
}

fn report(findings: Findings, ending: Ending, last_call: String, words: String) -> Report {
    Report { program: "trainit".to_owned(), findings, ending, last_call, words }
}

#[cfg(test)]
mod tests;

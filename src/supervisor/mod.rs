//! The loop: hear, decide, do, tell. One thread, one poll; long work runs on a thread of its own (`background`) and
//! comes back as an event. Nothing here waits for anything but the poll, until all is over but the last metrics' way to their
//! file.

#[cfg_attr(not(feature = "store"), allow(dead_code, reason = "most orders are for the keeper"))]
mod background;
mod effects;
pub mod follow;
mod gpu_desk;
pub mod gpus;
mod job_control;
#[cfg_attr(not(feature = "store"), path = "keeper_without_store.rs")]
pub mod keeper;
mod leaders;
mod lookout;
mod not_launched;
mod outlet;
pub mod output;
#[cfg_attr(not(feature = "status-page"), path = "page_left_out.rs")]
mod page;
mod peers;
mod pulse;
mod pumps;
mod ranks;
mod reporter;
mod status_desk;
mod sweep;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::edge::reaper::{self, Wait};
use crate::edge::signals::{Inbox, Mask};
use crate::edge::{code_pages, descendants, process, terminal, wake};
use crate::rules::env::{Changes, Env};
use crate::rules::gpu::ledger::XidCount;
use crate::rules::job::{ChildFacts, Event, Machine, Outcome, Policy, Timer, Uptime};
use crate::rules::signal::Signal;
use crate::rules::status::sibling::Kept;
use crate::telemetry::view;
use background::Background;
pub use background::Work;
use effects::Effects;
pub use gpus::GpuWatch;
pub use keeper::Keep;
pub use lookout::Lookout;
use output::Collectors;
pub use output::Metrics;
pub use page::Page;
pub use peers::Peers;
use pumps::Waits;

/// Everything a run needs to know, cut from the settings.
#[derive(Debug)]
pub struct Job {
    /// What decides.
    pub policy: Policy,
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    /// The environment trainit was given.
    pub env: Env,
    /// What the frameworks' rules change in it, for each process to start, by local rank. At least one.
    pub changes: Vec<Changes>,
    /// What stands before each line of each process's output, by local rank; nothing where there is one process.
    pub names: Vec<String>,
    /// The content of a host file for MPI, written where the child finds it.
    pub hostfile: Option<String>,
    /// What the child is told of trainit.
    pub facts: ChildFacts,
    /// What the child gets when trainit dies and is not PID 1.
    pub death_signal: Option<Signal>,
    /// The signal mask from before ours.
    pub mask: Mask,
    /// Which checkpoints it commits, and where to.
    pub kept: Option<Kept>,
    /// The GPUs to watch while the command runs, and this host's name for what is said of them.
    pub gpus: Option<(GpuWatch, String)>,
    /// What to look for in its output.
    pub metrics: Option<Metrics>,
}

/// What is known at the end beside the outcome.
#[derive(Debug)]
pub struct Ended {
    /// Why and with which code.
    pub outcome: Outcome,
    /// The job's highest memory use in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// The last value of each metric, as it was reported.
    pub metrics: BTreeMap<String, String>,
    /// The XIDs that came while GPUs were watched; `None`: none were.
    pub xids: Option<Vec<XidCount>>,
    /// Who was there before the job dies with us, as PID 1.
    pub takes_others_along: bool,
}

/// Runs the job to its end. Errors: signalfd(2) or the like refused, before anything was started.
pub fn run(mut job: Job, work: Work, clock: Clock) -> io::Result<Ended> {
    let signals = Inbox::open()?;
    if process::own_pid() != 1 {
        if let Err(error) = process::become_subreaper() {
            tracing::warn!(
                "orphans of the command will not be reaped nor stopped by trainit: {error}; run it as the container's first process (ENTRYPOINT)"
            );
        }
        if !descendants::shows_us() {
            tracing::warn!(
                "there is no /proc of this PID namespace: a process that leaves the command's process group (setsid, a \
                 daemon) is not seen and may outlive the job; mount /proc, or make trainit PID 1"
            );
        }
    }
    let background = Background::start(work)?;
    let collectors = Collectors::start(job.metrics.take(), job.policy.hang.is_some())?;
    // A terminal has one foreground group.
    job.policy.child_has_terminal = job.changes.len() == 1 && terminal::of_session().is_some();
    let machine = Machine::new(job.policy.clone());
    let command = job.argv.first().map(|c| c.to_string_lossy().into_owned()).unwrap_or_default();
    let effects = Effects::new(job, background, collectors);
    let queue = VecDeque::from([Event::Started]);
    let mut supervisor = Supervisor {
        machine,
        command,
        clock,
        signals,
        queue,
        effects,
        settles: None,
        outcome: None,
        patience_ends: Uptime::ZERO,
    };
    let outcome = supervisor.live();
    let mut effects = supervisor.effects;
    let peak_memory_bytes = effects.peak_memory();
    let xids = effects.gpus.told().map(|told| told.xids);
    let metrics = effects.collectors.take().map(Collectors::finish).unwrap_or_default();
    let takes_others_along = process::own_pid() == 1 && effects.has_inherited();
    Ok(Ended { outcome, peak_memory_bytes, metrics, xids, takes_others_along })
}

struct Supervisor {
    machine: Machine,
    command: String,
    clock: Clock,
    signals: Inbox,
    queue: VecDeque<Event>,
    effects: Effects,
    /// When start-up's code is let go of.
    settles: Option<Uptime>,
    /// How it has ended; the last of the output may still be passed on.
    outcome: Option<Outcome>,
    /// The last deadline that this attempt's end was given: so long who reads its output has.
    patience_ends: Uptime,
}

/// A command that has run for this long has a supervisor with little left to do. The one wake-up of our own in a life.
const SETTLED_AFTER: Duration = Duration::from_millis(100);

impl Supervisor {
    fn now(&self) -> Uptime {
        self.clock.now()
    }

    /// The whole life.
    fn live(&mut self) -> Outcome {
        loop {
            while let Some(event) = self.queue.pop_front() {
                self.handle(event);
            }
            match self.outcome.take() {
                Some(outcome) if !self.effects.pumps.is_ending() => return outcome,
                outcome => self.outcome = outcome,
            }
            self.hear();
        }
    }

    /// Who waits for the end of the output.
    fn waits(&self) -> Waits {
        match self.outcome {
            None if self.machine.is_stopping() || !self.machine.would_restart(self.now()) => Waits::Commit,
            _ => Waits::End(self.patience_ends),
        }
    }

    /// Decides, does, tells. What a deed brings about at once is queued as a further event.
    fn handle(&mut self, event: Event) {
        let now = self.now();
        if matches!(event, Event::Spawned { .. }) {
            self.settles = Some(now + SETTLED_AFTER);
            self.patience_ends = Uptime::ZERO;
        }
        let before = self.machine.state().clone();
        if matches!(event, Event::Committed { .. }) {
            self.effects.gpus.refill();
        }
        self.effects.status.note(now, &event);
        let actions = self.machine.step(now, event.clone());
        self.patience_ends = self.machine.deadline().unwrap_or(self.patience_ends);
        view::forewarn(&self.command, &self.machine, &actions);
        for action in &actions {
            match self.effects.perform(now, action) {
                effects::Done::Nothing => {}
                effects::Done::Event(event) => self.queue.push_back(event),
                effects::Done::Exit(end) => {
                    self.outcome = Some(*end);
                    self.effects.end(now);
                }
            }
        }
        // Last: a log that is slow to read must not hold up a signal.
        view::tell(&self.command, now, &before, &event, &self.machine, &actions);
    }

    /// Lets go of start-up's code when it is time; else the time until then.
    fn settle(&mut self) -> Option<Duration> {
        let left = self.settles?.saturating_sub(self.now());
        if left.is_zero() {
            self.settles = None;
            self.effects.tidy_up();
            code_pages::let_go();
            self.rehearse();
        }
        self.settles.map(|_| left)
    }

    /// Goes the way of a signal once, with two that bring nothing about, so that its code is in memory when one comes: read
    /// from the file again only then, a stop signal would reach the command after twice the time.
    fn rehearse(&mut self) {
        // Our own SIGPIPE ends the next wait and is passed over when it is read; of a child's end wait(2) knows.
        let _ = process::kill(process::own_pid(), Signal::PIPE);
        let _ = self.machine.step(self.now(), Event::Signal { signal: Signal::CHLD, sender: None });
    }

    /// Waits until something happens and queues what did.
    fn hear(&mut self) {
        // Who asks waits until what happened has been acted upon.
        self.effects.status.serve(self.now(), &self.command, &self.machine, &self.effects);
        let (waits, is_stopping) = (self.waits(), self.machine.is_stopping());
        let held = self.effects.held.as_ref();
        let dues = [
            self.effects.timers.next(),
            self.effects.gpus.deadline(),
            self.effects.status.due(),
            self.effects.pumps.due(waits),
            held.map(|held| if is_stopping { Uptime::ZERO } else { held.until }),
        ];
        let due = dues.into_iter().flatten().min();
        let timeout = match due {
            _ if self.effects.background.has_news() => Some(Duration::ZERO),
            due => due.map(|at| at.saturating_sub(self.now())),
        };
        let mut fds = vec![self.signals.as_raw_fd()];
        fds.extend(self.effects.background.fd());
        fds.extend(self.effects.gpus.fd());
        fds.extend(self.effects.status.fd());
        fds.extend(self.effects.pumps.fds(waits));
        fds.extend(held.map(|held| held.look.as_raw_fd()));
        let settle = self.settle();
        wake::wait_readable(&fds, [timeout, settle].into_iter().flatten().min());

        let now = self.now();
        self.queue.extend(self.effects.gpus.news(now));
        let due = self.effects.timers.due(now).into_iter();
        // With nobody left there is nobody to kill, whoever is slow to read what they wrote.
        let is_moot = |timer: &Timer| self.effects.pumps.is_ending() && timer.is_for_the_tree();
        self.queue.extend(due.filter(|timer| !is_moot(timer)).map(Event::Due));
        let mut may_reap = false;
        for arrival in self.signals.drain() {
            may_reap |= arrival.signal == Signal::CHLD;
            self.queue.push_back(Event::Signal { signal: arrival.signal, sender: arrival.sender });
        }
        if may_reap {
            self.reap();
        }
        self.queue.extend(self.effects.start_held(now, is_stopping));
        self.queue.extend(self.effects.is_heard_out(self.now(), waits));
        self.queue.extend(self.effects.background.events());
    }

    fn reap(&mut self) {
        let mut ended = Vec::new();
        let is_empty = loop {
            match reaper::wait() {
                Wait::Ended { pid, end } => ended.push((pid, end)),
                Wait::Stopped { pid, signal } => self.effects.stopped(pid, signal),
                Wait::Nothing => break false,
                Wait::Empty => break true,
            }
        };
        let now = self.now();
        self.effects.leaders.in_order(&mut ended);
        for (pid, end) in ended {
            self.queue.extend(self.effects.ended(now, pid, end));
        }
        if is_empty || self.effects.only_others_are_left() {
            self.effects.tree_is_empty(now);
        }
    }
}

/// The alarms that are set.
#[derive(Debug, Default)]
struct Timers(Vec<(Timer, Uptime)>);

impl Timers {
    fn arm(&mut self, timer: Timer, at: Uptime) {
        self.disarm(timer);
        self.0.push((timer, at));
    }

    fn disarm(&mut self, timer: Timer) {
        self.0.retain(|(t, _)| *t != timer);
    }

    fn next(&self) -> Option<Uptime> {
        self.0.iter().map(|(_, at)| *at).min()
    }

    fn due(&mut self, now: Uptime) -> Vec<Timer> {
        let mut due: Vec<(Timer, Duration)> = self.0.iter().copied().filter(|(_, at)| *at <= now).collect();
        self.0.retain(|(_, at)| *at > now);
        due.sort_by_key(|(timer, at)| (*at, *timer));
        due.into_iter().map(|(timer, _)| timer).collect()
    }
}

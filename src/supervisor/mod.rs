//! Runs a job: one thread with one poll ([`event_loop`]). Long work runs on a separate thread ([`background`]), which
//! reports events.

mod background;
pub mod checkpoints;
mod event_loop;
pub mod gang;
pub mod gpu;
mod job;
pub mod metrics;
pub mod output;
mod perform;
pub mod simulate;
mod status;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::edge::fs::run_dir::RunDir;
use crate::edge::io::stdio;
use crate::edge::process::signals::{Mask, SignalFd};
use crate::edge::process::{descendants, spawn, terminal};
use crate::rules::gang::Summary;
use crate::rules::gpu::ledger::XidCount;
use crate::rules::job::goodput::Totals;
use crate::rules::job::{ChildFacts, Outcome, Policy, Uptime};
use crate::rules::life::account::Ending;
use crate::rules::life::save_plan::SaveInterval;
use crate::rules::metric::ledger::Ledger;
use crate::rules::process::env::{Changes, Env};
use crate::rules::process::signal::Signal;
use crate::rules::status::Who;
use crate::rules::status::html::RunView;
use crate::rules::status::sibling::Kept;
use crate::telemetry::log;
use background::Background;
pub use background::fetch::Fetch;
pub use background::keep::{self, Keep};
pub use background::model::LeftModel;
pub use background::{Peers, PreemptionWatch, Work};
use event_loop::Supervisor;
use gang::{Gang, GangMember};
pub use gpu::watch::GpuWatch;
use output::Collectors;
pub use output::Metrics;
use output::drain::A_MOMENT;
use status::history::History;
pub use status::page::Page;
use status::push;

/// The settings of a run.
#[derive(Debug)]
pub struct Job {
    /// The policy of the job machine.
    pub policy: Policy,
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    /// The environment that trainit was started with.
    pub env: Env,
    /// Changes to the environment by the frameworks' rules, by local rank. At least one.
    pub changes: Vec<Changes>,
    /// Which replica of which job this is.
    pub who: Who,
    /// The prefix of each line of output, by local rank; empty for a single process.
    pub names: Vec<String>,
    /// The content of the host file for MPI, which trainit writes for the child.
    pub hostfile: Option<String>,
    /// Facts about trainit, for the child's environment.
    pub facts: ChildFacts,
    /// The signal to the child if trainit dies without being PID 1.
    pub death_signal: Option<Signal>,
    /// The signal mask before trainit changed it.
    pub mask: Mask,
    /// Which checkpoints this process commits and where to, or which process commits them.
    pub kept: Option<Kept>,
    /// The GPUs to watch while the command runs, and the host name for their log lines.
    pub gpus: Option<(GpuWatch, String)>,
    /// The metrics to search for in the output.
    pub metrics: Option<Metrics>,
    /// The gang that this replica is part of.
    pub gang: Option<Gang>,
    /// The training's last step.
    pub steps: Option<u64>,
    /// The file for the page about the run.
    pub report: Option<PathBuf>,
    /// How often the trainer is asked to save; `None`: only after a notice.
    pub save_interval: Option<SaveInterval>,
    /// The GPUs of all replicas, or their number.
    pub accelerators: u64,
    /// The directory for the flight recorder's dumps.
    pub hang_forensics: Option<PathBuf>,
}

/// Facts at the end of a run.
#[derive(Debug)]
pub struct Ended {
    /// The reason of the end and the exit code.
    pub outcome: Outcome,
    /// The job's highest memory use in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// The metrics that were found.
    pub metrics: Ledger,
    /// The last values of the metrics that processes of the job reported themselves.
    pub reported: BTreeMap<String, String>,
    /// The step of the last attempt, and its steps a second.
    pub pace: (Option<u64>, Option<f64>),
    /// The XIDs seen while GPUs were watched; `None` if none were watched.
    pub xids: Option<Vec<XidCount>>,
    /// Facts about the gang, if the job was part of one.
    pub gang: Option<Summary>,
    /// Processes older than the job die with trainit, because it is PID 1.
    pub takes_others_along: bool,
    /// The time of the run by cause.
    pub goodput: Totals,
    /// The run's directory, to be removed after the verdict.
    pub run_dir: Option<RunDir>,
    /// The time at which the verdict must be written.
    pub end_by: EndBy,
}

/// The common deadline of all that follows the end of the trainer. A step that finds it over still has a moment, because a
/// file system that works needs no more.
#[derive(Debug, Clone, Copy)]
pub struct EndBy {
    clock: Clock,
    at: Uptime,
}

impl EndBy {
    /// The time that is left.
    pub fn left(self) -> Duration {
        self.at.saturating_sub(self.clock.now()).max(A_MOMENT)
    }
}

/// The limit of batches of reports that are read after the end.
const LAST_REPORTS: usize = 64;

/// Runs the job to its end. Errors: signalfd(2) or a similar call failed before the command was started.
pub fn run(mut job: Job, work: Work, clock: Clock) -> io::Result<Ended> {
    let signals = SignalFd::open()?;
    if spawn::own_pid() != 1 {
        if let Err(error) = spawn::become_subreaper() {
            tracing::warn!(
                "orphans of the command will be neither reaped nor stopped by trainit: {error}; run it as the \
                 container's first process (ENTRYPOINT)"
            );
        }
        if !descendants::shows_own_namespace() {
            tracing::warn!(
                "there is no /proc of this PID namespace: a process that leaves the command's process group (setsid, a \
                 daemon) is not seen and may outlive the job; mount /proc, or make trainit PID 1"
            );
        }
    }
    let receivers = work.receivers.clone();
    let is_shown = job.report.is_some() || work.page.is_some();
    if is_shown {
        log::keep_recent();
    }
    let history = History::new(clock, is_shown);
    history.set_total_steps(job.steps);
    let background = Background::start(work, &history)?;
    let collectors = Collectors::start(job.metrics.take(), job.policy.hang_timeout.is_some(), &history)?;
    // A terminal has one foreground group.
    job.policy.child_has_terminal = job.changes.len() == 1 && terminal::is_of_session(stdio::STDIN);
    let gang = job.gang.take().map(|gang| GangMember::start(gang, clock)).transpose()?;
    let mut supervisor = Supervisor::new(job, background, collectors, gang, history.clone(), clock, signals);
    let outcome = supervisor.live();
    let view = (supervisor.performer.report.is_some() || !receivers.is_empty()).then(|| supervisor.view());
    let end_by = EndBy { clock, at: supervisor.end_by() };
    let mut performer = supervisor.performer;
    // Other processes may send for ever.
    let _ = (0..LAST_REPORTS).all(|_| performer.status.take_reports(&history));
    performer.liveness.step();
    let gang = performer.gang.as_mut().map(GangMember::end);
    let peak_memory_bytes = performer.memory.peak();
    let (reason, exit_code) = (outcome.reason.word().to_owned(), outcome.exit_code);
    history.end(Ending { reason, exit_code, peak_memory_bytes });
    let xids = performer.gpus.state().map(|state| state.xids);
    // Sent and written during the wait for the last metrics.
    let last_push = view.as_ref().and_then(|view| push::last(receivers, view));
    let report = performer.report.take().zip(view).map(|(report, view)| {
        let verdict = Some((outcome.reason.word(), outcome.detail.clone()));
        report.write(RunView { verdict, ..view });
        report
    });
    let metrics = performer.collectors.take().map(|collectors| collectors.finish(end_by.left())).unwrap_or_default();
    let takes_others_along = spawn::own_pid() == 1 && performer.has_inherited();
    if let Some(report) = report {
        report.finish(end_by.left());
    }
    if let Some(last_push) = last_push {
        last_push.finish(end_by.left());
    }
    performer.background.finish_ledger(end_by.left());
    let goodput = history.totals(clock.now());
    let (reported, pace) = (history.reported_values(), history.pace());
    let run_dir = performer.run_dir.take();
    Ok(Ended {
        outcome,
        peak_memory_bytes,
        metrics,
        reported,
        pace,
        xids,
        gang,
        takes_others_along,
        goodput,
        run_dir,
        end_by,
    })
}

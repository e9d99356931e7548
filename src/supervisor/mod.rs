//! A job's run: one thread, one poll ([`life`]); long work runs on a thread of its own ([`background`]) and comes back as an
//! event.

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
mod life;
mod lookout;
mod memory;
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
mod timers;

use std::ffi::OsString;
use std::io;

use crate::edge::clock::Clock;
use crate::edge::signals::{Inbox, Mask};
use crate::edge::{descendants, process, terminal};
use crate::rules::env::{Changes, Env};
use crate::rules::gpu::ledger::XidCount;
use crate::rules::job::{ChildFacts, Outcome, Policy};
use crate::rules::metric::ledger::Ledger;
use crate::rules::signal::Signal;
use crate::rules::status::sibling::Kept;
use background::Background;
pub use background::Work;
pub use gpus::GpuWatch;
pub use keeper::Keep;
use life::Supervisor;
pub use lookout::Lookout;
use output::Collectors;
pub use output::Metrics;
pub use page::Page;
pub use peers::Peers;

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
    /// Which checkpoints it commits, and where to; or whose they are.
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
    /// What was measured.
    pub metrics: Ledger,
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
    let mut supervisor = Supervisor::new(job, background, collectors, clock, signals);
    let outcome = supervisor.live();
    let mut effects = supervisor.effects;
    let peak_memory_bytes = effects.memory.peak();
    let xids = effects.gpus.told().map(|told| told.xids);
    let metrics = effects.collectors.take().map(Collectors::finish).unwrap_or_default();
    let takes_others_along = process::own_pid() == 1 && effects.has_inherited();
    Ok(Ended { outcome, peak_memory_bytes, metrics, xids, takes_others_along })
}

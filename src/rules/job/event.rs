//! The events of a job, and the actions that answer them.

use std::time::Duration;

use super::hang::LivenessSample;
use super::tree_stop::Grace;
use crate::gang::message::{Choice, Offer};
use crate::gang::{Generation, member};
use crate::process::exit::End;
use crate::process::signal::Signal;

/// Time since trainit started, on a monotonic clock.
pub type Uptime = Duration;

/// The checkpoint that the trainer resumes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// The path that the framework loads: a file, a directory or a common prefix (`TRAINIT_RESUME_FROM`).
    pub from: String,
    /// The training step, if the checkpoint's format, `--step-regex` or a heartbeat has it.
    pub step: Option<u64>,
}

/// The result of the last commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flushed {
    /// The store has everything that was written last, or there was nothing to commit, or a log line says what is
    /// missing.
    Done {
        /// The newest step in the store.
        step: Option<u64>,
    },
    /// The store has everything that was written last, and the step is unknown.
    Stepless,
    /// A necessary commit failed; the text says why and what to do.
    Failed(String),
    /// The time was too short for it; earlier commits are kept.
    OutOfTime(String),
}

/// News about the commits of a run, including the last commit and commits between two attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mirrored {
    /// Steps that the newest checkpoint is ahead of the store; 0: the store has it; `None`: the steps are unknown.
    Behind(Option<u64>),
    /// A commit is complete.
    Committed {
        /// Bytes of its files.
        bytes: u64,
        /// Its duration.
        took: Duration,
    },
    /// The restore of the agreed step made progress.
    Restoring {
        /// Bytes restored so far.
        done: u64,
        /// Bytes to restore.
        all: u64,
    },
    /// A restore is complete.
    Restored {
        /// Bytes that it fetched.
        bytes: u64,
    },
    /// A commit failed; the cause in one word.
    Failed(&'static str),
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "one at a time, and moved a few times only")]
pub enum Event {
    /// The first event of a job.
    Started,
    /// The training data are in place.
    Fetched,
    /// The training data are incomplete, so the command cannot start: the exit code (125 or 204) and the reason.
    NotFetched {
        /// The exit code.
        code: u8,
        /// What failed, where, why it matters, and what to do.
        detail: String,
    },
    /// The restore, or the scan for the newest checkpoint between two attempts, is complete.
    Restored {
        /// The checkpoint to resume from; `None` is a start from scratch.
        resume: Option<Resume>,
        /// The newest step in the store, if known.
        committed: Option<u64>,
        /// Whether the store has an older commit, too.
        older: bool,
        /// Without a store: whether the attempt left new content.
        is_further: bool,
    },
    /// The restore has found a valid commit, and fetches it next; or the last commit was cut short, and this earlier
    /// one is the newest.
    Found {
        /// Its step; also `None` when a commit that was reported before is invalid.
        committed: Option<u64>,
    },
    /// Another trainit on this node keeps the checkpoints, and has restored them.
    KeptBeside,
    /// No attempt can be made: the exit code (125, 204 or 205) and the reason.
    NotRestored {
        /// The exit code.
        code: u8,
        /// What failed, where, why it matters, and what to do.
        detail: String,
    },
    /// All awaited peers can be reached.
    PeersReached,
    /// A peer could not be reached in time.
    PeersMissing {
        /// Which peer, why, and what to do.
        detail: String,
    },
    /// The command runs (exec succeeded); every process of the attempt is started.
    Spawned {
        /// The main children, by local rank.
        pids: Vec<i32>,
    },
    /// The command could not be started: the exit code (125, 126 or 127) and the reason.
    NotSpawned {
        /// The exit code.
        code: u8,
        /// What failed, why, and what to do.
        detail: String,
        /// The cause may go away, such as a lack of processes or memory.
        is_transient: bool,
        /// Other processes of the attempt were started.
        others: bool,
    },
    /// A main child ended.
    MainEnded {
        /// Its local rank.
        local_rank: u32,
        /// How it ended.
        end: End,
        /// The memory limit's counter of kills rose recently, during this attempt; `None`: no counter.
        oom: Option<bool>,
    },
    /// An explanation for the end of a main child, which the next event reports: a clause with advice.
    Clue(String),
    /// Another process of the tree ended.
    Reaped {
        /// Its process id.
        pid: i32,
        /// How it ended.
        end: End,
    },
    /// SIGKILL was sent to the tree, which has this many processes, dead ones included.
    Left(usize),
    /// No process of the tree is left.
    TreeEmpty,
    /// A signal arrived.
    Signal {
        /// The signal.
        signal: Signal,
        /// The sending process; `None` when the kernel sent it.
        sender: Option<u32>,
    },
    /// A preemption was announced.
    Preempted {
        /// The id of this announcement, which its withdrawal names.
        id: String,
        /// The source, such as `gce preempted`.
        source: String,
        /// The time until the machine goes away.
        lead: Duration,
    },
    /// An announced preemption was cancelled.
    Withdrawn {
        /// The id of the announcement.
        id: String,
        /// The source.
        source: String,
    },
    /// The machine may go away or be slow soon. The job does not stop for it.
    Warned {
        /// One line about it.
        why: String,
    },
    /// The machine will freeze, so silence does not count as a hang until it runs again.
    Frozen {
        /// The time from now to the end of the freeze.
        length: Duration,
        /// One line about it.
        why: String,
    },
    /// The trainer's activity since the previous sample.
    LivenessSampled(LivenessSample),
    /// A timer that was set has expired.
    Due(Timer),
    /// A checkpoint was committed while the command ran.
    Committed {
        /// The path that the framework loads.
        unit: String,
        /// Its step, if known.
        step: Option<u64>,
        /// The duration of the commit.
        took: Duration,
        /// The time from the first complete sight of the checkpoint to the end of the commit.
        lag: Duration,
        /// Whether it has new content, which counts as progress of the job.
        is_progress: bool,
    },
    /// A long transfer made progress.
    Transferring,
    /// The last commit waits only for the other processes of the node, for at most this time; `None`: this wait is
    /// over.
    AwaitsOthers(Option<Duration>),
    /// The last commit is complete, and old commits are being deleted.
    Tidying,
    /// News about the commits, for the status only.
    Mirrored(Mirrored),
    /// The last commit has ended.
    Flushed(Flushed),
    /// A GPU is unfit for training: the job stops as for a preemption, to run on another machine.
    GpuFailed {
        /// Which GPU, where, and what happened.
        detail: String,
    },
    /// A request of the gang's member on this replica.
    Gang(member::Action),
    /// The checkpoints that can be restored, found while the tree is empty.
    Surveyed(Offer),
    /// A newer incarnation of this job owns the store.
    Fenced {
        /// A sentence for the verdict.
        detail: String,
    },
}

/// The timers of the machine. Setting a timer again replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The deadline of a stop: SIGKILL for all remaining processes.
    Grace,
    /// Processes that survived SIGKILL for this long are stuck in the kernel.
    Stuck,
    /// Time to scan the tree again: for processes that are next to get SIGTERM, and for new descendants.
    Sweep,
    /// The pause before a restart.
    Backoff,
    /// The last commit makes no progress, or its time has run out.
    FlushLimit,
    /// An end that was announced long before is near.
    Leave,
    /// Time to check whether the trainer is alive.
    SampleLiveness,
    /// The time for the flight recorder's dumps is over: SIGABRT for a trainer that hangs.
    Abort,
    /// The chief has finished, and the time to end by itself is over.
    Finish,
}

impl Timer {
    /// Whether the timer matters only while processes of the tree are left.
    pub fn is_for_the_tree(self) -> bool {
        matches!(self, Timer::Grace | Timer::Stuck | Timer::Sweep | Timer::Abort)
    }
}

/// The receiver of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Each main child.
    Leader,
    /// Each main child's process group.
    Group,
}

/// An order to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Fetch the training data; answer with `Fetched` or `NotFetched`.
    Fetch,
    /// Restore the newest complete checkpoint; answer with `Restored` or `NotRestored`.
    Restore,
    /// Between attempts: commit complete checkpoints and find the newest; answer with `Restored` or `NotRestored`.
    Refresh,
    /// The checkpoint of the previous attempts seems bad: find and restore the next older one; answer as for `Refresh`.
    FallBack,
    /// Commit complete checkpoints and find those that can be restored; answer with `Surveyed` or `NotRestored`.
    Survey,
    /// Restore exactly this step; answer with `Restored` or `NotRestored`.
    RestoreStep(Choice),
    /// Delete no commit of this step or a later one.
    Keep(u64),
    /// Pass this event to the gang's member on this replica.
    ReportToGang(member::Event),
    /// Wait until the peers can be reached; answer with `PeersReached` or `PeersMissing`.
    AwaitPeers,
    /// Start the command, once for each process of the policy; answer with `Spawned` or `NotSpawned`.
    Spawn {
        /// From 1.
        attempt: u32,
        /// The gang's common start, if there is a gang.
        generation: Option<Generation>,
        /// The checkpoint to resume from.
        resume: Option<Resume>,
    },
    /// Write the preemption file for the child; the deadline is in uptime.
    WritePreemptionFile {
        /// When the remaining processes get SIGKILL.
        deadline: Uptime,
    },
    /// Send a signal.
    Signal {
        /// The receiver.
        target: Target,
        /// The signal.
        signal: Signal,
    },
    /// Stop this process until it gets SIGCONT; never as PID 1.
    Suspend {
        /// At once; otherwise only when the command has been stopped by the signal that was sent last.
        at_once: bool,
    },
    /// Before the first signal of a stop: look at what the processes of the tree are to each other.
    LookAtTree(Signal),
    /// Send the stop's signal to the processes of the tree that are next, except those that have had it from trainit.
    SignalTree {
        /// The period of the stop.
        grace: Grace,
        /// The signal.
        signal: Signal,
    },
    /// Send SIGKILL to every process of the tree; answer with `Left`.
    KillTree,
    /// Check whether the trainer is alive; answer with `LivenessSampled`.
    SampleLiveness,
    /// Report the activity of the tree to the member of the gang.
    ReportTree,
    /// Log where every process of the tree waits.
    DumpStacks,
    /// Ask PyTorch's flight recorder for its dumps.
    AskForDumps,
    /// Send SIGABRT to the processes of the tree that handle it; to all if none does.
    AbortTree,
    /// Log the processes that are stuck in the kernel.
    NameStuck,
    /// Set a timer.
    Arm(Timer, Uptime),
    /// Clear a timer.
    Disarm(Timer),
    /// Commit the newest complete checkpoint; answer with `Flushed`.
    Flush {
        /// The deadline of the commit, if there is one.
        deadline: Option<Uptime>,
        /// A stop was requested, so old commits are not deleted.
        leaving: bool,
        /// The command failed, so the commit does not wait for other processes first.
        failed: bool,
    },
    /// The trainer was killed, perhaps in the middle of a save.
    MarkUnsure {
        /// The time of the kill.
        at: Uptime,
    },
    /// Copy the finished model; answer with `Flushed`.
    Publish,
    /// Bring the deadline of the present commit forward.
    SetCommitDeadline {
        /// The new deadline.
        deadline: Uptime,
    },
    /// Scan for a checkpoint to commit now, and often from now on.
    CommitSoon {
        /// The end is near: commit a complete checkpoint after a shorter settling time.
        notice: bool,
    },
    /// Exit.
    Exit(Box<super::Outcome>),
}

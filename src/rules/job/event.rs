//! What can happen to a job, and what can be done about it.

use std::time::Duration;

use super::hang::Pulse;
use crate::rules::exit::End;
use crate::rules::signal::Signal;

/// Time since trainit started, monotonic.
pub type Uptime = Duration;

/// Where the trainer goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// What the framework loads: a file, a directory or a common prefix (`TRAINIT_RESUME_FROM`).
    pub from: String,
    /// The training step, where the name or the manifest tells it.
    pub step: Option<u64>,
    /// When it was written, nanoseconds since 1970: tells it from another of the same name.
    pub written_ns: i64,
}

/// How the last commit went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flushed {
    /// Everything complete is in the store, or there was nothing to commit.
    Done {
        /// The newest step in the store.
        step: Option<u64>,
    },
    /// As that, with a newest checkpoint whose name has no step.
    Stepless,
    /// A commit was owed and could not be made; the text says why and what to do.
    Failed(String),
    /// There was no time for it; what was committed before stands.
    OutOfTime(String),
}

/// News of the commits of a run, the last one and those between two attempts too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mirrored {
    /// How many steps the newest complete checkpoint is ahead of the store; 0: the store has it; `None`: the steps are not
    /// known.
    Behind(Option<u64>),
    /// A commit is through.
    Committed {
        /// Bytes of its files.
        bytes: u64,
        /// How long that took.
        took: Duration,
    },
    /// None came of an attempt; in one word, why.
    Failed(&'static str),
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Life begins.
    Started,
    /// The restore, or the look for the newest checkpoint between two attempts, is done.
    Restored {
        /// Where to go on from; `None` is the beginning.
        resume: Option<Resume>,
        /// The newest step in the store, if there is one.
        committed: Option<u64>,
        /// Whether one of an earlier step lies in the directory, too.
        older: bool,
    },
    /// The restore has found a commit that is good, before anything of it is fetched; or the last commit was cut short, and
    /// this one stands.
    Found {
        /// Its step; `None` also when the one before was no good after all.
        committed: Option<u64>,
    },
    /// Another trainit on this node keeps the checkpoints, and has restored them.
    KeptBeside,
    /// No attempt can be made: the code (125, 204 or 205) and why.
    NotRestored {
        /// The exit code.
        code: u8,
        /// What, where, why it matters, what to do.
        detail: String,
    },
    /// The peers that were to be waited for can be reached.
    PeersReached,
    /// They could not be reached in time.
    PeersMissing {
        /// Who, why, what to do.
        detail: String,
    },
    /// The command is running (exec succeeded), as often as it was to be started.
    Spawned {
        /// The main children, by local rank.
        pids: Vec<i32>,
    },
    /// The command could not be started: the code (125, 126 or 127) and why.
    NotSpawned {
        /// The exit code.
        code: u8,
        /// What, why, what to do.
        detail: String,
        /// The cause may be gone soon, as a lack of processes or memory.
        passes: bool,
        /// Other processes of the attempt were started.
        others: bool,
    },
    /// A main child ended.
    MainEnded {
        /// Which.
        local_rank: u32,
        /// How.
        end: End,
        /// The memory limit's own counter of kills rose lately, during this attempt; `None`: nobody counts.
        oom: Option<bool>,
    },
    /// Some other process of the tree ended.
    Reaped {
        /// Which.
        pid: i32,
        /// How.
        end: End,
    },
    /// No process of the tree is left.
    TreeEmpty,
    /// A signal arrived.
    Signal {
        /// Which.
        signal: Signal,
        /// The sending process; `None` when the kernel sent it.
        sender: Option<u32>,
    },
    /// A preemption is known.
    Preempted {
        /// What tells this announcement from others, for its withdrawal.
        id: String,
        /// Who said so, as `gce preempted`.
        source: String,
        /// How long until the machine goes away.
        lead: Duration,
    },
    /// An announced end will not come.
    Withdrawn {
        /// Which: as it was announced.
        id: String,
        /// Who said so.
        source: String,
    },
    /// The machine may go away or be slow before long; no reason to stop.
    Warned {
        /// One line about it.
        why: String,
    },
    /// The machine will stand still; silence is no hang meanwhile.
    Frozen {
        /// From now on.
        length: Duration,
        /// One line about it.
        why: String,
    },
    /// What the trainer did since the last look at it.
    Pulse(Pulse),
    /// A timer that was armed is due.
    Due(Timer),
    /// A checkpoint was committed while training went on.
    Committed {
        /// What the framework loads of it.
        unit: String,
        /// Its step, where known.
        step: Option<u64>,
        /// How long that took.
        took: Duration,
        /// From when it was seen complete until it was safe.
        lag: Duration,
    },
    /// A long transfer moved on.
    Transferring,
    /// The last commit waits for nothing but the other processes of the node, so long at most; `None`: it does no more.
    AwaitsOthers(Option<Duration>),
    /// The last commit is through; what need not stay is being deleted.
    Tidying,
    /// How the commits go; for who asks, and nothing else.
    Mirrored(Mirrored),
    /// The last commit is through.
    Flushed(Flushed),
    /// A GPU is no place to go on: the job leaves as if preempted, for another machine.
    GpuFailed {
        /// Which GPU, where, what happened.
        detail: String,
    },
    /// A newer incarnation of this job owns the store.
    Fenced {
        /// What to say about it.
        detail: String,
    },
}

/// The alarms a machine can set; arming one again replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The stop's one deadline: SIGKILL for all that is left.
    Grace,
    /// What SIGKILL could not end within the bound is stuck in the kernel.
    Stuck,
    /// Look again for descendants that were not there at the last look.
    Sweep,
    /// The pause before a restart is over.
    Backoff,
    /// The last commit makes no progress, or its time is up.
    FlushLimit,
    /// The end that was announced long ago is near.
    Leave,
    /// It is time to look whether the trainer is alive.
    Pulse,
}

impl Timer {
    /// Whether it only matters while processes of the tree are left.
    pub fn is_for_the_tree(self) -> bool {
        matches!(self, Timer::Grace | Timer::Stuck | Timer::Sweep)
    }
}

/// Who gets a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Each main child.
    Leader,
    /// Each main child's process group.
    Group,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Restore the newest complete checkpoint; answer with `Restored` or `NotRestored`.
    Restore,
    /// Between attempts: commit what is complete and find the newest; answer with `Restored` or `NotRestored`.
    Refresh,
    /// The checkpoint of the last attempts does it no good: find and restore the next older one; answer as to `Refresh`.
    FallBack,
    /// Wait until the peers can be reached; answer with `PeersReached` or `PeersMissing`.
    AwaitPeers,
    /// Start the command, once for each of the policy's processes; answer with `Spawned` or `NotSpawned`.
    Spawn {
        /// From 1.
        attempt: u32,
        /// Where to go on from.
        resume: Option<Resume>,
    },
    /// Tell the child by file that the end is near; the deadline is in uptime.
    Announce {
        /// When whatever is left gets SIGKILL.
        deadline: Uptime,
    },
    /// Send a signal.
    Signal {
        /// To whom.
        target: Target,
        /// Which.
        signal: Signal,
    },
    /// Stop ourselves until somebody continues us; never as PID 1.
    Suspend {
        /// Now; else when the command has stopped of the signal that was sent last.
        at_once: bool,
    },
    /// Send SIGTERM to every process of the tree that has not had one from us yet.
    TermTree,
    /// Send SIGKILL to every process of the tree.
    KillTree,
    /// Look whether the trainer is alive; answer with `Pulse`.
    Feel,
    /// Say where every process of the tree waits.
    DumpStacks,
    /// Send SIGABRT to every process of the tree.
    AbortTree,
    /// Say which processes are stuck in the kernel.
    NameStuck,
    /// Set an alarm.
    Arm(Timer, Uptime),
    /// Take an alarm back.
    Disarm(Timer),
    /// Commit the newest complete checkpoint; answer with `Flushed`.
    Flush {
        /// When it must be through, if that is known.
        deadline: Option<Uptime>,
        /// Whether the job was told to stop: then nothing old is deleted.
        leaving: bool,
        /// Whether the command failed: then nobody's end is waited for before.
        failed: bool,
    },
    /// The trainer was cut off: what it may have been writing then is no checkpoint, unless that shows that it is whole.
    Doubt {
        /// When it was.
        at: Uptime,
        /// What was written longer before is not in doubt.
        most: Duration,
    },
    /// Copy the finished model; answer with `Flushed`.
    Publish,
    /// The commit under way must be through earlier than was said.
    Hurry {
        /// By when.
        deadline: Uptime,
    },
    /// Look for a checkpoint to commit at once, and often from now on.
    Hasten {
        /// The end is near: what is complete is taken after a short rest already.
        notice: bool,
    },
    /// Leave.
    Exit(Box<super::Outcome>),
}

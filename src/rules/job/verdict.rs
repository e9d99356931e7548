//! How a job's life ended, in the words of the verdict.

use crate::rules::exit::End;

/// Why trainit left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the verdict's word of that name")]
pub enum Reason {
    Finished,
    Failed,
    Signalled,
    Oom,
    Stopped,
    Preempted,
    Hung,
    Gpu,
    Peer,
    Store,
    Fenced,
    NotStarted,
}

impl Reason {
    /// The word in the verdict.
    pub fn word(self) -> &'static str {
        match self {
            Reason::Finished => "finished",
            Reason::Failed => "failed",
            Reason::Signalled => "signalled",
            Reason::Oom => "oom",
            Reason::Stopped => "stopped",
            Reason::Preempted => "preempted",
            Reason::Hung => "hung",
            Reason::Gpu => "gpu",
            Reason::Peer => "peer",
            Reason::Store => "store",
            Reason::Fenced => "fenced",
            Reason::NotStarted => "not_started",
        }
    }

    /// Whether somebody has to look into it.
    pub fn is_failure(self) -> bool {
        !matches!(self, Reason::Finished | Reason::Stopped | Reason::Preempted)
    }
}

/// Of an end after the kernel's killing in the same attempt.
pub const KILLED_FOR_MEMORY: &str = "the kernel killed a process of the job for memory during this attempt";

/// The end of a job, as far as the machine knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Why.
    pub reason: Reason,
    /// trainit's own exit code, remapped already.
    pub exit_code: u8,
    /// How the main child of the last attempt ended (of several the first that failed); `None` when there was none, or it
    /// could not be killed.
    pub child: Option<End>,
    /// The rank of that child, where there were several.
    pub rank: Option<u32>,
    /// The cgroup counted an out-of-memory kill during the last attempt; `None`: nobody knows.
    pub oom: Option<bool>,
    /// Starts of the command.
    pub attempts: u32,
    /// The step that the last attempt went on from.
    pub resumed_step: Option<u64>,
    /// The step of the newest commit.
    pub committed_step: Option<u64>,
    /// One sentence.
    pub detail: String,
}

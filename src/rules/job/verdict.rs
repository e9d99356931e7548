//! How a job ended, for the verdict.

use crate::process::exit::End;

/// Why trainit exited.
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

    /// Whether a person has to look into it.
    pub fn is_failure(self) -> bool {
        !matches!(self, Reason::Finished | Reason::Stopped | Reason::Preempted)
    }
}

/// The clause for an end after an out-of-memory kill in the same attempt.
pub const KILLED_FOR_MEMORY: &str = "the kernel killed a process in this container for memory during this attempt";

/// The end of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The reason.
    pub reason: Reason,
    /// trainit's exit code, after the replacements.
    pub exit_code: u8,
    /// How the main child of the last attempt ended (of several, the first that failed); `None` if there was none, or
    /// it could not be killed.
    pub child: Option<End>,
    /// The rank of that child, if there were several.
    pub rank: Option<u32>,
    /// The cgroup counted an out-of-memory kill during the last attempt; `None` if that is unknown.
    pub oom: Option<bool>,
    /// The number of starts of the command.
    pub attempts: u32,
    /// The step that the last attempt resumed from.
    pub resumed_step: Option<u64>,
    /// The step of the newest commit.
    pub committed_step: Option<u64>,
    /// One sentence.
    pub detail: String,
}

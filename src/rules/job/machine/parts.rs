//! The state of a [`Machine`](super::Machine), grouped by what changes together.

use std::time::Duration;

use super::leaving::AnnouncedEnd;
use super::main_children::MainChildren;
use super::starting::NotStarted;
use crate::job::clues::Clues;
use crate::job::event::{Resume, Uptime};
use crate::job::restart::RestartBudget;
use crate::process::exit::End;
use crate::process::signal::Signal;

/// One start of the command, from its spawn to the empty tree. Each spawn replaces it.
#[derive(Debug, Clone, Default)]
pub(super) struct Attempt {
    /// From 1; 0 before the first.
    pub(super) number: u32,
    pub(super) started_at: Uptime,
    /// The checkpoint that it resumed from.
    pub(super) resumed: Option<Resume>,
    /// Something new was committed since it began.
    pub(super) has_saved: bool,
    /// The signal that the main children were sent because of a stop. The rest of the tree gets the same.
    pub(super) stop_signal: Option<Signal>,
    /// How it ended: the end of its main child, or of the first failure of several; and whether there was an
    /// out-of-memory kill before.
    pub(super) ended: Option<(End, Option<bool>)>,
    /// When it ended. Other processes of its tree may end later.
    pub(super) ended_at: Uptime,
    pub(super) main_children: MainChildren,
    /// Why it could not be started.
    pub(super) not_started: Option<NotStarted>,
    /// When INT, HUP or QUIT was passed on, or came from the terminal. A death soon after is an answer to it.
    pub(super) keyboard_signal_at: Option<Uptime>,
    /// Why it was ended as hung.
    pub(super) hung: Option<String>,
    /// Explanations for its end.
    pub(super) clues: Clues,
}

/// What the next attempt starts with.
#[derive(Debug, Default)]
pub(super) struct NextAttempt {
    /// The checkpoint to resume from.
    pub(super) resume: Option<Resume>,
    /// Set while an older checkpoint is being restored: the pause before it is tried.
    pub(super) falling_back: Option<Duration>,
    /// A newer checkpoint that the next attempt does not resume from.
    pub(super) passed_over: Option<String>,
    /// Signals that arrived while no command ran.
    pub(super) held_signals: Vec<Signal>,
}

/// Why the job is being stopped.
#[derive(Debug, Clone)]
pub(super) enum Cause {
    Signal { sender: Option<u32> },
    Notice { source: String },
    Gpu { detail: String },
    Fenced { detail: String, again: bool },
}

/// A request to stop the job.
#[derive(Debug, Clone)]
pub(super) struct Stop {
    pub(super) cause: Cause,
    /// The trainer has had a signal for it. A notice and a signal for the same event send only one.
    pub(super) is_signalled: bool,
}

/// The end of the present process tree.
#[derive(Debug, Default)]
pub(super) struct Stopping {
    pub(super) stop: Option<Stop>,
    /// When the remaining processes get SIGKILL, if a deadline is set.
    pub(super) deadline: Option<Uptime>,
    /// When the deadline was first set.
    pub(super) grace_from: Uptime,
    /// The preemption file with a deadline was written.
    pub(super) has_announced: bool,
    /// When SIGKILL was first sent to the remaining processes.
    pub(super) kill_from: Option<Uptime>,
    /// The fewest processes that a scan since then has found.
    pub(super) fewest_left: Option<usize>,
    /// The time of the next scan of the tree.
    pub(super) sweep_at: Option<Uptime>,
    /// The signal that ended the job between two attempts.
    pub(super) interrupted: Option<Signal>,
}

/// Announcements about the machine.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// When the machine goes away, and when this process must be gone.
    pub(super) leave_by: Option<(Uptime, Uptime)>,
    /// Ends that are too far away to tell the trainer.
    pub(super) distant: Vec<AnnouncedEnd>,
    /// The source of the notice that was acted on. Its withdrawal has no effect.
    pub(super) acted_on: Option<String>,
    /// The end of an announced freeze.
    pub(super) frozen_until: Option<Uptime>,
}

/// The commits of this run.
#[derive(Debug, Default)]
pub(super) struct Commits {
    /// The step of the newest commit. It is not the highest one if training fell back.
    pub(super) step: Option<u64>,
    /// How long the last commit took.
    pub(super) last_took: Option<Duration>,
    /// When the last commit is given up, if it transfers nothing until then.
    pub(super) give_up_at: Uptime,
    /// The copy of the finished model has begun.
    pub(super) has_published: bool,
    /// Only the deletion of old commits is left of the last commit.
    pub(super) is_deleting_old: bool,
    /// The last commit waits for the other processes of the node.
    pub(super) awaits_others: bool,
}

/// The decision about another attempt.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    pub(super) budget: RestartBudget,
    /// The previous attempt, which gives the verdict if this one could not be started.
    pub(super) attempt_before: Attempt,
    /// Why no further attempt is made.
    pub(super) no_restart_reason: String,
}

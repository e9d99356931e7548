//! The options, the result and the log lines of a commit.

use std::time::Duration;

use crate::rules::checkpoint::{Look, PartRecord, Plan, State};
use crate::rules::store::names::Attempt;
use crate::supervisor::checkpoints::directory::look::How;

/// A larger first commit is logged as a warning, because it may contain files that are not needed.
const LARGE: u64 = 50_000_000_000;
/// How many of its largest files the line names.
const LARGEST: usize = 3;

/// The conditions of a commit.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    /// The state of the processes that write, and how long a part must be unchanged before it is ready.
    pub(crate) how: How,
    /// Time limit. A commit that needs longer at the last throughput does not start.
    pub limit: Option<Duration>,
}

impl Ask {
    /// Processes may write; a part that has been unchanged for `settle` is ready.
    pub fn running(settle: Duration, limit: Option<Duration>) -> Ask {
        Ask { how: How::running(settle), limit }
    }

    /// No process writes any more.
    pub fn at_rest() -> Ask {
        Ask { how: How::AT_REST, limit: None }
    }
}

/// The result of a commit.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A new commit exists.
    Committed {
        /// The training step, where known.
        step: Option<u64>,
        /// The path that the framework loads; `.` for the directory itself.
        unit: String,
        /// Bytes of its files.
        bytes: u64,
        /// Seconds that it took.
        seconds: f64,
        /// Seconds from when it was ready until it was committed.
        lag: f64,
        /// Whether it has new content: the job made progress.
        is_progress: bool,
    },
    /// The store has the whole directory.
    UpToDate {
        /// Its step, where known.
        step: Option<u64>,
    },
    /// New content cannot be committed now.
    Waiting {
        /// Why, in one clause that names a path.
        why: String,
        /// When to look again.
        again: Option<Duration>,
    },
    /// There is nothing to commit.
    Empty,
    /// A file changed while it was copied: nothing was committed; try later.
    Changed {
        /// What changed.
        why: String,
    },
    /// A newer run has taken over the store: stop committing, stop training.
    Fenced {
        /// The newer run's attempt.
        by: Attempt,
    },
    /// There was not enough time to commit it.
    OutOfTime {
        /// One line.
        why: String,
    },
    /// It could not be committed.
    Failed {
        /// One line.
        message: String,
        /// The store could not be reached, or refused the credentials for now.
        is_away: bool,
        /// Whether another try may succeed.
        again: bool,
        /// The cause, as the label of the counters.
        cause: &'static str,
    },
}

/// Why a part with new content is not committed.
pub(crate) fn held_back(state: &State) -> Option<&str> {
    match state {
        State::Settling(why) | State::Incomplete(why) | State::Torn(why) | State::Unproven(why) => Some(why),
        State::Committed | State::Ready | State::Empty => None,
    }
}

/// Why the first part with new content is not committed.
pub(crate) fn waiting(look: &Look) -> Option<String> {
    look.parts.iter().find_map(|part| held_back(&part.state)).map(str::to_owned)
}

/// Logs the files of the first commit, which shows that a directory contains more than checkpoints.
pub(crate) fn log_first(plan: &Plan) {
    let mut files: Vec<(u64, &str)> = plan.local().map(|(entry, _)| (entry.size, entry.path.as_str())).collect();
    files.sort_by(|a, b| b.cmp(a));
    let bytes: u64 = files.iter().map(|(size, _)| size).sum();
    let largest: Vec<String> =
        files.iter().take(LARGEST).map(|(size, path)| format!("{path} ({size} bytes)")).collect();
    let parts: Vec<String> = plan.parts.iter().map(|part| name_of_part(&part.record)).collect();
    let (count, parts, largest) = (files.len(), parts.join(", "), largest.join(", "));
    if bytes > LARGE {
        tracing::warn!(
            code = "large_commit",
            "the first commit takes {parts}: {count} files, {bytes} bytes; the largest are {largest}; leave out what is no checkpoint with --checkpoint-exclude GLOB, and older saves with --keep-saves N"
        );
    } else {
        tracing::info!("the first commit takes {parts}: {count} files, {bytes} bytes; the largest are {largest}");
    }
}

/// The name of a part in a log line.
pub(crate) fn name_of_part(part: &PartRecord) -> String {
    match (&part.unit, &part.layout) {
        (Some(unit), Some(layout)) if !unit.is_empty() => format!("{unit} ({layout})"),
        (Some(_), Some(layout)) => format!("the directory itself ({layout})"),
        _ => "the rest of the directory".to_owned(),
    }
}

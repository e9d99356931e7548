//! The settings under the heading "Stopping".

use super::{Setting, many, on, one};

const TOPIC: &str = "Stopping";

/// In the order of `--help`.
pub(super) const SETTINGS: &[Setting] = &[
    one(
        "stop-grace",
        "DURATION",
        TOPIC,
        on::RUN,
        "25s",
        "The time from the first SIGTERM to SIGKILL for the process tree; later signals never move it",
    ),
    one(
        "signal-target",
        "leader|group",
        TOPIC,
        on::RUN,
        "leader",
        "The receiver of forwarded signals: the main child, or its whole process group like dumb-init",
    ),
    many(
        "rewrite-signal",
        "FROM:TO",
        TOPIC,
        on::RUN,
        "Forward FROM as TO (names or numbers); TERM as TO stops the job, 0 drops the signal",
    ),
    many("remap-exit", "FROM:TO", TOPIC, on::RUN, "Exit with TO instead of FROM"),
    one(
        "stopped-exit-code",
        "143|child",
        TOPIC,
        on::RUN,
        "143",
        "The exit code after a SIGTERM or preemption: always 143, or the child's own code",
    ),
    one(
        "parent-death-signal",
        "SIGNAL",
        TOPIC,
        on::RUN,
        "KILL",
        "The signal that the child gets if trainit itself dies (unless trainit is PID 1); 0 for none",
    ),
    one(
        "orphaned-signal",
        "SIGNAL",
        TOPIC,
        on::RUN,
        "",
        "The signal that trainit itself gets and handles if its parent process dies (tini -p)",
    ),
];

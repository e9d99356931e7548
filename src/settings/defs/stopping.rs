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
        "How long the process tree has after the first SIGTERM before SIGKILL; later signals never move it",
    ),
    one(
        "signal-target",
        "leader|group",
        TOPIC,
        on::RUN,
        "leader",
        "Who gets forwarded signals: the main child, or its whole process group as dumb-init does",
    ),
    one(
        "suspend",
        "command|signal",
        TOPIC,
        on::RUN,
        "",
        "On TSTP, TTIN or TTOU trainit stops itself, too: when the command has stopped, or at the signal, as dumb-init does \
         [default: signal with --signal-target group, else command]",
    ),
    many(
        "rewrite-signal",
        "FROM:TO",
        TOPIC,
        on::RUN,
        "Forward FROM as TO, names or numbers; to TERM it asks for the end as that does, TO 0 drops it",
    ),
    many("remap-exit", "FROM:TO", TOPIC, on::RUN, "Leave with TO where the exit code would be FROM"),
    one(
        "stopped-exit-code",
        "143|child",
        TOPIC,
        on::RUN,
        "143",
        "After a SIGTERM or preemption: always 143, or the child's own code",
    ),
    one(
        "parent-death-signal",
        "SIGNAL",
        TOPIC,
        on::RUN,
        "KILL",
        "What the child gets if trainit itself dies (where trainit is not PID 1); 0 for nothing",
    ),
    one(
        "orphaned-signal",
        "SIGNAL",
        TOPIC,
        on::RUN,
        "",
        "What trainit itself gets, and deals with, if the process that started it dies (tini -p)",
    ),
];

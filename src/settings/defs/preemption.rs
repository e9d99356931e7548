//! The settings under the heading "Preemption".

use super::{Setting, many, on, one};

const TOPIC: &str = "Preemption";

/// In the order of `--help`.
pub(super) const SETTINGS: &[Setting] = &[
    one(
        "preemption",
        "auto|off|gce|aws|azure",
        TOPIC,
        on::RUN | on::INSPECT,
        "auto",
        "The source of notices in addition to SIGTERM; auto uses a cloud's server only if this machine shows that it belongs to that cloud",
    ),
    one(
        "preempt-signal",
        "SIGNAL",
        TOPIC,
        on::RUN,
        "TERM",
        "The signal that the trainer gets for a preemption; 0 for none",
    ),
    many(
        "preempt-on",
        "SIGNAL[@TIME]",
        TOPIC,
        on::RUN,
        "A signal that announces the machine's end in TIME (60s), as Slurm's --signal=USR1@120 does: USR1@120; the trainer is killed when a sixth of TIME (3s to 20s) is left",
    ),
    one(
        "preemption-lead",
        "DURATION",
        TOPIC,
        on::RUN,
        "30s",
        "GCE's notice period for a preemption (120s if the machine was created with that option)",
    ),
];

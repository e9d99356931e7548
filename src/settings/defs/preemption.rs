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
        "Where notices come from beside SIGTERM; auto asks a cloud only on local evidence that this is that cloud",
    ),
    one(
        "preempt-signal",
        "SIGNAL",
        TOPIC,
        on::RUN,
        "TERM",
        "What the trainer gets when a preemption is known; 0 for nothing",
    ),
    many(
        "preempt-on",
        "SIGNAL[@TIME]",
        TOPIC,
        on::RUN,
        "A signal that announces the machine's end in TIME (60s), as Slurm's --signal=USR1@120 does: USR1@120; the trainer has all of it but a sixth (3s to 20s), then it is killed",
    ),
    one(
        "preemption-lead",
        "DURATION",
        TOPIC,
        on::RUN,
        "30s",
        "How long before the end GCE gives notice of a preemption (120s where the machine was created with that option)",
    ),
    one(
        "maintenance-lead",
        "DURATION",
        TOPIC,
        on::RUN,
        "60s",
        "How long before the end GCE gives notice of maintenance that ends the machine (1h for machines with GPUs)",
    ),
];

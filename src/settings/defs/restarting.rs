//! The settings under the heading "Restarting".

use super::{Setting, on, one};

const TOPIC: &str = "Restarting";

/// In the order of `--help`.
pub(super) const SETTINGS: &[Setting] = &[
    one(
        "max-restarts",
        "N",
        TOPIC,
        on::RUN,
        "",
        "Restarts after a crash without a newer checkpoint in between; three attempts in a row that fail within a minute end the job before that [default: 3 with --checkpoint-dir, else 0]",
    ),
    one(
        "restart-backoff",
        "FIRST..MAX",
        TOPIC,
        on::RUN,
        "1s..60s",
        "Pause before a restart: FIRST, doubled each time up to MAX, varied at random by up to 20 %",
    )
    .needs(&["max-restarts", "checkpoint-dir"]),
    one(
        "hang-timeout",
        "DURATION",
        TOPIC,
        on::RUN,
        "",
        "Restart a command that shows no sign of life for this long: no heartbeat, output, commit, I/O or working thread; without a heartbeat, a start has three times as long [default: never]",
    ),
    one(
        "hang-forensics",
        "DIR",
        TOPIC,
        on::RUN,
        "",
        "Where PyTorch's NCCL flight recorder writes the last collectives of each rank, at its own time-out and at a hang that trainit finds",
    ),
];

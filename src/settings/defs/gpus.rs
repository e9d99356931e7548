//! The settings under the heading "GPUs".

use super::{Setting, many, on, one, switch};

const TOPIC: &str = "GPUs";

/// In the order of `--help`.
pub(super) const SETTINGS: &[Setting] = &[
    one(
        "gpu-timeout",
        "DURATION",
        TOPIC,
        on::RUN | on::INSPECT | on::GPUS | on::ENV,
        "5s",
        "How long one NVML call may take; three times that for all of them",
    ),
    one("require-gpus", "N|any", TOPIC, on::RUN, "", "Do not start with fewer than N usable GPUs"),
    one(
        "min-driver",
        "VERSION",
        TOPIC,
        on::RUN,
        "",
        "Do not start with an older NVIDIA driver (550.54.15, or only 550)",
    ),
    one("min-gpu-memory", "SIZE", TOPIC, on::RUN, "", "Do not start if a GPU has less memory than this (40GiB, 80GB)"),
    many(
        "xid",
        "CODE=CLASS",
        TOPIC,
        on::RUN,
        "What an XID means here: note it, restart the trainer after it died, or leave this machine (13=leave)",
    ),
    one("gpu-interval", "DURATION", TOPIC, on::RUN | on::GPUS, "10s", "How often the GPUs are sampled while watching"),
    switch(
        "watch",
        TOPIC,
        on::GPUS,
        "Show the GPUs again at every --gpu-interval, and at once when an XID comes; with --json one object a line",
    ),
];

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
        "The limit for one NVML call; all calls together may take three times as long",
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
        "The reaction to an XID: note it, restart the trainer after its death, or leave this machine (13=leave)",
    ),
    one("gpu-interval", "DURATION", TOPIC, on::RUN | on::GPUS, "10s", "How often the GPUs are sampled while watching"),
    switch(
        "watch",
        TOPIC,
        on::GPUS,
        "Print the GPUs again at every --gpu-interval, and at once after an XID; with --json one object on each line",
    ),
];

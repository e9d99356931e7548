//! The settings under the heading "Output".

use super::{Setting, on, one, switch};

const TOPIC: &str = "Output";

/// In the order of `--help`.
pub(super) const SETTINGS: &[Setting] = &[
    one(
        "log-format",
        "auto|text|json",
        TOPIC,
        on::RUN,
        "auto",
        "Log lines on stderr: auto is text on a terminal, JSON otherwise",
    ),
    one("log-level", "error|warn|info|debug", TOPIC, on::RUN, "info", "How much the log says"),
    one(
        "output-prefix",
        "rank|none",
        TOPIC,
        on::RUN,
        "rank",
        "Before each line of the output of several processes (--nproc): their rank, or nothing",
    )
    .needs(&["nproc"]),
    one(
        "verdict-file",
        "PATH",
        TOPIC,
        on::RUN,
        "",
        "Also write the verdict, one JSON object, to this file; its folder is made where there is none",
    ),
    one(
        "status-addr",
        "ADDR:PORT",
        TOPIC,
        on::RUN,
        "",
        "Answer /metrics (Prometheus) and /healthz over HTTP there, as 127.0.0.1:9464; off without it",
    ),
    switch("json", TOPIC, on::INSPECT | on::GPUS | on::CHECKPOINT | on::STATUS, "Print one JSON object"),
    switch(
        "check",
        TOPIC,
        on::STATUS,
        "Only say in one line whether the run is well, and leave with 0 or 1; for a HEALTHCHECK",
    ),
    one("socket", "PATH", TOPIC, on::STATUS, "", "The run to ask; without it the one that is here is found"),
    one(
        "format",
        "shell|dotenv|json",
        TOPIC,
        on::ENV,
        "shell",
        "shell is for eval; dotenv and json are for other tools",
    ),
];

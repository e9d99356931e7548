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
        "Format of log lines on stderr: auto means JSON on Vertex AI, AI Platform, GKE and SageMaker, whose collectors parse it, and text elsewhere",
    ),
    one("log-level", "error|warn|info|debug", TOPIC, on::RUN, "info", "The lowest level of log lines"),
    one(
        "output-prefix",
        "rank|none",
        TOPIC,
        on::RUN,
        "rank",
        "The prefix of output lines of several processes (--nproc): their rank, or none",
    )
    .needs(&["nproc"]),
    one(
        "verdict-file",
        "PATH",
        TOPIC,
        on::RUN,
        "",
        "Also write the verdict, one JSON object, to this file; a missing directory is created",
    ),
    one(
        "run-report",
        "FILE.html",
        TOPIC,
        on::RUN,
        "",
        "Write the page about the run to this file at each commit and at the end; a missing directory is created",
    ),
    one(
        "steps",
        "N",
        TOPIC,
        on::RUN,
        "",
        "The training's last step, for the progress and the time left [default: what trainit.step(n, total=N) says]",
    ),
    one(
        "status-addr",
        "ADDR:PORT",
        TOPIC,
        on::RUN,
        "",
        "Serve a page about the run, /metrics (Prometheus) and /healthz over HTTP at this address, such as 127.0.0.1:9464 [default: off]",
    ),
    switch("json", TOPIC, on::INSPECT | on::GPUS | on::CHECKPOINT | on::STATUS | on::GOODPUT, "Print one JSON object"),
    switch(
        "check",
        TOPIC,
        on::STATUS,
        "Print one line about the run's health, and exit with 0 (healthy) or 1; for a HEALTHCHECK",
    ),
    one("socket", "PATH", TOPIC, on::STATUS, "", "The status socket of the run [default: the run of this container]"),
    one("format", "shell|dotenv|json", TOPIC, on::ENV, "shell", "shell for eval; dotenv and json for other tools"),
];

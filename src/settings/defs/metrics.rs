//! The settings under the heading "Metrics".

use super::{Setting, many, on, one, switch};

const TOPIC: &str = "Metrics";

/// In the order of `--help`.
pub(super) const SETTINGS: &[Setting] = &[
    many(
        "metric",
        "TAG=REGEX",
        TOPIC,
        on::RUN,
        "Report TAG from the trainer's output: groups named value and step, or the first group; or SageMaker's {\"Name\", \"Regex\"} or a list of them",
    ),
    many(
        "metric-filter",
        "REGEX",
        TOPIC,
        on::RUN,
        "Report every metric that this matches, like Katib's filters: the first group is its name, the second its value",
    ),
    many("report", "TAG", TOPIC, on::RUN, "Report only this TAG to the tuner [default: every metric that is found]"),
    one(
        "metric-rank",
        "first|last|all|N",
        TOPIC,
        on::RUN,
        "first",
        "Under --nproc, the local rank whose output is searched for metrics",
    )
    .needs(&["metric", "metric-filter"]),
    one(
        "tensorboard-dir",
        "DIR",
        TOPIC,
        on::RUN,
        "",
        "Report the scalars that the trainer writes to TensorBoard's event files in DIR and its subdirectories",
    ),
    many(
        "tensorboard-tag",
        "[TAG=]GLOB",
        TOPIC,
        on::RUN,
        "Report only the scalars that match GLOB, as tag or directory/tag, with the name TAG [default: all, as directory/tag]",
    ),
    one(
        "metric-file",
        "FILE",
        TOPIC,
        on::RUN,
        "",
        "Report the metrics that the trainer writes to FILE: JSON objects, a table (CSV) with a header, or lines with name=value or name: value",
    ),
    one(
        "metric-step",
        "NAME",
        TOPIC,
        on::RUN,
        "",
        "The step is the number after NAME, such as epoch or iter [default: step in a file; in the output a group named step, or else a count]",
    )
    .needs(&["metric", "metric-filter", "metric-file"]),
    one(
        "file",
        "PATH",
        TOPIC,
        on::REPORT_METRIC,
        "",
        "The metrics file [default: CLOUD_ML_HP_METRIC_FILE, or else /tmp/hypertune/output.metrics]",
    ),
    one(
        "tag",
        "TAG",
        TOPIC,
        on::REPORT_METRIC,
        "",
        "The metric's name [default: CLOUD_ML_HP_METRIC_TAG, else training/hptuning/metric]",
    ),
    one("value", "VALUE", TOPIC, on::REPORT_METRIC, "", "The metric's value, a number in the form of Python's float()"),
    one("step", "N", TOPIC, on::REPORT_METRIC, "", "The global step, a whole number"),
    one("checkpoint-path", "PATH", TOPIC, on::REPORT_METRIC, "", "The checkpoint that belongs to the metric"),
    one("keep", "N", TOPIC, on::REPORT_METRIC | on::RUN, "100", "Lines to keep in the metrics file; 0 never trims"),
    switch(
        "stdin",
        TOPIC,
        on::REPORT_METRIC,
        "Read many metrics and report each at once: JSON objects or `tag value [step]`, one on each line",
    ),
    switch("fsync", TOPIC, on::REPORT_METRIC, "Flush the file to the device before exiting"),
    switch("rank0-only", TOPIC, on::REPORT_METRIC, "On every rank except 0, do nothing and exit with 0"),
    switch(
        "best-effort",
        TOPIC,
        on::REPORT_METRIC,
        "Exit with 0 even if the metric was invalid or could not be written",
    ),
];

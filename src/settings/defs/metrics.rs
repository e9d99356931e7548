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
        "Report every metric that this finds, as Katib's filters do: the first group is its name, the second its value",
    ),
    many("report", "TAG", TOPIC, on::RUN, "Of all that is found, report only TAG to the tuner [default: all of it]"),
    one(
        "metric-from",
        "both|stdout|stderr",
        TOPIC,
        on::RUN,
        "both",
        "Which of the trainer's streams --metric searches; the bytes are passed on untouched",
    )
    .needs(&["metric", "metric-filter"]),
    one(
        "tensorboard-dir",
        "DIR",
        TOPIC,
        on::RUN,
        "",
        "Report the scalars that the trainer writes to TensorBoard's event files in DIR and the folders in it",
    ),
    many(
        "tensorboard-tag",
        "[TAG=]GLOB",
        TOPIC,
        on::RUN,
        "Of these scalars only those that GLOB names, as tag or folder/tag, under the name TAG [default: all, as folder/tag]",
    ),
    one(
        "metric-file",
        "FILE",
        TOPIC,
        on::RUN,
        "",
        "Report what the trainer writes to FILE: lines of JSON objects or name=value; step or global_step is the step",
    ),
    one(
        "file",
        "PATH",
        TOPIC,
        on::REPORT_METRIC,
        "",
        "The metrics file [default: CLOUD_ML_HP_METRIC_FILE, else /tmp/hypertune/output.metrics]",
    ),
    one(
        "tag",
        "TAG",
        TOPIC,
        on::REPORT_METRIC,
        "",
        "The metric's name [default: CLOUD_ML_HP_METRIC_TAG, else training/hptuning/metric]",
    ),
    one("value", "VALUE", TOPIC, on::REPORT_METRIC, "", "The metric's value, a number as Python's float() reads it"),
    one("step", "N", TOPIC, on::REPORT_METRIC, "", "The global step, a whole number"),
    one("checkpoint-path", "PATH", TOPIC, on::REPORT_METRIC, "", "The checkpoint that goes with the metric"),
    one("trial", "ID", TOPIC, on::REPORT_METRIC, "", "The trial [default: CLOUD_ML_TRIAL_ID, else 0]")
        .without_variable(),
    one("keep", "N", TOPIC, on::REPORT_METRIC | on::RUN, "100", "Lines to keep in the metrics file; 0 never trims"),
    switch(
        "stdin",
        TOPIC,
        on::REPORT_METRIC,
        "Read many metrics, each as it comes: JSON objects or `tag value [step]`, one a line",
    ),
    switch("fsync", TOPIC, on::REPORT_METRIC, "Flush the file to the device before leaving"),
    switch("rank0-only", TOPIC, on::REPORT_METRIC, "Do nothing, successfully, on every rank but 0"),
    switch(
        "best-effort",
        TOPIC,
        on::REPORT_METRIC,
        "Leave with 0 even if the metric was wrong or could not be written",
    ),
];

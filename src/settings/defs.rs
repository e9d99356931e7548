//! The one list of settings. From it come the flags, the `TRAINIT_` variables, the keys of the configuration file,
//! `--help`, the nearest-name hints and the settings part of `trainit inspect`.
//!
//! To add a setting: one entry here, and one line where it is read (the file of its topic beside this one).

/// The subcommands a setting belongs to, as bits.
pub mod on {
    #![allow(missing_docs, reason = "each is the subcommand of that name")]
    pub const RUN: u8 = 1;
    pub const REPORT_METRIC: u8 = 2;
    pub const INSPECT: u8 = 4;
    pub const ENV: u8 = 8;
    pub const GPUS: u8 = 16;
    pub const CHECKPOINT: u8 = 32;
    /// Wherever the cluster is read.
    pub const CLUSTER: u8 = RUN | INSPECT | ENV;
    /// Wherever the checkpoint store is opened.
    pub const STORE: u8 = RUN | INSPECT | CHECKPOINT;
}

/// What a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Nothing: present or absent; `true` or `false` from a variable or the file.
    Switch,
    /// One value; the text names it in `--help`.
    One(&'static str),
    /// Any number of values: the flag repeats, the file has a list, the variable has one a line.
    Many(&'static str),
}

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// The flag without its dashes; also the key in the configuration file, and upper-cased after `TRAINIT_` the variable.
    pub name: &'static str,
    /// What it takes.
    pub takes: Takes,
    /// The heading in `--help`.
    pub topic: &'static str,
    /// On which subcommands (bits of [`on`]).
    pub on: u8,
    /// The built-in default as it would be typed; empty when there is none or when it depends.
    pub default: &'static str,
    /// One sentence for `--help`.
    pub help: &'static str,
}

impl Setting {
    /// `TRAINIT_STOP_GRACE` for `stop-grace`.
    pub fn variable(&self) -> String {
        let mut name = String::with_capacity("TRAINIT_".len() + self.name.len());
        name.push_str("TRAINIT_");
        name.extend(self.name.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_uppercase() }));
        name
    }
}

/// The setting of this name.
pub fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|s| s.name == name)
}

const STOPPING: &str = "Stopping";
const RESTARTING: &str = "Restarting";
const CLUSTER: &str = "Cluster";
const CHECKPOINTS: &str = "Checkpoints";
const PREEMPTION: &str = "Preemption";
const METRICS: &str = "Metrics";
const GPUS: &str = "GPUs";
const OUTPUT: &str = "Output";

const fn one(
    name: &'static str,
    value: &'static str,
    topic: &'static str,
    on: u8,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { name, takes: Takes::One(value), topic, on, default, help }
}

const fn many(name: &'static str, value: &'static str, topic: &'static str, on: u8, help: &'static str) -> Setting {
    Setting { name, takes: Takes::Many(value), topic, on, default: "", help }
}

const fn switch(name: &'static str, topic: &'static str, on: u8, help: &'static str) -> Setting {
    Setting { name, takes: Takes::Switch, topic, on, default: "", help }
}

/// Every setting, in the order of `--help`.
pub const SETTINGS: &[Setting] = &[
    // Stopping
    one(
        "stop-grace",
        "DURATION",
        STOPPING,
        on::RUN,
        "25s",
        "How long the process tree has after the first SIGTERM before SIGKILL; later signals never move it",
    ),
    one(
        "signal-target",
        "leader|group",
        STOPPING,
        on::RUN,
        "leader",
        "Who gets forwarded signals: the main child, or its whole process group as dumb-init does",
    ),
    many("rewrite-signal", "FROM:TO", STOPPING, on::RUN, "Forward FROM as TO, names or numbers; TO 0 drops it"),
    many("remap-exit", "FROM:TO", STOPPING, on::RUN, "Leave with TO where the exit code would be FROM"),
    one(
        "stopped-exit-code",
        "143|child",
        STOPPING,
        on::RUN,
        "143",
        "After a SIGTERM or preemption: always 143, or the child's own code",
    ),
    one(
        "parent-death-signal",
        "SIGNAL",
        STOPPING,
        on::RUN,
        "KILL",
        "What the child gets if trainit itself dies (where trainit is not PID 1); 0 for nothing",
    ),
    // Restarting
    one(
        "max-restarts",
        "N",
        RESTARTING,
        on::RUN,
        "",
        "Restarts after a crash without a newer checkpoint in between [default: 3 with --checkpoint-dir, else 0]",
    ),
    one(
        "restart-backoff",
        "FIRST..MAX",
        RESTARTING,
        on::RUN,
        "1s..60s",
        "Pause before a restart: FIRST, doubled each time up to MAX",
    ),
    // Cluster
    one(
        "platform",
        "NAME",
        CLUSTER,
        on::CLUSTER,
        "",
        "Read the cluster from this platform's variables only (vertex, tf_config, none, ...) [default: the first that is there]",
    ),
    one(
        "nnodes",
        "N",
        CLUSTER,
        on::CLUSTER,
        "",
        "Number of training nodes; completes or overrides what the platform says",
    ),
    one("node-rank", "R", CLUSTER, on::CLUSTER, "", "This node's rank, from 0"),
    one("leader", "HOST:PORT", CLUSTER, on::CLUSTER, "", "Where node rank 0 listens for the rendezvous"),
    one("hostname", "NAME", CLUSTER, on::CLUSTER, "", "This replica's own name [default: the host name]"),
    one("pool2", "ps|reducer|worker", CLUSTER, on::CLUSTER, "ps", "What Vertex AI's worker pool 2 is"),
    one(
        "tf-config",
        "rewrite|keep",
        CLUSTER,
        on::CLUSTER,
        "rewrite",
        "Whether TF_CONFIG may be rewritten for TensorFlow 2 (master becomes chief)",
    ),
    one(
        "leader-self",
        "own-name|keep",
        CLUSTER,
        on::CLUSTER,
        "own-name",
        "On Vertex AI, rank 0 dials itself by its own host name, or by the published name",
    ),
    one(
        "rank-pools",
        "training|all",
        CLUSTER,
        on::CLUSTER,
        "training",
        "Which replicas get ranks: chief and workers, or every pool in order",
    ),
    one(
        "nproc",
        "N|gpu",
        CLUSTER,
        on::CLUSTER,
        "",
        "Processes to start on this node, each with its rank; gpu is one for each GPU [default: one, as a node]",
    ),
    many("framework", "NAME", CLUSTER, on::ENV, "Only the variables of this framework"),
    // Checkpoints
    one("checkpoint-dir", "DIR", CHECKPOINTS, on::STORE, "", "Where the trainer writes its checkpoints"),
    one(
        "checkpoint-store",
        "URL",
        CHECKPOINTS,
        on::STORE,
        "",
        "Where complete checkpoints are committed, and restored from on the next start (file:///path)",
    ),
    one("checkpoint-format", "auto|NAME", CHECKPOINTS, on::STORE, "auto", "How the trainer writes checkpoints"),
    one("marker", "NAME", CHECKPOINTS, on::STORE, "", "A checkpoint is a directory, complete when it holds this file"),
    one("step-regex", "REGEX", CHECKPOINTS, on::STORE, "", "Finds the step in a checkpoint's name (first group)"),
    one(
        "settle",
        "DURATION",
        CHECKPOINTS,
        on::STORE,
        "2s",
        "A checkpoint must lie unchanged for this long before it is copied",
    ),
    one(
        "mirror-interval",
        "DURATION",
        CHECKPOINTS,
        on::RUN,
        "30s",
        "How often to look for a new checkpoint to commit while training",
    ),
    one("keep-last", "N", CHECKPOINTS, on::RUN | on::CHECKPOINT, "3", "Committed checkpoints to keep in the store"),
    one(
        "keep-every",
        "N",
        CHECKPOINTS,
        on::RUN | on::CHECKPOINT,
        "",
        "Also keep every commit whose step is a multiple of N",
    ),
    one(
        "restore",
        "latest|required|none",
        CHECKPOINTS,
        on::RUN | on::CHECKPOINT,
        "latest",
        "Resume from the newest complete checkpoint if there is one, only with one, or never",
    ),
    one("restore-step", "N", CHECKPOINTS, on::RUN | on::CHECKPOINT, "", "Resume from the checkpoint of this step"),
    // Preemption
    one(
        "preemption",
        "auto|off|gce",
        PREEMPTION,
        on::RUN | on::INSPECT,
        "auto",
        "Where notices come from beside SIGTERM; auto asks a cloud only on local evidence that this is that cloud",
    ),
    one(
        "preempt-signal",
        "SIGNAL",
        PREEMPTION,
        on::RUN,
        "TERM",
        "What the trainer gets when a preemption is known; 0 for nothing",
    ),
    // Metrics
    many(
        "metric",
        "TAG=REGEX",
        METRICS,
        on::RUN,
        "Report TAG from the trainer's output: groups named value and step, or the first group; or SageMaker's {\"Name\", \"Regex\"}",
    ),
    many(
        "metric-filter",
        "REGEX",
        METRICS,
        on::RUN,
        "Report every metric that this finds, as Katib's filters do: the first group is its name, the second its value",
    ),
    many("report", "TAG", METRICS, on::RUN, "Of what is found, report only TAG to the tuner [default: all of it]"),
    one(
        "metric-from",
        "both|stdout|stderr",
        METRICS,
        on::RUN,
        "both",
        "Which of the trainer's streams --metric searches; the bytes are passed on untouched",
    ),
    one(
        "file",
        "PATH",
        METRICS,
        on::REPORT_METRIC,
        "",
        "The metrics file [default: CLOUD_ML_HP_METRIC_FILE, else /tmp/hypertune/output.metrics]",
    ),
    one(
        "tag",
        "TAG",
        METRICS,
        on::REPORT_METRIC,
        "",
        "The metric's name [default: CLOUD_ML_HP_METRIC_TAG, else training/hptuning/metric]",
    ),
    one("value", "VALUE", METRICS, on::REPORT_METRIC, "", "The metric's value, a number as Python's float() reads it"),
    one("step", "N", METRICS, on::REPORT_METRIC, "", "The global step, a whole number"),
    one("checkpoint-path", "PATH", METRICS, on::REPORT_METRIC, "", "The checkpoint that goes with the metric"),
    one("trial", "ID", METRICS, on::REPORT_METRIC, "", "The trial [default: CLOUD_ML_TRIAL_ID, else 0]"),
    one("keep", "N", METRICS, on::REPORT_METRIC | on::RUN, "100", "Lines to keep in the metrics file; 0 never trims"),
    switch("stdin", METRICS, on::REPORT_METRIC, "Read many metrics: JSON objects or `tag value [step]`, one a line"),
    switch("fsync", METRICS, on::REPORT_METRIC, "Flush the file to the device before leaving"),
    switch("rank0-only", METRICS, on::REPORT_METRIC, "Do nothing, successfully, on every rank but 0"),
    switch("best-effort", METRICS, on::REPORT_METRIC, "Leave with 0 even if the metric could not be written"),
    // GPUs
    one(
        "gpu-timeout",
        "DURATION",
        GPUS,
        on::RUN | on::INSPECT | on::GPUS,
        "5s",
        "How long one NVML call may take; three times that for all of them",
    ),
    one("require-gpus", "N|any", GPUS, on::RUN, "", "Do not start without so many usable GPUs"),
    one(
        "min-driver",
        "VERSION",
        GPUS,
        on::RUN,
        "",
        "Do not start with an older NVIDIA driver (550.54.15, or only 550)",
    ),
    one("min-gpu-memory", "SIZE", GPUS, on::RUN, "", "Do not start if a GPU has less memory than this (40GiB, 80GB)"),
    many(
        "xid",
        "CODE=CLASS",
        GPUS,
        on::RUN,
        "What an XID means here: note it, restart the trainer after it died, or leave this machine (13=leave)",
    ),
    one("gpu-interval", "DURATION", GPUS, on::RUN | on::GPUS, "10s", "How often the GPUs are sampled while watching"),
    switch("watch", GPUS, on::GPUS, "Show the GPUs again at every --gpu-interval; with --json one object a line"),
    // Output
    one(
        "log-format",
        "auto|text|json",
        OUTPUT,
        on::RUN,
        "auto",
        "Log lines on stderr: auto is text on a terminal, JSON otherwise",
    ),
    one("log-level", "LEVEL", OUTPUT, on::RUN, "info", "error, warn, info or debug"),
    one("verdict-file", "PATH", OUTPUT, on::RUN, "", "Also write the verdict, one JSON object, to this file"),
    switch("json", OUTPUT, on::INSPECT | on::GPUS | on::CHECKPOINT, "Print one JSON object"),
    switch("dry-run", CHECKPOINTS, on::CHECKPOINT, "Say what push or prune would do, and do nothing"),
    one(
        "format",
        "shell|dotenv|json",
        OUTPUT,
        on::ENV,
        "shell",
        "shell is for eval; dotenv and json are for other tools",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_settings_share_a_name() {
        for (at, setting) in SETTINGS.iter().enumerate() {
            assert!(SETTINGS[at + 1..].iter().all(|s| s.name != setting.name), "{}", setting.name);
        }
    }

    #[test]
    fn every_setting_belongs_to_a_subcommand_and_explains_itself() {
        for setting in SETTINGS {
            assert_ne!(setting.on, 0, "{}", setting.name);
            assert!(!setting.help.is_empty() && !setting.help.ends_with('.'), "{}", setting.name);
        }
    }
}

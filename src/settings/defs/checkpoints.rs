//! The settings under the heading "Checkpoints".

use super::{Setting, on, one, switch};

const TOPIC: &str = "Checkpoints";

/// In the order of `--help`.
pub(super) const SETTINGS: &[Setting] = &[
    one("checkpoint-dir", "DIR", TOPIC, on::STORE, "", "Where the trainer writes its checkpoints"),
    one(
        "checkpoint-store",
        "URL",
        TOPIC,
        on::STORE,
        "",
        "Where complete checkpoints are committed, and restored from on the next start (gs://, s3://, az://, file:///path) [default: $AIP_CHECKPOINT_DIR]",
    ),
    one("checkpoint-format", "auto|NAME", TOPIC, on::STORE, "auto", "How the trainer writes checkpoints"),
    one(
        "marker",
        "NAME",
        TOPIC,
        on::STORE,
        "",
        "A checkpoint is a directory, complete when it holds this file, written last",
    ),
    one("step-regex", "REGEX", TOPIC, on::STORE, "", "Finds the step in a checkpoint's name (first group)"),
    one(
        "settle",
        "DURATION",
        TOPIC,
        on::STORE,
        "2s",
        "A checkpoint must lie unchanged for this long before it is copied",
    ),
    one(
        "mirror-interval",
        "DURATION",
        TOPIC,
        on::RUN,
        "30s",
        "How often to look for a new checkpoint to commit while training",
    ),
    one(
        "mirror-bandwidth",
        "RATE",
        TOPIC,
        on::RUN,
        "",
        "Commit at no more than this many bytes a second while training (100MiB); no limit once time is short",
    ),
    one(
        "keep-last",
        "N",
        TOPIC,
        on::RUN | on::CHECKPOINT,
        "3",
        "Committed checkpoints to keep in the store, beside the one that the trainer itself calls its best (Hugging Face)",
    ),
    one("keep-every", "N", TOPIC, on::RUN | on::CHECKPOINT, "", "Also keep every commit whose step is a multiple of N"),
    one(
        "orphan-age",
        "DURATION",
        TOPIC,
        on::CHECKPOINT,
        "24h",
        "What prune leaves of data that no commit names, written by an earlier run: anything younger by the store's clock",
    ),
    one(
        "restore",
        "latest|required|none",
        TOPIC,
        on::RUN | on::CHECKPOINT,
        "latest",
        "Resume from the newest complete checkpoint if there is one, only with one, or never",
    ),
    one("restore-step", "N", TOPIC, on::RUN | on::CHECKPOINT, "", "Resume from the checkpoint of this step"),
    switch(
        "follow-symlinks",
        TOPIC,
        on::STORE,
        "Copy what a symbolic link leads to where it leads out of the checkpoint or the model; without this such a checkpoint is not committed, such a model not copied",
    ),
    switch(
        "strong-hash",
        TOPIC,
        on::RUN | on::CHECKPOINT,
        "Write a BLAKE3 of each file into the manifest beside its crc32c; verify and restores compare what is there",
    ),
    one("push-step", "N", TOPIC, on::CHECKPOINT, "", "Let push commit the checkpoint of this step, not the newest"),
    switch("allow-http", TOPIC, on::STORE, "Ask a store by plain http, not only on this machine"),
    one(
        "model-dir",
        "DIR",
        TOPIC,
        on::RUN | on::INSPECT,
        "",
        "Where the trainer writes the finished model, copied to --model-store when it leaves with 0",
    ),
    one(
        "model-store",
        "URL",
        TOPIC,
        on::RUN | on::INSPECT,
        "",
        "Where the finished model goes, file by file as it is (URL as for --checkpoint-store) [default: $AIP_MODEL_DIR]",
    ),
    switch("dry-run", TOPIC, on::CHECKPOINT, "Say what push, pull or prune would do, and do nothing"),
];

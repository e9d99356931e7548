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
    one("checkpoint-format", "auto|NAME", TOPIC, on::STORE, "auto", "How the trainer writes checkpoints")
        .needs(&["checkpoint-dir"]),
    one(
        "marker",
        "NAME",
        TOPIC,
        on::STORE,
        "",
        "A checkpoint is a directory, complete when it holds this file, written last",
    )
    .needs(&["checkpoint-dir"]),
    one(
        "step-regex",
        "REGEX",
        TOPIC,
        on::STORE,
        "",
        "Finds the step in a checkpoint's name (its first group, else the whole match)",
    )
    .needs(&["checkpoint-dir"]),
    one(
        "settle",
        "DURATION",
        TOPIC,
        on::STORE,
        "2s",
        "A checkpoint must lie unchanged for this long before it is copied",
    )
    .needs(&["checkpoint-dir"]),
    one(
        "mirror-interval",
        "DURATION",
        TOPIC,
        on::RUN,
        "30s",
        "How often to look for a new checkpoint to commit while training",
    )
    .needs(&["checkpoint-dir"]),
    one(
        "mirror-bandwidth",
        "RATE",
        TOPIC,
        on::RUN,
        "",
        "Commit at no more than this many bytes a second while training (100MiB); no limit once time is short",
    )
    .needs(&["checkpoint-store"]),
    one(
        "keep-last",
        "N",
        TOPIC,
        on::RUN | on::CHECKPOINT,
        "3",
        "How many commits to keep in the store, besides the one that Hugging Face's Trainer calls its best; push deletes only where this or --keep-every is given",
    )
    .needs(&["checkpoint-store"]),
    one("keep-every", "N", TOPIC, on::RUN | on::CHECKPOINT, "", "Also keep every commit whose step is a multiple of N")
        .needs(&["checkpoint-store"]),
    one(
        "orphan-age",
        "DURATION",
        TOPIC,
        on::CHECKPOINT,
        "24h",
        "prune deletes data that no commit names only where it is older than this, by the store's clock",
    ),
    one(
        "restore",
        "latest|required|none",
        TOPIC,
        on::RUN | on::CHECKPOINT,
        "latest",
        "Resume from the newest complete checkpoint if there is one, only with one, or never",
    )
    .needs(&["checkpoint-dir"]),
    one("restore-step", "N", TOPIC, on::RUN | on::CHECKPOINT, "", "Resume from the checkpoint of this step"),
    switch(
        "follow-symlinks",
        TOPIC,
        on::STORE,
        "Copy what a symbolic link leads to where it leads out of the checkpoint or the model; without this such a checkpoint is not committed, such a model not copied",
    )
    .needs(&["checkpoint-dir", "model-dir"]),
    switch(
        "strong-hash",
        TOPIC,
        on::RUN | on::CHECKPOINT,
        "Write a BLAKE3 of each file into the manifest beside its crc32c; verify and restores compare what is there",
    )
    .needs(&["checkpoint-store"]),
    switch(
        "one-object-per-file",
        TOPIC,
        on::RUN | on::CHECKPOINT,
        "In a bucket, keep each file as an object of its own even where they are many and small; without this over 1000 files of at most 1 MiB go there in tar archives",
    )
    .needs(&["checkpoint-store"]),
    one("push-step", "N", TOPIC, on::CHECKPOINT, "", "Let push commit the checkpoint of this step, not the newest"),
    switch("allow-http", TOPIC, on::STORE, "Allow plain http to stores on other machines, too")
        .needs(&["checkpoint-store", "model-store"]),
    one(
        "model-dir",
        "DIR",
        TOPIC,
        on::STORE,
        "",
        "Where the trainer writes the finished model, copied to --model-store when run's command leaves with 0; nothing in it is a checkpoint",
    ),
    one(
        "model-store",
        "URL",
        TOPIC,
        on::RUN | on::INSPECT,
        "",
        "Where the finished model goes, file by file as it is (URL as for --checkpoint-store) [default: $AIP_MODEL_DIR]",
    ),
    switch(
        "take-over",
        TOPIC,
        on::CHECKPOINT,
        "Let push take the store over from a run on this machine that commits to it; the run then stops with 205",
    ),
    switch("dry-run", TOPIC, on::CHECKPOINT, "Say what push, pull or prune would do, and do nothing"),
];

//! The settings under the heading "Checkpoints".

use super::{Setting, many, on, one, switch};

const TOPIC: &str = "Checkpoints";

/// In the order of `--help`.
pub(super) const SETTINGS: &[Setting] = &[
    one("checkpoint-dir", "DIR", TOPIC, on::STORE | on::GOODPUT, "", "Where the trainer writes its checkpoints"),
    one(
        "checkpoint-store",
        "URL",
        TOPIC,
        on::STORE | on::GOODPUT,
        "",
        "Where checkpoints are committed, and from where the next start restores (gs://, s3://, az://, file:///path) [default: $AIP_CHECKPOINT_DIR]",
    ),
    one(
        "checkpoint-format",
        "auto|tree|NAME",
        TOPIC,
        on::STORE,
        "auto",
        "The format that the trainer writes; tree commits the directory as it is, and a format's name excludes all other files",
    )
    .needs(&["checkpoint-dir"]),
    many(
        "checkpoint-exclude",
        "GLOB",
        TOPIC,
        on::STORE,
        "Do not commit these paths, in gitignore syntax (repeatable); logs, caches and temporary files are always excluded",
    )
    .needs(&["checkpoint-dir"]),
    many(
        "checkpoint-include",
        "GLOB",
        TOPIC,
        on::STORE,
        "Commit these paths although they are excluded by default (repeatable); --checkpoint-exclude wins",
    )
    .needs(&["checkpoint-dir"]),
    one(
        "keep-saves",
        "N",
        TOPIC,
        on::STORE,
        "",
        "Commit the N newest checkpoints of a known format, and of other numbered files those of the N newest saves [default: 3, and all]",
    )
    .needs(&["checkpoint-dir"]),
    one(
        "marker",
        "NAME",
        TOPIC,
        on::STORE,
        "",
        "A checkpoint is a directory that is complete when it contains this file, which is written last",
    )
    .needs(&["checkpoint-dir"]),
    one(
        "step-regex",
        "REGEX",
        TOPIC,
        on::STORE,
        "",
        "Regular expression for the step in a path (its first group, or else the whole match)",
    )
    .needs(&["checkpoint-dir"]),
    one(
        "settle",
        "DURATION",
        TOPIC,
        on::STORE,
        "2s",
        "Files must be unchanged for this long before they are committed",
    )
    .needs(&["checkpoint-dir"]),
    one(
        "commit-interval",
        "DURATION",
        TOPIC,
        on::RUN,
        "30s",
        "How often to scan for new checkpoints during training",
    )
    .needs(&["checkpoint-dir"]),
    one(
        "commit-bandwidth",
        "RATE",
        TOPIC,
        on::RUN,
        "",
        "Limit for commits during training, in bytes a second (100MiB); it does not apply when the job is stopping",
    )
    .needs(&["checkpoint-store"]),
    one(
        "keep-last",
        "N",
        TOPIC,
        on::RUN | on::CHECKPOINT,
        "3",
        "How many commits to keep in the store; push deletes only if this or --keep-every is given",
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
        "prune deletes data without a commit only if it is older than this, by the store's clock",
    ),
    one(
        "restore",
        "latest|required|none",
        TOPIC,
        on::RUN | on::CHECKPOINT,
        "latest",
        "Resume from the newest commit if there is one (latest), require one (required), or never resume (none)",
    )
    .needs(&["checkpoint-dir"]),
    one("restore-step", "N", TOPIC, on::RUN | on::CHECKPOINT, "", "Resume from the commit with this step"),
    switch(
        "follow-symlinks",
        TOPIC,
        on::STORE,
        "Copy the targets of symbolic links that point out of the checkpoint directory or the model; without this such a link is not committed, and such a model is not copied",
    )
    .needs(&["checkpoint-dir", "model-dir"]),
    one(
        "store-timeout",
        "DURATION",
        TOPIC,
        on::STORE | on::GOODPUT,
        "30s",
        "A store operation that transfers nothing for this long has failed; operations that can be repeated are retried for as long",
    )
    .needs(&["checkpoint-store", "model-store", "fetch"]),
    switch("allow-http", TOPIC, on::STORE | on::GOODPUT, "Allow plain http to stores on other machines, too")
        .needs(&["checkpoint-store", "model-store", "fetch"]),
    one(
        "model-dir",
        "DIR",
        TOPIC,
        on::STORE,
        "",
        "Where the trainer writes the finished model, copied to --model-store when run's command exits with 0; it is not part of any checkpoint",
    ),
    one(
        "model-store",
        "URL",
        TOPIC,
        on::RUN | on::INSPECT,
        "",
        "Where the finished model is copied, file by file (URL as for --checkpoint-store) [default: $AIP_MODEL_DIR]",
    ),
    one(
        "cache-dir",
        "DIR|off",
        TOPIC,
        on::RUN,
        "off",
        "Where JAX, torch.compile, Triton, CUDA and Neuron keep compiled code, for each whose variable is unset; its files are kept in --checkpoint-store, so that no machine compiles again; the same path on every machine",
    ),
    one(
        "save-interval",
        "auto|DURATION|PERCENT%|off",
        TOPIC,
        on::RUN,
        "off",
        "How often TRAINIT_SAVE_STEP_FILE and trainit.should_save() ask the trainer to save: as often as the measured stall of a save and the faults so far make best (auto), every DURATION, or so that saves cost PERCENT of the time",
    ),
    switch("dry-run", TOPIC, on::CHECKPOINT, "Print what prune would delete, without deleting it"),
];

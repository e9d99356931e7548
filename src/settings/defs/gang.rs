//! The settings under the heading "Gang".

use super::{Setting, on, one, switch};

const TOPIC: &str = "Gang";

/// In the order of `--help`.
pub(super) const SETTINGS: &[Setting] = &[
    one(
        "gang",
        "auto|on|off",
        TOPIC,
        on::RUN | on::INSPECT,
        "off",
        "Let the replicas of a job stop, agree on a step and start together; auto: with two or more training replicas, one trainit a node and a known leader",
    ),
    one(
        "gang-port",
        "PORT",
        TOPIC,
        on::RUN | on::INSPECT,
        "",
        "The leader's port for it, the same on all replicas [default: the rendezvous port + 1; in Slurm 5000 + the last four digits of the job's number; on Vertex AI and AI Platform the rendezvous port while no trainer runs]",
    ),
    one(
        "gang-token-file",
        "FILE",
        TOPIC,
        on::RUN | on::INSPECT,
        "",
        "A file with the secret that all replicas share; TRAINIT_GANG_TOKEN holds the secret itself [default: a key in the checkpoint store, else what the cluster says of itself]",
    ),
    one(
        "gang-timeout",
        "DURATION",
        TOPIC,
        on::RUN | on::INSPECT,
        "20s",
        "A replica that is silent for so long counts as lost, and one that hears nothing for so long kills its trainer; the leader's value holds for all",
    ),
    one(
        "gang-stop-grace",
        "DURATION",
        TOPIC,
        on::RUN | on::INSPECT,
        "500ms",
        "From SIGTERM to SIGKILL where the trainer is stopped because another replica failed",
    ),
    one(
        "gang-wait",
        "DURATION",
        TOPIC,
        on::RUN | on::INSPECT,
        "60m",
        "How long to wait for missing replicas, at the start and after a loss; then 203",
    ),
    one(
        "gang-on-notice",
        "auto|hold|leave",
        TOPIC,
        on::RUN | on::INSPECT,
        "auto",
        "What the other replicas do after a notice to one: save and wait for its replacement, or save and leave with 143; auto: leave in Slurm and SageMaker, which restart all, else hold",
    ),
    one(
        "gang-checkpoints",
        "auto|each|chief|shared",
        TOPIC,
        on::RUN | on::INSPECT,
        "auto",
        "How the replicas keep checkpoints: each its own, the chief for all, or one directory that all see; auto: shared if all see a file of the leader's, each if another node than 0 has checkpoints, else chief",
    ),
    switch(
        "gang-from-scratch",
        TOPIC,
        on::RUN | on::INSPECT,
        "Begin from the start although replicas have checkpoints; those are put aside",
    ),
    one(
        "finish-grace",
        "DURATION",
        TOPIC,
        on::RUN | on::INSPECT,
        "60s",
        "How long a worker may go on by itself after the chief has finished",
    ),
    one(
        "evaluator-grace",
        "DURATION",
        TOPIC,
        on::RUN | on::INSPECT,
        "10m",
        "How long an evaluator may go on after the chief has finished",
    ),
];

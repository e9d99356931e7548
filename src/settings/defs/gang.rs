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
        "The leader's port, the same on all replicas [default: the rendezvous port + 1; in Slurm 5000 + the last four digits of the job's number; on Vertex AI and AI Platform the rendezvous port while no trainer runs]",
    )
    .needs(&["gang"]),
    one(
        "gang-token-file",
        "FILE",
        TOPIC,
        on::RUN | on::INSPECT,
        "",
        "A file with the secret that all replicas share; TRAINIT_GANG_TOKEN holds the secret itself [default: a key in the checkpoint store, else a key derived from the cluster's description]",
    )
    .needs(&["gang"]),
    one(
        "gang-timeout",
        "DURATION",
        TOPIC,
        on::RUN | on::INSPECT,
        "20s",
        "A replica without a message for this time counts as lost; a replica that gets no message for this time kills its trainer; the leader's value is used by all",
    )
    .needs(&["gang"]),
    one(
        "gang-stop-grace",
        "DURATION",
        TOPIC,
        on::RUN | on::INSPECT,
        "500ms",
        "The time from SIGTERM to SIGKILL when the trainer is stopped because another replica failed",
    )
    .needs(&["gang"]),
    one(
        "gang-wait",
        "DURATION",
        TOPIC,
        on::RUN | on::INSPECT,
        "60m",
        "How long to wait for missing replicas, at the start and after a loss; then exit with 203",
    )
    .needs(&["gang"]),
    one(
        "gang-on-notice",
        "auto|hold|leave",
        TOPIC,
        on::RUN | on::INSPECT,
        "auto",
        "What the other replicas do after a notice to one: hold saves and waits for its replacement, leave saves and exits with 143; auto: leave in Slurm and SageMaker, which restart all replicas, else hold",
    )
    .needs(&["gang"]),
    one(
        "gang-checkpoints",
        "auto|each|chief|shared",
        TOPIC,
        on::RUN | on::INSPECT,
        "auto",
        "How the replicas keep checkpoints: each has its own, the chief keeps them for all, or all share one directory; auto: shared if all replicas see a file of the leader, each if a node other than 0 has checkpoints, else chief",
    )
    .needs(&["gang"]),
    switch(
        "gang-from-scratch",
        TOPIC,
        on::RUN | on::INSPECT,
        "Start the job from the beginning although replicas have checkpoints, which are moved aside; once a new step is common to all, restarts resume from it, with a store even if all replicas were replaced, until the job has finished",
    )
    .needs(&["gang"]),
    one(
        "finish-grace",
        "DURATION",
        TOPIC,
        on::RUN | on::INSPECT,
        "60s",
        "How long a worker may continue after the chief has finished",
    )
    .needs(&["gang"]),
    one(
        "evaluator-grace",
        "DURATION",
        TOPIC,
        on::RUN | on::INSPECT,
        "10m",
        "How long an evaluator may continue after the chief has finished",
    )
    .needs(&["gang"]),
];

//! The settings under the heading "Cluster".

use super::{Setting, many, on, one};

const TOPIC: &str = "Cluster";

/// In the order of `--help`.
pub(super) const SETTINGS: &[Setting] = &[
    one(
        "platform",
        "NAME",
        TOPIC,
        on::CLUSTER,
        "",
        "Read the cluster from this platform's variables only (vertex, tf_config, none, ...) [default: the first one that is found]",
    ),
    one(
        "nnodes",
        "N",
        TOPIC,
        on::CLUSTER,
        "",
        "Number of training nodes; completes or overrides what the platform says",
    ),
    one("node-rank", "R", TOPIC, on::CLUSTER, "", "This node's rank, from 0"),
    one("leader", "HOST:PORT", TOPIC, on::CLUSTER, "", "Where node rank 0 listens for the rendezvous"),
    one("pool2", "ps|reducer|worker", TOPIC, on::CLUSTER, "ps", "The role of Vertex AI's worker pool 2"),
    one(
        "tf-config",
        "rewrite|keep",
        TOPIC,
        on::CLUSTER,
        "rewrite",
        "Whether TF_CONFIG may be rewritten for TensorFlow 2 (master becomes chief)",
    ),
    one(
        "leader-self",
        "own-name|keep",
        TOPIC,
        on::CLUSTER,
        "own-name",
        "On Vertex AI, the address that rank 0 uses for itself: its own host name, or the published name",
    ),
    one(
        "rank-pools",
        "training|all",
        TOPIC,
        on::CLUSTER,
        "training",
        "Which replicas get ranks: chief and workers (on SageMaker the instance group of this host), or every pool in order",
    ),
    one(
        "nproc",
        "N|gpu",
        TOPIC,
        on::CLUSTER,
        "",
        "Processes to start on this node, each with its own rank; gpu means one for each GPU [default: one process without a rank of its own]",
    ),
    one(
        "wait-for-peers",
        "[all:]DURATION",
        TOPIC,
        on::RUN,
        "",
        "Before the first start, wait at most this long for the leader, whose trainer must listen at MASTER_PORT (or its port in TF_CONFIG); with all: for every other node, which must respond [default: do not wait]",
    ),
    many(
        "track",
        "wandb|mlflow",
        TOPIC,
        on::RUN | on::INSPECT,
        "Continue one run of this experiment tracker after every restart, on any machine",
    ),
    many("framework", "NAME", TOPIC, on::ENV, "Only the variables of this framework"),
];

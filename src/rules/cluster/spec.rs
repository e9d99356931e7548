//! The types of the cluster room: the content of a platform's variables (`Reading`), the model of the job
//! (`ClusterSpec`), the user's options (`ClusterOptions`), and mistakes (`ClusterError`, `Warning`).
//!
//! Deliberately absent: the variables of platforms and frameworks.

use crate::cluster::parse::address::Address;
use crate::process::signal::Signal;

/// The limit for quoting a foreign value, in characters.
const MAX_QUOTE: usize = 200;

/// The name of the platform that the cluster was read from, as in `--platform`. Each name is in its platform's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlatformName(pub &'static str);

impl PlatformName {
    /// No platform.
    pub const NONE: PlatformName = PlatformName("none");

    /// The name as text.
    pub fn word(self) -> &'static str {
        self.0
    }
}

/// Facts about the job that a platform may give in addition to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// The job's id.
    Job,
    /// The place for checkpoints.
    CheckpointStore,
    /// The place for the finished model.
    ModelStore,
}

/// The task of a replica. Only chief and workers train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is its own word")]
pub enum Role {
    Chief,
    Worker,
    Ps,
    Evaluator,
    Reducer,
}

impl Role {
    /// The role as text.
    pub fn word(self) -> &'static str {
        match self {
            Role::Chief => "chief",
            Role::Worker => "worker",
            Role::Ps => "ps",
            Role::Evaluator => "evaluator",
            Role::Reducer => "reducer",
        }
    }

    /// Whether a replica with this role takes part in the collective.
    pub fn trains(self) -> bool {
        matches!(self, Role::Chief | Role::Worker)
    }
}

/// One of several processes on a node, with its place in the node and in the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// From 0 on each node, if known.
    pub local_rank: Option<u32>,
    /// Processes on this node, if known.
    pub local_size: Option<u32>,
    /// From 0 over all nodes.
    pub rank: u32,
    /// Processes on all nodes.
    pub world: u32,
    /// The node and the number of nodes are only estimates, so processes do not get them.
    pub node_guessed: bool,
}

/// TensorFlow's view: the addresses by job, and the task of this replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TfCluster {
    /// Job names and their addresses in the order of the index, without evaluators.
    pub jobs: Vec<(&'static str, Vec<Address>)>,
    /// This replica's job name and index; `None` if TensorFlow has no name for its role.
    pub task: Option<(&'static str, u32)>,
    /// The number of replicas for which TensorFlow has a name, including evaluators.
    pub replicas: usize,
}

/// The address of node rank 0. Parts that no source gives are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leader {
    /// The host; `None` if the source does not give it.
    pub host: Option<String>,
    /// The platform's own rendezvous port, which wins over the port of the address.
    pub platform_port: Option<u16>,
    /// The port in the leader's address.
    pub port: Option<u16>,
}

/// Peculiarities of a platform.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traits {
    /// Several jobs share a node, so the processes of one node use the platform's port, too.
    pub shares_nodes: bool,
    /// Replicas have names of services, by which they may not reach themselves.
    pub behind_services: bool,
    /// TensorFlow's addresses come from the platform. Elsewhere their port is only assumed, and another program may use
    /// it.
    pub tells_tensorflow: bool,
    /// JAX reads the platform's variables itself.
    pub known_to_jax: bool,
    /// The platform's own runtime manages the nodes, so frameworks get no variables about them.
    pub places_nodes: bool,
    /// After the end of one replica the platform restarts all of them.
    pub restarts_all: bool,
    /// Signals that it sends some time before the end: passed on, and a reason to commit complete checkpoints.
    pub checkpoint_signals: &'static [Signal],
}

/// The content of one source. The user's values are applied to it.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The source.
    pub platform: PlatformName,
    /// The role of this replica.
    pub role: Role,
    /// Whether this replica writes checkpoints.
    pub is_chief: bool,
    /// Its rank among the training replicas, if it is one.
    pub node_rank: Option<u32>,
    /// The number of training replicas, if known.
    pub num_nodes: Option<u32>,
    /// Set if the platform starts one trainit for each process.
    pub process: Option<Process>,
    /// The launcher's name for this launch, the same in all its processes and different for every launch.
    pub launch: Option<String>,
    /// The number of processes that the platform wants on each node, in torchrun's form.
    pub procs_per_node: Option<String>,
    /// Training hosts in rank order.
    pub hosts: Option<Vec<String>>,
    /// The address for rendezvous.
    pub leader: Leader,
    /// The variable that should name the leader.
    pub leader_variable: &'static str,
    /// TensorFlow's view, if all addresses are known.
    pub tf: Option<TfCluster>,
    /// The hyperparameter trial.
    pub trial: Option<String>,
    /// The network interface between the nodes.
    pub interface: Option<String>,
    /// Variables that the platform's own image would have set.
    pub companions: Vec<(String, String)>,
    /// The launcher has set everything already: nothing is derived or changed.
    pub hands_off: bool,
    /// Peculiarities of the source.
    pub traits: Traits,
}

impl Reading {
    /// A replica with nothing known but its place.
    pub fn of(platform: PlatformName, role: Role, node_rank: u32, num_nodes: u32) -> Reading {
        Reading {
            platform,
            role,
            is_chief: node_rank == 0,
            node_rank: Some(node_rank),
            num_nodes: Some(num_nodes),
            process: None,
            launch: None,
            procs_per_node: None,
            hosts: None,
            leader: Leader::default(),
            leader_variable: "TRAINIT_LEADER",
            tf: None,
            trial: None,
            interface: None,
            companions: Vec::new(),
            hands_off: false,
            traits: Traits::default(),
        }
    }

    /// Whether this replica may have peers: it is known to be alone otherwise.
    pub fn has_peers(&self) -> bool {
        self.num_nodes != Some(1) || self.process.is_some() || self.hands_off
    }

    /// One process, no cluster.
    pub fn alone() -> Reading {
        Reading::of(PlatformName::NONE, Role::Chief, 0, 1)
    }
}

/// The role of a rank, if the source has no roles.
pub fn role_of_rank(rank: u32) -> Role {
    if rank == 0 { Role::Chief } else { Role::Worker }
}

/// The model of the job, from which the variables of every framework are derived.
#[derive(Debug, Clone)]
pub struct ClusterSpec {
    /// The content of the source, with the user's values applied.
    pub reading: Reading,
    /// The published address of node rank 0; `None` for one node.
    pub leader: Option<Address>,
    /// The address that this replica dials: the leader's; on some platforms the leader dials its own host name;
    /// loopback for processes of one node.
    pub rendezvous: Option<Address>,
}

/// An explicit value, still text, with its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explicit {
    /// The flag, variable, or file and line.
    pub place: String,
    /// The value.
    pub text: String,
}

/// The number of processes for `--nproc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nproc {
    /// This many.
    Count(u32),
    /// One for each GPU.
    Gpu,
}

impl ClusterSpec {
    /// The local rank, if this is one of several trainits on a node and not the first. The first one does everything
    /// that happens once for each node: checkpoints, the model, reports.
    pub fn later_local_rank(&self) -> Option<u32> {
        self.reading.process.as_ref().and_then(|process| process.local_rank).filter(|local_rank| *local_rank > 0)
    }
}

/// The user's options, and facts about the machine.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Read this platform's variables only.
    pub platform: Option<PlatformName>,
    /// The number of nodes; wins over the source.
    pub nnodes: Option<Explicit>,
    /// The rank of this node; wins over the source.
    pub node_rank: Option<Explicit>,
    /// The leader; wins over the source.
    pub leader: Option<Explicit>,
    /// This replica's host name.
    pub hostname: Option<String>,
    /// The role of Vertex AI's worker pool 2: ps, reducer or worker.
    pub pool2: Role,
    /// Pass TF_CONFIG unchanged, even if TensorFlow 2 does not accept it.
    pub keep_tf_config: bool,
    /// On node rank 0, dial the published name.
    pub keep_leader_name: bool,
    /// Give ranks to every pool, not only to those that train.
    pub rank_all_pools: bool,
    /// Processes to start on this node.
    pub nproc: Option<Nproc>,
    /// A free port on this machine, if one was requested: processes of one node meet at it.
    pub free_port: Option<u16>,
    /// GPUs in this container, for `--nproc gpu`.
    pub gpu_count: u32,
    /// Why the number of GPUs is unreliable.
    pub gpu_failure: Option<String>,
    /// Processors that this process may use; 0 if unknown.
    pub cores: u32,
    /// The experiment trackers.
    pub tracking: Tracking,
}

/// An experiment tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tracker {
    /// Weights & Biases.
    Wandb,
    /// MLflow.
    Mlflow,
}

/// The settings for experiment trackers.
#[derive(Debug, Clone, Default)]
pub struct Tracking {
    /// The trackers that the trainer uses.
    pub trackers: Vec<Tracker>,
    /// The address of the checkpoint store.
    pub store: Option<String>,
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions {
            platform: None,
            nnodes: None,
            node_rank: None,
            leader: None,
            hostname: None,
            pool2: Role::Ps,
            keep_tf_config: false,
            keep_leader_name: false,
            rank_all_pools: false,
            nproc: None,
            free_port: None,
            gpu_count: 0,
            gpu_failure: None,
            cores: 0,
            tracking: Tracking::default(),
        }
    }
}

/// A problem that is not fatal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Its code, for machines.
    pub code: &'static str,
    /// One line.
    pub message: String,
}

impl Warning {
    /// A warning with its code.
    pub fn new(code: &'static str, message: impl Into<String>) -> Warning {
        Warning { code, message: message.into() }
    }
}

/// A fatal mistake in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {message}")]
pub struct ClusterError {
    /// Its code, for machines.
    pub code: &'static str,
    /// The variable, file or flag with the mistake.
    pub variable: String,
    /// The mistake, the offending piece, and what to do.
    pub message: String,
}

impl ClusterError {
    /// An error with its code and variable.
    pub fn new(code: &'static str, variable: impl Into<String>, message: impl Into<String>) -> ClusterError {
        ClusterError { code, variable: variable.into(), message: message.into() }
    }
}

/// A foreign value for display: quoted, escaped, at most 200 characters.
pub fn quote(piece: &str) -> String {
    let mut shown = String::new();
    for c in piece.chars().take(MAX_QUOTE) {
        match c {
            '\'' => shown.push(c),
            c => shown.extend(c.escape_debug()),
        }
    }
    if piece.chars().nth(MAX_QUOTE).is_some() || shown.chars().nth(MAX_QUOTE).is_some() {
        shown = shown.chars().take(MAX_QUOTE).collect::<String>() + "…";
    }
    format!("\"{shown}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_is_cut_and_control_characters_are_escaped() {
        assert_eq!(quote("a\nb"), "\"a\\nb\"");
        assert_eq!(quote(&"x".repeat(200)).chars().count(), 202);
        assert!(quote(&"\n".repeat(5000)).chars().count() <= 203);
    }
}

//! The words of the cluster room: what a platform says (`Reading`), the one model of the job (`ClusterSpec`), what the
//! user asked for (`ClusterOptions`), and how a mistake is told (`ClusterError`, `Warning`).
//!
//! Deliberately absent: any platform's variables, and which framework reads what.

use super::address::Address;
use crate::rules::signal::Signal;

/// The longest piece of a foreign value that is ever quoted, in characters.
const MAX_QUOTE: usize = 200;

/// Whose variables the cluster was read from, by the word that the user knows it by. Each stands in its platform's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlatformName(pub &'static str);

impl PlatformName {
    /// Nobody's.
    pub const NONE: PlatformName = PlatformName("none");

    /// As it is written.
    pub fn word(self) -> &'static str {
        self.0
    }
}

/// What a platform may tell of the job beside the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// The job's id.
    Job,
    /// Where it wants checkpoints.
    CheckpointStore,
    /// Where it wants the finished model.
    ModelStore,
}

/// What a replica does. Only chief and workers train.
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
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Role::Chief => "chief",
            Role::Worker => "worker",
            Role::Ps => "ps",
            Role::Evaluator => "evaluator",
            Role::Reducer => "reducer",
        }
    }

    /// Whether a replica of this role takes part in the collective.
    pub fn trains(self) -> bool {
        matches!(self, Role::Chief | Role::Worker)
    }
}

/// One of several processes on a node: its place in the node and in the world of processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// From 0 on each node.
    pub local_rank: u32,
    /// Processes on this node, where known.
    pub local_size: Option<u32>,
    /// From 0 over all nodes.
    pub rank: u32,
    /// Processes on all nodes.
    pub world: u32,
    /// Which node this is, of how many, was only guessed: no process is told so.
    pub node_guessed: bool,
}

/// TensorFlow's view: who listens where, by job, and which of them this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TfCluster {
    /// Job name and its addresses in the order of their index; evaluators are not among them.
    pub jobs: Vec<(&'static str, Vec<Address>)>,
    /// This replica's job name; `None` where TensorFlow has no name for what it does.
    pub task: Option<(&'static str, u32)>,
    /// Replicas that TensorFlow has a name for, evaluators included.
    pub replicas: usize,
}

/// Where node rank 0 is, as far as a source says it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leader {
    /// Its name; `None` when the source does not tell.
    pub host: Option<String>,
    /// The rendezvous port that the platform stands for; goes before the address's own.
    pub platform_port: Option<u16>,
    /// The port in the leader's address.
    pub port: Option<u16>,
}

/// What is peculiar to a platform, beside the names and numbers it gives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traits {
    /// Jobs share a node: the processes of one meet on the platform's port there, too.
    pub shares_nodes: bool,
    /// Replicas have the names of services, behind which one may not reach itself.
    pub behind_services: bool,
    /// TensorFlow's addresses are its own word; elsewhere their port is only assumed, and may be somebody else's.
    pub tells_tensorflow: bool,
    /// JAX reads its variables itself.
    pub known_to_jax: bool,
    /// Its own runtime places what runs on the nodes: no framework is told of them.
    pub places_nodes: bool,
    /// What it sends some time before the end: passed on, and a reason to commit what is complete.
    pub checkpoint_signals: &'static [Signal],
}

/// What one source says; the user's overrides go over it.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The source.
    pub platform: PlatformName,
    /// What this replica does.
    pub role: Role,
    /// Whether it is the one that writes checkpoints.
    pub is_chief: bool,
    /// Its place among the training replicas, if it is one.
    pub node_rank: Option<u32>,
    /// How many training replicas there are, if it can be known.
    pub num_nodes: Option<u32>,
    /// Set where the platform starts one trainit for each process.
    pub process: Option<Process>,
    /// What its launcher calls this launch, the same in every process that it starts; another's is called otherwise.
    pub launch: Option<String>,
    /// Processes a node that the platform asks for, in the torch launcher's words.
    pub procs_per_node: Option<String>,
    /// Training hosts in rank order.
    pub hosts: Option<Vec<String>>,
    /// Where to meet.
    pub leader: Leader,
    /// The variable that should have named the leader.
    pub leader_variable: &'static str,
    /// TensorFlow's view, where all addresses are known.
    pub tf: Option<TfCluster>,
    /// The hyperparameter trial.
    pub trial: Option<String>,
    /// The network interface between the nodes.
    pub interface: Option<String>,
    /// Variables that the platform's own image would have set.
    pub companions: Vec<(String, String)>,
    /// The source belongs to a launcher that has set everything already: nothing is derived or changed.
    pub hands_off: bool,
    /// What is peculiar to the source.
    pub traits: Traits,
}

impl Reading {
    /// A replica of which only the place is known.
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

    /// One process, no cluster.
    pub fn alone() -> Reading {
        Reading::of(PlatformName::NONE, Role::Chief, 0, 1)
    }
}

/// The role of a rank where the source has no names for roles.
pub fn role_of_rank(rank: u32) -> Role {
    if rank == 0 { Role::Chief } else { Role::Worker }
}

/// The one model every framework's environment is derived from.
#[derive(Debug, Clone)]
pub struct ClusterSpec {
    /// What the source says, with the user's overrides.
    pub said: Reading,
    /// Node rank 0 as the job knows it; `None` for one node.
    pub leader: Option<Address>,
    /// Whom this replica dials: the leader, on some platforms its own name for itself; loopback for processes of one node.
    pub rendezvous: Option<Address>,
}

/// An explicit value, still text, with the flag or variable it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explicit {
    /// The flag, variable, or file and line.
    pub place: String,
    /// The value.
    pub text: String,
}

/// How many processes `--nproc` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nproc {
    /// This many.
    Count(u32),
    /// One for each GPU.
    Gpu,
}

impl ClusterSpec {
    /// Our local rank where we are one of several trainits of a node and not its first. What there is once a node (the
    /// checkpoints, the model, what is reported) is the first one's.
    pub fn beside_the_first(&self) -> Option<u32> {
        self.said.process.as_ref().map(|process| process.local_rank).filter(|local_rank| *local_rank > 0)
    }
}

/// What the user asked for, and what the machine says of itself.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Read this platform's variables only.
    pub platform: Option<PlatformName>,
    /// Number of nodes, over what the source says.
    pub nnodes: Option<Explicit>,
    /// This node's rank, over what the source says.
    pub node_rank: Option<Explicit>,
    /// The leader, over what the source says.
    pub leader: Option<Explicit>,
    /// This replica's own name.
    pub hostname: Option<String>,
    /// What Vertex AI's worker pool 2 is: ps, reducer or worker.
    pub pool2: Role,
    /// Leave a given TF_CONFIG alone whatever TensorFlow 2 makes of it.
    pub keep_tf_config: bool,
    /// On node rank 0, keep dialling the published name.
    pub keep_leader_name: bool,
    /// Give ranks to every pool, not only to those that train.
    pub rank_all_pools: bool,
    /// Processes to start on this node.
    pub nproc: Option<Nproc>,
    /// GPUs in this container, for `--nproc gpu`.
    pub gpu_count: u32,
    /// Why they cannot be counted on.
    pub gpu_failure: Option<String>,
    /// Processors this process may use; 0 when nobody counted.
    pub cores: u32,
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
            gpu_count: 0,
            gpu_failure: None,
            cores: 0,
        }
    }
}

/// Something that is odd but not fatal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Its code, for machines.
    pub code: &'static str,
    /// One line.
    pub message: String,
}

impl Warning {
    /// With its code.
    pub fn new(code: &'static str, message: impl Into<String>) -> Warning {
        Warning { code, message: message.into() }
    }
}

/// Why there is no cluster: fatal before the child starts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {message}")]
pub struct ClusterError {
    /// Its code, for machines.
    pub code: &'static str,
    /// The variable, file or flag that is wrong.
    pub variable: String,
    /// What is wrong, the offending piece, and what to do.
    pub message: String,
}

impl ClusterError {
    /// With its code and variable.
    pub fn new(code: &'static str, variable: impl Into<String>, message: impl Into<String>) -> ClusterError {
        ClusterError { code, variable: variable.into(), message: message.into() }
    }
}

/// A foreign piece as it may be shown: quoted, escaped, never longer than 200 characters.
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
    fn a_long_piece_is_cut_and_an_odd_one_stays_on_its_line() {
        assert_eq!(quote("a\nb"), "\"a\\nb\"");
        assert_eq!(quote(&"x".repeat(200)).chars().count(), 202);
        assert!(quote(&"\n".repeat(5000)).chars().count() <= 203);
    }
}

//! The types of the framework room: a replica in its group, its variables, and which value wins if a variable is set
//! already.

use crate::cluster::parse::address::Address;
use crate::cluster::spec::{ClusterOptions, ClusterSpec, Explicit, Process, Warning};
use crate::process::env::Env;

/// The GPUs or MIG instances that CUDA may use.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The variables by which a process sees only some of the machine's accelerators, one for each runtime. The container
/// runtime's variable (`NVIDIA_VISIBLE_DEVICES`) is not one of them: it decides which devices exist.
const SHOWN: [&str; 5] =
    [VISIBLE, "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "NVIDIA_VISIBLE_DEVICES"];

/// The input of a framework's rule.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The job and the place of this replica.
    pub spec: &'a ClusterSpec,
    /// The environment.
    pub env: &'a Env,
    /// The user's options.
    pub options: &'a ClusterOptions,
    /// Set in process mode: one of the node's processes.
    pub process: Option<&'a Process>,
}

/// A member of a collective.
#[derive(Debug)]
pub struct Group<'a> {
    /// The rank of the process, or of the node if there is one process for each node.
    pub rank: u32,
    /// The size of the world, in the same unit as the rank.
    pub world: u32,
    /// The rank of the node.
    pub node_rank: u32,
    /// The number of nodes.
    pub num_nodes: u32,
    /// Set in process mode.
    pub process: Option<&'a Process>,
    /// The address to dial, if known.
    pub rendezvous: Option<&'a Address>,
}

impl Context<'_> {
    /// The group of this replica. `None` in four cases, in which no framework variable is set: the replica has no rank,
    /// the size of the world is unknown, a single node has one process, or the platform's own runtime manages the
    /// nodes.
    pub fn group(&self) -> Option<Group<'_>> {
        let (node_rank, num_nodes) = (self.spec.reading.node_rank?, self.spec.reading.num_nodes?);
        if (num_nodes < 2 || self.spec.reading.traits.places_nodes) && self.process.is_none() {
            return None;
        }
        let (rank, world) = self.process.map_or((node_rank, num_nodes), |p| (p.rank, p.world));
        let rendezvous = self.spec.rendezvous.as_ref();
        Some(Group { rank, world, node_rank, num_nodes, process: self.process, rendezvous })
    }

    /// Whether several processes run on this node.
    pub fn shares_node(&self) -> bool {
        self.process.is_some_and(|p| p.local_size != Some(1))
    }

    /// The MIG instance for this process of `--nproc`, if there is one for each process.
    pub fn instance(&self) -> Option<&str> {
        let is_of_nproc = self.options.nproc.is_some() && self.spec.reading.process.is_none();
        let process = self.process.filter(|_| is_of_nproc && self.shares_node())?;
        let listed: Vec<&str> = self.env.given(VISIBLE)?.split(',').map(str::trim).collect();
        let fits = process.local_size.is_some_and(|size| u64::from(size) <= listed.len() as u64);
        let is_one_each = fits && listed.iter().all(|entry| entry.starts_with("MIG-"));
        listed.get(usize::try_from(process.local_rank?).ok()?).copied().filter(|_| is_one_each)
    }

    /// The number of devices that the environment leaves to a process, if it says so. Entries after an invalid one do
    /// not count, as in CUDA.
    pub fn visible_devices(&self) -> Option<u32> {
        let is_one = |entry: &&str| {
            let is_number = entry.parse::<u32>().is_ok();
            is_number || ["GPU-", "MIG-"].iter().any(|start| entry.starts_with(start))
        };
        let count = |name| self.env.given(name)?.split(',').map(str::trim).take_while(is_one).count().try_into().ok();
        SHOWN.into_iter().filter_map(count).filter(|count| *count > 0).min()
    }

    /// Which value wins for a rank.
    pub fn rank_precedence(&self) -> Precedence {
        self.process_precedence(&self.options.node_rank)
    }

    /// Which value wins for the number of ranks.
    pub fn world_precedence(&self) -> Precedence {
        self.process_precedence(&self.options.nnodes)
    }

    /// trainit's value if the process is known; otherwise the user's explicit value, or else the value that is set
    /// already.
    fn process_precedence(&self, explicit: &Option<Explicit>) -> Precedence {
        if self.process.is_some() { Precedence::Derived } else { explicit_or(explicit, Precedence::Preset) }
    }

    /// Which value wins for the leader's address: an explicit one, or else the one that is set already, unless that is
    /// the published name (in this form) of a leader that dials itself by another name.
    pub fn leader_precedence(&self, form: impl Fn(&Address) -> String) -> Precedence {
        let published = self.spec.leader.as_ref().map(form);
        explicit_or(&self.options.leader, published.map_or(Precedence::Preset, Precedence::PresetUnless))
    }

    /// Which value wins for the leader's port.
    pub fn port_precedence(&self) -> Precedence {
        explicit_or(&self.options.leader, Precedence::Preset)
    }

    /// Whether each node has one process, so that a process can be treated as its node.
    pub fn has_one_process_per_node(&self) -> bool {
        self.process.is_none_or(|p| !p.node_guessed && Some(p.world) == self.spec.reading.num_nodes)
    }
}

fn explicit_or(explicit: &Option<Explicit>, otherwise: Precedence) -> Precedence {
    explicit.as_ref().map_or(otherwise, |explicit| Precedence::Explicit(explicit.place.clone()))
}

/// Which value wins if the variable is set already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Precedence {
    /// The value that trainit derives.
    Derived,
    /// The value that is set; a disagreement causes a warning.
    Preset,
    /// The value that is set, without a warning.
    IfUnset,
    /// The value that is set, unless it is this text, the published name of a leader that dials itself by another name.
    PresetUnless(String),
    /// The user's explicit value, with its origin; a disagreement causes a warning.
    Explicit(String),
}

/// Another address where a framework's leader listens instead of the rendezvous port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlternativeAddress {
    /// The address.
    pub address: Address,
    /// The server, in words.
    pub server: &'static str,
    /// The variable that gives the address.
    pub variable: &'static str,
}

/// A variable for the child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Var {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Which value wins.
    pub precedence: Precedence,
}

/// The result of a framework's rule.
#[derive(Debug, Default)]
pub struct Derived {
    /// Variables to set.
    pub vars: Vec<Var>,
    /// Variables to remove.
    pub removed: Vec<String>,
    /// Non-fatal problems.
    pub warnings: Vec<Warning>,
}

impl Derived {
    /// Adds a variable, if there is a value.
    pub fn put_if(&mut self, name: &str, value: Option<impl ToString>, precedence: Precedence) {
        if let Some(value) = value {
            self.put(name, value, precedence);
        }
    }

    /// Adds a variable.
    pub fn put(&mut self, name: &str, value: impl ToString, precedence: Precedence) {
        self.vars.push(Var { name: name.to_owned(), value: value.to_string(), precedence });
    }
}

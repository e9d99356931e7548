//! The words of the framework room: a replica in its group, the variables that follow, and whose word counts when one is
//! set already.

use crate::rules::cluster::address::Address;
use crate::rules::cluster::spec::{ClusterOptions, ClusterSpec, Explicit, Nproc, Process, Warning};
use crate::rules::env::Env;

/// The GPUs, or instances of them, that CUDA may use.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// What a framework's rule looks at.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The job, and which replica this is.
    pub spec: &'a ClusterSpec,
    /// What is set already.
    pub env: &'a Env,
    /// What the user asked for.
    pub options: &'a ClusterOptions,
    /// Set in process mode: which of the node's processes this is.
    pub process: Option<&'a Process>,
}

/// A member of a collective.
#[derive(Debug)]
pub struct Group<'a> {
    /// Of the process, or of the node where there is one process a node.
    pub rank: u32,
    /// Members, counted like the rank.
    pub world: u32,
    /// The node's.
    pub node_rank: u32,
    /// Nodes.
    pub num_nodes: u32,
    /// Set in process mode.
    pub process: Option<&'a Process>,
    /// Whom to dial, where known.
    pub rendezvous: Option<&'a Address>,
}

impl Context<'_> {
    /// The group this replica is in. `None` outside every world, in a world of unknown size, and on a single node that
    /// has one process: there no framework variable is set at all. Nor where the platform's own runtime places the nodes.
    pub fn group(&self) -> Option<Group<'_>> {
        let (node_rank, num_nodes) = (self.spec.said.node_rank?, self.spec.said.num_nodes?);
        if (num_nodes < 2 || self.spec.said.traits.places_nodes) && self.process.is_none() {
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

    /// The one MIG instance that this process is for, where `--nproc gpu` starts one for each that is listed.
    pub fn instance(&self) -> Option<&str> {
        let is_for_one = self.options.nproc == Some(Nproc::Gpu) && self.spec.said.process.is_none();
        let process = self.process.filter(|_| is_for_one && self.shares_node())?;
        let mut listed = self.env.given(VISIBLE)?.split(',').map(str::trim);
        let are_instances = listed.clone().all(|entry| entry.starts_with("MIG-"));
        listed.nth(usize::try_from(process.local_rank).ok()?).filter(|_| are_instances)
    }

    /// Whose word counts for what tells a rank.
    pub fn of_rank(&self) -> Claim {
        self.of_process(&self.options.node_rank)
    }

    /// Whose word counts for what tells the number of ranks.
    pub fn of_world(&self) -> Claim {
        self.of_process(&self.options.nnodes)
    }

    /// Ours where we know the process; else the user's explicit value's, else a preset's.
    fn of_process(&self, explicit: &Option<Explicit>) -> Claim {
        if self.process.is_some() { Claim::Ours } else { said(explicit, Claim::Preset) }
    }

    /// Whose word counts for the leader's address: without an explicit one a preset's, unless that is the leader's published
    /// name, in this form, and the leader dials itself by another.
    pub fn of_leader(&self, form: impl Fn(&Address) -> String) -> Claim {
        let published = self.spec.leader.as_ref().map(form);
        said(&self.options.leader, published.map_or(Claim::Preset, Claim::PresetUnless))
    }

    /// Whose word counts for the leader's port.
    pub fn of_port(&self) -> Claim {
        said(&self.options.leader, Claim::Preset)
    }

    /// Whether each node has one process, so that what belongs to a node can be given to it.
    pub fn is_one_a_node(&self) -> bool {
        self.process.is_none_or(|p| !p.node_guessed && Some(p.world) == self.spec.said.num_nodes)
    }
}

fn said(explicit: &Option<Explicit>, otherwise: Claim) -> Claim {
    explicit.as_ref().map_or(otherwise, |explicit| Claim::Said(explicit.place.clone()))
}

/// Whose word counts when the variable is set already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// Ours.
    Ours,
    /// What is set; if it says otherwise, that is worth a warning.
    Preset,
    /// What is set, without a word.
    IfUnset,
    /// What is set, unless it is this: the leader's published name, where the leader dials itself by its own.
    PresetUnless(String),
    /// The user's, given there; if what is set says otherwise, that is worth a warning.
    Said(String),
}

/// An address at which a framework's leader listens instead of the rendezvous port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elsewhere {
    /// Where.
    pub address: Address,
    /// Whose it is, in words.
    pub whose: &'static str,
    /// The variable that says so.
    pub variable: &'static str,
}

/// A variable for the child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Var {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Whose word counts.
    pub claim: Claim,
}

/// What a framework's rule comes to.
#[derive(Debug, Default)]
pub struct Derived {
    /// Variables to set.
    pub vars: Vec<Var>,
    /// Variables to take away.
    pub removed: Vec<String>,
    /// What is odd.
    pub warnings: Vec<Warning>,
}

impl Derived {
    /// Adds a variable.
    pub fn put(&mut self, name: &str, value: impl ToString, claim: Claim) {
        self.vars.push(Var { name: name.to_owned(), value: value.to_string(), claim });
    }
}

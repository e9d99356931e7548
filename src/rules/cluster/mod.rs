//! Every platform's variables in, one model of the job out.
//!
//! Words (`spec`), readers (one file a platform), the list (here). To add a platform: its file, and its line in
//! [`PLATFORMS`]. Deliberately absent: what any framework reads, which is `rules/framework`.

pub mod address;
pub mod complete;
pub mod first;
pub mod hostlist;
pub mod input;
pub mod json;
mod launcher;
pub mod pools;
pub mod spec;

mod jax_env;
mod k8s_indexed;
mod mpi;
mod pmi;
pub(in crate::rules) mod sagemaker;
mod slurm;
mod tf_config;
mod torch_env;
mod torchelastic;
mod tpu;
mod vertex;

use crate::rules::env::{Changes, Env};
use first::First;
use input::Input;
use spec::{ClusterError, ClusterSpec, Fact, PlatformName, Reading, Warning};

/// Reads what a source says; `None` when its variables are not there.
pub type Read = fn(&Input<'_>, &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError>;

/// One platform: a source of the cluster.
pub struct Platform {
    /// What it is called; several where it may turn out to be one or the other.
    pub names: &'static [PlatformName],
    /// The variables it looks at, `*` for any end; the first stands for it where it is told of. Blank ones are taken from the
    /// child.
    pub variables: &'static [&'static str],
    /// What must be there for it to match, in words.
    pub needs: &'static str,
    /// Reads it; `None` when its variables are not there.
    pub read: Read,
    /// Reads the place that a launcher gave to this very process, where it starts one trainit for each: below it, what others
    /// say of nodes is no process's rank.
    pub launched: Read,
    /// A framework reads its variable, too, and dies of one that cannot be read, whatever else says where we are.
    pub is_frameworks: bool,
    /// How it tells who is the first of its job.
    pub first: First,
    /// In which variables it tells more of the job, whichever platform the cluster is read from.
    pub facts: &'static [(Fact, &'static str)],
}

impl Platform {
    /// One that nobody but us goes by, with a trainit for each node.
    const fn of(
        names: &'static [PlatformName],
        variables: &'static [&'static str],
        needs: &'static str,
        read: Read,
    ) -> Platform {
        Platform {
            names,
            variables,
            needs,
            read,
            launched: |_, _| Ok(None),
            is_frameworks: false,
            first: First::Untold,
            facts: &[],
        }
    }
}

/// Every source, in order of precedence: the first that matches wins.
///
/// A launcher that has already placed this very process comes first, then platforms with a word of their own that nobody
/// else sets, then what frameworks and launchers leave in the environment, from the exact to the vague.
pub const PLATFORMS: &[&Platform] = &[
    &torchelastic::TORCHELASTIC,
    &sagemaker::SAGEMAKER,
    &vertex::VERTEX,
    &tf_config::TF_CONFIG,
    &mpi::MPI,
    &pmi::PMI,
    &torch_env::TORCH_ENV,
    &jax_env::JAX_ENV,
    &slurm::SLURM,
    &k8s_indexed::K8S_INDEXED,
    &tpu::TPU,
];

/// What `--platform` may say.
pub fn names() -> impl Iterator<Item = PlatformName> {
    PLATFORMS.iter().flat_map(|platform| platform.names).copied().chain([PlatformName::NONE])
}

/// The variable and the value in which a platform tells this.
pub fn told(fact: Fact, env: &Env) -> Option<(&'static str, &str)> {
    let mut variables = PLATFORMS.iter().flat_map(|platform| platform.facts).filter(|(of, _)| *of == fact);
    variables.find_map(|(_, variable)| Some((*variable, env.given(variable)?)))
}

/// Our own variables of the cluster, which count as unset when blank like those of any source.
const EXPLICIT: [&str; 3] = ["TRAINIT_NNODES", "TRAINIT_NODE_RANK", "TRAINIT_LEADER"];

/// What was found.
#[derive(Debug)]
pub struct Detected {
    /// The model.
    pub spec: ClusterSpec,
    /// What is odd.
    pub warnings: Vec<Warning>,
    /// Variables taken from the child because they are blank.
    pub changes: Changes,
}

/// Finds out which job this is and which replica of it. `also_read` are the variables that frameworks' rules look at.
/// Errors: the source does not add up; nothing may be started then.
pub fn detect(input: &Input<'_>, also_read: &[&str]) -> Result<Detected, ClusterError> {
    let mut warnings = Vec::new();
    let (at, reading) = match input.options.platform {
        Some(platform) => (None, forced(platform, input, &mut warnings)?),
        None => {
            let (at, reading) = first_match(input, &mut warnings)?;
            (at, below_launcher(reading, input, &mut warnings)?)
        }
    };
    let mut changes = Changes::default();
    if !reading.hands_off {
        warnings.splice(0..0, drop_blank(input.env, also_read, &mut changes));
    }
    let spec = complete::complete(reading, input, &mut warnings)?;
    if let Some(at) = at.filter(|_| !spec.said.hands_off) {
        warnings.extend(disagreements(&spec, at, input)?);
    }
    Ok(Detected { spec, warnings, changes })
}

/// Every mistake in what describes the cluster, each once, `first` before the others: in the explicit values, in the source
/// that is read (not where it is unclear which), and in what a framework reads itself beside it.
pub fn malformed(input: &Input<'_>, first: Option<ClusterError>, with_sources: bool) -> Vec<ClusterError> {
    let read = match input.options.platform {
        Some(platform) => forced(platform, input, &mut Vec::new()),
        None => first_match(input, &mut Vec::new()).map(|(_, reading)| reading),
    };
    if matches!(&read, Ok(reading) if reading.hands_off) {
        return first.into_iter().collect();
    }
    let sources = || {
        let beside = PLATFORMS.iter().filter(|source| input.options.platform.is_none() && source.is_frameworks);
        let beside = beside.filter_map(|source| (source.read)(input, &mut Vec::new()).err());
        read.err().into_iter().chain(beside)
    };
    let mut mistakes: Vec<ClusterError> = first.into_iter().collect();
    let sources = with_sources.then(sources).into_iter().flatten();
    for mistake in complete::wrong_values(input.options).into_iter().chain(sources) {
        if !mistakes.contains(&mistake) {
            mistakes.push(mistake);
        }
    }
    mistakes
}

fn first_match(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<(Option<usize>, Reading), ClusterError> {
    // What a source lacks to give a place is of no account where another one, or an explicit value, gives it.
    let lacks_place = |warning: &Warning| warning.code == "node_rank_unknown";
    for (at, source) in PLATFORMS.iter().enumerate() {
        let mut odd = Vec::new();
        if let Some(reading) = (source.read)(input, &mut odd)? {
            warnings.retain(|warning| !lacks_place(warning));
            warnings.extend(odd);
            return Ok((Some(at), reading));
        }
        warnings.extend(odd);
    }
    if [&input.options.nnodes, &input.options.node_rank].into_iter().any(Option::is_some) {
        warnings.retain(|warning| !lacks_place(warning));
    }
    Ok((None, Reading::alone()))
}

/// Below a launcher that starts one of us for each process, a source of the nodes gives all of them one rank: the
/// launcher's ranks hold, and the source says where the nodes are.
fn below_launcher(nodes: Reading, input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Reading, ClusterError> {
    let places_nodes = nodes.platform != PlatformName::NONE && nodes.process.is_none() && nodes.node_rank.is_some();
    if nodes.hands_off || !places_nodes {
        return Ok(nodes);
    }
    let mut odd = Vec::new();
    let Some(launched) = launched(input, &mut odd)? else { return Ok(nodes) };
    warnings.extend(odd);
    Ok(launcher::across(nodes, launched, warnings))
}

/// What a launcher of several processes says, whatever goes before it.
fn launched(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let are_several = |reading: &Reading| reading.process.as_ref().is_some_and(|process| process.world > 1);
    for source in PLATFORMS {
        if let Some(reading) = (source.launched)(input, warnings)?.filter(are_several) {
            return Ok(Some(reading));
        }
    }
    Ok(None)
}

/// Only the named platform's variables count.
fn forced(platform: PlatformName, input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Reading, ClusterError> {
    let Some(source) = PLATFORMS.iter().find(|s| s.names.contains(&platform)) else { return Ok(Reading::alone()) };
    (source.read)(input, warnings)?.ok_or_else(|| {
        let message = format!(
            "nothing here describes a cluster of {}, so no rank can be given: that needs {}; set it, or leave --platform away",
            platform.word(),
            source.needs
        );
        ClusterError::new("missing_cluster", source.variables[0], message)
    })
}

/// Takes blank variables away: they crash programs that only look whether they are there.
fn drop_blank(env: &Env, also_read: &[&str], changes: &mut Changes) -> Option<Warning> {
    let known = |name: &str| {
        let is_it = |variable: &&str| match variable.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => *variable == name,
        };
        let mut read = PLATFORMS.iter().flat_map(|source| source.variables);
        EXPLICIT.contains(&name) || also_read.contains(&name) || read.any(is_it)
    };
    let mut blank: Vec<&str> = env.iter().filter(|(_, v)| v.trim().is_empty()).map(|(n, _)| n).collect();
    blank.retain(|name| known(name));
    blank.sort_unstable();
    for name in &blank {
        changes.remove(*name);
    }
    let message = || format!("set but empty, so removed from the command's environment: {}", blank.join(", "));
    (!blank.is_empty()).then(|| Warning::new("empty_variable_dropped", message()))
}

/// Later sources that say otherwise. What a framework reads itself is fatal even then where it cannot be read.
fn disagreements(spec: &ClusterSpec, at: usize, input: &Input<'_>) -> Result<Option<Warning>, ClusterError> {
    let mut pieces = Vec::new();
    for source in &PLATFORMS[at + 1..] {
        match (source.read)(input, &mut Vec::new()) {
            Ok(None) => {}
            Ok(Some(other)) => {
                pieces.extend(differs(spec, &other).map(|what| format!("{} {what}", source.variables[0])))
            }
            Err(error) if source.is_frameworks => return Err(error),
            Err(error) => pieces.push(format!("{} cannot be read ({})", error.variable, error.message)),
        }
    }
    let message = || format!("the cluster was read from {}, but {}", spec.said.platform.word(), pieces.join("; "));
    Ok((!pieces.is_empty()).then(|| Warning::new("env_conflict", message())))
}

fn differs(spec: &ClusterSpec, other: &Reading) -> Option<String> {
    let same = |rank: Option<u32>, world: Option<u32>| {
        other.node_rank == rank && (world == other.num_nodes || world.is_none() || other.num_nodes.is_none())
    };
    let as_process = spec.said.process.as_ref().is_some_and(|p| same(Some(p.rank), Some(p.world)));
    let is_its_word = other.process.is_some() && other.process == spec.said.process;
    // Slurm's step in which an mpirun has started what it needs on the other nodes.
    let is_of_launcher = spec.said.process.is_some() && other.launch.is_some() && other.num_nodes < spec.said.num_nodes;
    if same(spec.said.node_rank, spec.said.num_nodes) || as_process || is_its_word || is_of_launcher {
        return None;
    }
    let place = |rank: Option<u32>, world: Option<u32>| {
        let rank = rank.map_or("no rank".to_owned(), |rank| format!("rank {rank}"));
        world.map_or(rank.clone(), |world| format!("{rank} of {world}"))
    };
    let (theirs, ours) = (place(other.node_rank, other.num_nodes), place(spec.said.node_rank, spec.said.num_nodes));
    Some(format!("and related variables say {theirs} where it is {ours}"))
}

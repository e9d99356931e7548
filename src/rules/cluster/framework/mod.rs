//! Derives every framework's variables from the model of the job.
//!
//! To add a framework, add its file and its line in [`FRAMEWORKS`]. Deliberately absent: the variables of platforms.

pub mod mpi;
pub mod torch;
pub mod tracking;
pub mod vars;

mod cuda;
mod jax;
mod lightgbm;
mod network;
mod tensorflow;
mod trainit;
mod xgboost;

use std::ffi::OsString;

use crate::cluster::detect;
use crate::cluster::parse::input::{Input, MAX_REPLICAS};
use crate::cluster::spec::{ClusterError, ClusterSpec, Process, Warning, quote};
use crate::cluster::{complete, spec};
use crate::process::env::{Changes, Env};
use vars::{AlternativeAddress, Context, Derived, Precedence, Var};

/// The kernel does not start a program with a longer NAME=value, including the NUL (MAX_ARG_STRLEN).
const LONGEST_BYTES: usize = 128 * 1024;

/// One framework.
pub struct Framework {
    /// Its name for `--framework`.
    pub name: &'static str,
    /// Variables that make a program crash if they are set but blank.
    pub variables: &'static [&'static str],
    /// Derives its variables.
    pub derive: fn(&Context<'_>) -> Derived,
    /// Warns about this command, if the framework knows it.
    pub start_warning: fn(&Resolved, &Env, &[OsString]) -> Option<Warning>,
    /// The other address where its leader may listen instead of the rendezvous port.
    pub alternative_leader: fn(&ClusterSpec) -> Option<AlternativeAddress>,
}

impl Framework {
    const fn of(
        name: &'static str,
        variables: &'static [&'static str],
        derive: fn(&Context<'_>) -> Derived,
    ) -> Framework {
        Framework { name, variables, derive, start_warning: |_, _, _| None, alternative_leader: |_| None }
    }
}

/// Every framework, in the order of their importance to a reader. No two set the same variable.
pub const FRAMEWORKS: &[&Framework] = &[
    &trainit::TRAINIT,
    &tensorflow::TENSORFLOW,
    &torch::TORCH,
    &jax::JAX,
    &xgboost::XGBOOST,
    &lightgbm::LIGHTGBM,
    &network::NETWORK,
    &cuda::CUDA,
    &tracking::TRACKING,
];

/// A process that trainit will start, with its variables.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Its place in process mode.
    pub process: Option<Process>,
    /// Whether this process writes checkpoints.
    pub is_chief: bool,
    /// The variables that are set and removed.
    pub changes: Changes,
}

/// The cluster and the variables for the children.
#[derive(Debug)]
pub struct Resolved {
    /// The model.
    pub spec: ClusterSpec,
    /// One for each process on this node, by local rank; a single one in node mode.
    pub launches: Vec<Launch>,
    /// Non-fatal problems, one for each code.
    pub warnings: Vec<Warning>,
    /// The content of a host file for mpirun, if the hosts are known.
    pub hostfile: Option<String>,
}

impl Resolved {
    /// Warnings about this command.
    pub fn start_warnings(&self, env: &Env, command: &[OsString]) -> impl Iterator<Item = Warning> {
        FRAMEWORKS.iter().filter_map(move |framework| (framework.start_warning)(self, env, command))
    }

    /// The variables of the first or only child.
    pub fn changes(&self) -> Changes {
        self.launches.first().map(|launch| launch.changes.clone()).unwrap_or_default()
    }
}

/// Reads the environment and derives each child's variables. `only` names frameworks; empty means all. Errors: the
/// cluster is contradictory, so nothing may be started.
pub fn resolve(input: &Input<'_>, only: &[String]) -> Result<Resolved, ClusterError> {
    let also_read: Vec<&str> = FRAMEWORKS.iter().flat_map(|f| f.variables).copied().collect();
    let count = complete::process_count(input)?;
    let detected = detect(input, &also_read)?;
    let (spec, mut warnings) = (detected.spec, detected.warnings);
    let count = complete::process_count_here(count, &spec)?;
    let (nodes, processes) = (spec.reading.num_nodes.unwrap_or(1), count.unwrap_or(1));
    if nodes.checked_mul(processes).is_none_or(|world| world > MAX_REPLICAS) {
        let message = format!("{processes} processes on each of {nodes} nodes are more than {MAX_REPLICAS}");
        return Err(ClusterError::new("bad_cluster", "--nproc", message));
    }
    let mut launches = Vec::new();
    for local_rank in 0..count.unwrap_or(1) {
        let process = process(&spec, count, local_rank);
        let context = Context { spec: &spec, env: input.env, options: input.options, process: process.as_ref() };
        let (derived, odd) = derive(&context, only);
        let mut changes = detected.changes.clone();
        changes.extend(derived);
        if local_rank == 0 {
            warnings.extend(odd);
        }
        launches.push(Launch { is_chief: spec.reading.is_chief && local_rank == 0, process, changes });
    }
    let hostfile = mpi::hostfile(&spec, count.unwrap_or(1));
    Ok(Resolved { spec, launches, warnings: by_code(warnings), hostfile })
}

/// The process that a child is: one of the `--nproc` processes, or the one that the platform gives. If a launcher
/// starts only one process on a node, that process is treated as the node, like on platforms with one trainit for each
/// node, except with `--nproc 1`.
fn process(spec: &ClusterSpec, count: Option<u32>, local_rank: u32) -> Option<spec::Process> {
    if count.is_none() && spec.reading.process.as_ref().is_some_and(|process| is_node(process, spec)) {
        return None;
    }
    let Some(count) = count.filter(|_| spec.reading.process.is_none()) else { return spec.reading.process.clone() };
    let (node_rank, num_nodes) = (spec.reading.node_rank?, spec.reading.num_nodes?);
    Some(Process {
        local_rank: Some(local_rank),
        local_size: Some(count),
        rank: node_rank.saturating_mul(count).saturating_add(local_rank),
        world: num_nodes.saturating_mul(count),
        node_guessed: false,
    })
}

fn is_node(process: &Process, spec: &ClusterSpec) -> bool {
    let place = (spec.reading.node_rank, spec.reading.num_nodes) == (Some(process.rank), Some(process.world));
    process.local_size == Some(1) && process.world > 1 && !process.node_guessed && place
}

/// Derives the variables of one child.
fn derive(context: &Context<'_>, only: &[String]) -> (Changes, Vec<Warning>) {
    let (mut changes, mut warnings) = (Changes::default(), Vec::new());
    let (mut kept, mut overruled, mut too_long) = (Vec::new(), Vec::new(), Vec::new());
    if context.spec.reading.hands_off {
        return (changes, warnings);
    }
    let wanted = |framework: &&Framework| only.is_empty() || only.iter().any(|name| name == framework.name);
    for framework in FRAMEWORKS.iter().copied().filter(wanted) {
        let derived = (framework.derive)(context);
        derived.removed.into_iter().for_each(|name| changes.remove(name));
        warnings.extend(derived.warnings);
        for var in derived.vars {
            if var.name.len() + var.value.len() + 2 > LONGEST_BYTES {
                too_long.push(format!("{} ({} KiB)", var.name, var.value.len() / 1024));
                continue;
            }
            match decide_preset(&var, context.env) {
                PresetDecision::Set => changes.set(var.name, var.value),
                PresetDecision::AsItIs => {}
                PresetDecision::Overruled(preset, place) => {
                    overruled.push(format!(
                        "{} was {} where {place} makes it {}",
                        var.name,
                        quote(preset),
                        quote(&var.value)
                    ));
                    changes.set(var.name, var.value);
                }
                PresetDecision::Kept(preset) => {
                    kept.push(format!("{} is {}, but the cluster says {}", var.name, quote(preset), quote(&var.value)));
                }
            }
        }
    }
    if !too_long.is_empty() {
        let message = format!(
            "not set, because the kernel starts no program with a variable longer than 128 KiB: {}; a program that needs it must get the \
             hosts in another way, such as a file",
            too_long.join(", ")
        );
        warnings.push(Warning::new("variable_too_long", message));
    }
    if !kept.is_empty() {
        let message = format!("already set and kept, although it disagrees: {}", kept.join("; "));
        warnings.push(Warning::new("env_conflict", message));
    }
    if !overruled.is_empty() {
        let message = format!("already set and overruled: {}", overruled.join("; "));
        warnings.push(Warning::new("env_conflict", message));
    }
    (changes, warnings)
}

enum PresetDecision<'a> {
    Set,
    AsItIs,
    Kept(&'a str),
    Overruled(&'a str, String),
}

fn decide_preset<'a>(var: &Var, env: &'a Env) -> PresetDecision<'a> {
    let Some(preset) = env.given(&var.name) else { return PresetDecision::Set };
    if preset == var.value {
        return PresetDecision::AsItIs;
    }
    match &var.precedence {
        Precedence::Derived => PresetDecision::Set,
        Precedence::IfUnset => PresetDecision::AsItIs,
        // A host in brackets or with a line ending is not usable by any program.
        _ if bare(preset) == bare(&var.value) => PresetDecision::Set,
        _ if is_same_value(preset, &var.value) => PresetDecision::AsItIs,
        Precedence::PresetUnless(published) if is_same_value(preset, published) => PresetDecision::Set,
        Precedence::Preset | Precedence::PresetUnless(_) => PresetDecision::Kept(preset),
        Precedence::Explicit(place) => PresetDecision::Overruled(preset, place.clone()),
    }
}

fn bare(text: &str) -> &str {
    text.trim().trim_start_matches('[').trim_end_matches(']')
}

/// Whether two spellings mean the same: surrounding blanks, brackets around IPv6, `2:2` nodes.
fn is_same_value(preset: &str, value: &str) -> bool {
    let whole = |text: &str| text.trim().parse::<u64>().ok();
    bare(preset) == bare(value)
        || (whole(preset).is_some() && whole(preset) == whole(value))
        || preset.trim() == format!("{value}:{value}")
}

/// One warning for each code, in the order of their first occurrence.
fn by_code(warnings: Vec<Warning>) -> Vec<Warning> {
    let mut merged: Vec<Warning> = Vec::new();
    for warning in warnings {
        match merged.iter_mut().find(|m| m.code == warning.code) {
            Some(first) => first.message = format!("{}; {}", first.message, warning.message),
            None => merged.push(warning),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::spec::{ClusterOptions, Nproc};

    /// The variables of the second of two nodes, on every platform with one trainit for each node.
    const SECOND_NODES: [&[(&str, &str)]; 7] = [
        &[
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
        ],
        &[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "1")],
        &[
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_NNODES", "2"),
            ("SLURM_NODEID", "1"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_STEP_NODELIST", "n[1-2]"),
        ],
        &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "m")],
        &[("NNODES", "2"), ("NODE_RANK", "1"), ("MASTER_ADDR", "m")],
        &[
            ("AWS_BATCH_JOB_NUM_NODES", "2"),
            ("AWS_BATCH_JOB_NODE_INDEX", "1"),
            ("AWS_BATCH_JOB_MAIN_NODE_INDEX", "0"),
            ("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "10.0.0.4"),
        ],
        &[("SM_HOSTS", r#"["a","b"]"#), ("SM_CURRENT_HOST", "b")],
    ];

    #[test]
    fn one_process_a_node_has_a_local_rank_only_with_nproc_for_every_launcher() {
        for node in SECOND_NODES {
            let set = |nproc: Option<u32>| {
                let env = Env::from_pairs(node.iter().copied());
                let options = ClusterOptions { nproc: nproc.map(Nproc::Count), ..ClusterOptions::default() };
                let input = Input { env: &env, files: &|_| Ok(None), options: &options };
                let set = resolve(&input, &[]).expect("a job").changes().set;
                let value = |name: &str| env.given(name).or(set.get(name).map(String::as_str)).map(str::to_owned);
                let names = ["RANK", "WORLD_SIZE", "NODE_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PET_NODE_RANK"];
                names.map(|name| value(name).unwrap_or_default())
            };
            assert_eq!(set(None), ["1", "2", "1", "", "", "1"], "{node:?}");
            assert_eq!(set(Some(1)), ["1", "2", "1", "0", "1", ""], "{node:?}");
        }
    }
}

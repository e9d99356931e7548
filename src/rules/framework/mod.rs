//! One model of the job in, every framework's variables out.
//!
//! To add a framework: its file, and its line in [`FRAMEWORKS`]. Deliberately absent: reading any platform's variables.

pub mod mpi;
pub mod peers;
pub mod vars;

mod cuda;
mod jax;
mod lightgbm;
mod network;
mod tensorflow;
mod torch;
mod trainit;
mod xgboost;

use std::ffi::OsString;

use crate::rules::cluster::detect;
use crate::rules::cluster::input::Input;
use crate::rules::cluster::spec::{ClusterError, ClusterSpec, Process, Warning, quote};
use crate::rules::cluster::{complete, spec};
use crate::rules::env::{Changes, Env};
use vars::{Claim, Context, Derived, Elsewhere, Var};

/// The kernel refuses to start a program with a longer NAME=value, its end included (MAX_ARG_STRLEN).
const LONGEST_BYTES: usize = 128 * 1024;

/// One framework.
pub struct Framework {
    /// Its name for `--framework`.
    pub name: &'static str,
    /// Variables that crash somebody when they are there but blank.
    pub variables: &'static [&'static str],
    /// What it reads.
    pub derive: fn(&Context<'_>) -> Derived,
    /// What is odd about starting this command there, as far as the framework goes.
    pub odd_start: fn(&Resolved, &Env, &[OsString]) -> Option<Warning>,
    /// Where its leader listens if nobody does at the rendezvous port.
    pub leader_elsewhere: fn(&ClusterSpec) -> Option<Elsewhere>,
}

impl Framework {
    const fn of(
        name: &'static str,
        variables: &'static [&'static str],
        derive: fn(&Context<'_>) -> Derived,
    ) -> Framework {
        Framework { name, variables, derive, odd_start: |_, _, _| None, leader_elsewhere: |_| None }
    }
}

/// Every framework, in the order in which a reader would look for them; no two set the same variable.
pub const FRAMEWORKS: &[&Framework] = &[
    &trainit::TRAINIT,
    &tensorflow::TENSORFLOW,
    &torch::TORCH,
    &jax::JAX,
    &xgboost::XGBOOST,
    &lightgbm::LIGHTGBM,
    &network::NETWORK,
    &cuda::CUDA,
];

/// One process that trainit is to start: which it is, and what changes for it.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Its place in process mode.
    pub process: Option<Process>,
    /// Whether it is the one that writes checkpoints.
    pub is_chief: bool,
    /// What it gets set, and what is taken away.
    pub changes: Changes,
}

/// The cluster, and what the children get of it.
#[derive(Debug)]
pub struct Resolved {
    /// The model.
    pub spec: ClusterSpec,
    /// One for each process to start on this node, by local rank; one in node mode.
    pub launches: Vec<Launch>,
    /// What is odd, one a code.
    pub warnings: Vec<Warning>,
    /// The content of a host file for mpirun, where the hosts are known.
    pub hostfile: Option<String>,
}

impl Resolved {
    /// What is odd about starting this command.
    pub fn odd_starts(&self, env: &Env, command: &[OsString]) -> impl Iterator<Item = Warning> {
        FRAMEWORKS.iter().filter_map(move |framework| (framework.odd_start)(self, env, command))
    }

    /// What the first (or only) child gets.
    pub fn changes(&self) -> Changes {
        self.launches.first().map(|launch| launch.changes.clone()).unwrap_or_default()
    }
}

/// From the environment to what each child gets. `only` names frameworks; empty means all.
/// Errors: those of a cluster that does not add up; nothing may be started then.
pub fn resolve(input: &Input<'_>, only: &[String]) -> Result<Resolved, ClusterError> {
    let also_read: Vec<&str> = FRAMEWORKS.iter().flat_map(|f| f.variables).copied().collect();
    let count = complete::process_count(input)?;
    let detected = detect(input, &also_read)?;
    let (spec, mut warnings) = (detected.spec, detected.warnings);
    let count = complete::process_count_here(count, &spec)?;
    if spec.said.num_nodes.unwrap_or(1).checked_mul(count.unwrap_or(1)).is_none() {
        let message = "so many processes on each of so many nodes are more than ranks can count";
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
        launches.push(Launch { is_chief: spec.said.is_chief && local_rank == 0, process, changes });
    }
    let hostfile = mpi::hostfile(&spec, count.unwrap_or(1));
    Ok(Resolved { spec, launches, warnings: by_code(warnings), hostfile })
}

/// Which process a child is: of those `--nproc` asks for, or the one that the platform says we are.
fn process(spec: &ClusterSpec, count: Option<u32>, local_rank: u32) -> Option<spec::Process> {
    let Some(count) = count.filter(|_| spec.said.process.is_none()) else { return spec.said.process.clone() };
    let (node_rank, num_nodes) = (spec.said.node_rank?, spec.said.num_nodes?);
    Some(Process {
        local_rank,
        local_size: Some(count),
        rank: node_rank.saturating_mul(count).saturating_add(local_rank),
        world: num_nodes.saturating_mul(count),
        node_guessed: false,
    })
}

/// What one child gets of the frameworks' rules.
fn derive(context: &Context<'_>, only: &[String]) -> (Changes, Vec<Warning>) {
    let (mut changes, mut warnings) = (Changes::default(), Vec::new());
    let (mut kept, mut overruled, mut too_long) = (Vec::new(), Vec::new(), Vec::new());
    if context.spec.said.hands_off {
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
            match verdict(&var, context.env) {
                Verdict::Set => changes.set(var.name, var.value),
                Verdict::AsItIs => {}
                Verdict::Overruled(preset, place) => {
                    overruled.push(format!(
                        "{} was {} where {place} makes it {}",
                        var.name,
                        quote(preset),
                        quote(&var.value)
                    ));
                    changes.set(var.name, var.value);
                }
                Verdict::Kept(preset) => {
                    kept.push(format!(
                        "{} is {} where the cluster says {}",
                        var.name,
                        quote(preset),
                        quote(&var.value)
                    ));
                }
            }
        }
    }
    if !too_long.is_empty() {
        let message = format!(
            "not set, as the kernel starts no program with a variable longer than 128 KiB: {}; a program that needs it must get the \
             hosts some other way, such as a file",
            too_long.join(", ")
        );
        warnings.push(Warning::new("variable_too_long", message));
    }
    if !kept.is_empty() {
        let message = format!("set already and kept, though it disagrees: {}", kept.join("; "));
        warnings.push(Warning::new("env_conflict", message));
    }
    if !overruled.is_empty() {
        let message = format!("set already and overruled: {}", overruled.join("; "));
        warnings.push(Warning::new("env_conflict", message));
    }
    (changes, warnings)
}

enum Verdict<'a> {
    Set,
    AsItIs,
    Kept(&'a str),
    Overruled(&'a str, String),
}

fn verdict<'a>(var: &Var, env: &'a Env) -> Verdict<'a> {
    let Some(preset) = env.given(&var.name) else { return Verdict::Set };
    if preset == var.value {
        return Verdict::AsItIs;
    }
    match &var.claim {
        Claim::Ours => Verdict::Set,
        Claim::IfUnset => Verdict::AsItIs,
        // A host in brackets, or with a line end after it, is nobody's.
        _ if bare(preset) == bare(&var.value) => Verdict::Set,
        _ if means(preset, &var.value) => Verdict::AsItIs,
        Claim::PresetUnless(published) if means(preset, published) => Verdict::Set,
        Claim::Preset | Claim::PresetUnless(_) => Verdict::Kept(preset),
        Claim::Said(place) => Verdict::Overruled(preset, place.clone()),
    }
}

fn bare(text: &str) -> &str {
    text.trim().trim_start_matches('[').trim_end_matches(']')
}

/// Whether two spellings say the same: blanks around, brackets around IPv6, `2:2` nodes.
fn means(preset: &str, value: &str) -> bool {
    let whole = |text: &str| text.trim().parse::<u64>().ok();
    bare(preset) == bare(value)
        || (whole(preset).is_some() && whole(preset) == whole(value))
        || preset.trim() == format!("{value}:{value}")
}

/// One warning a code, in the order of their first.
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

//! Reads every platform's variables into one model of the job, from which `framework` derives every framework's variables.
//!
//! The types (`spec`), the readers (`platforms`, `launchers`), the list (here). To add a platform, add its file and its line
//! in [`PLATFORMS`].

pub mod collector;
pub mod complete;
pub mod first;
pub mod framework;
mod launchers;
pub mod parse;
pub mod peers;
pub mod platforms;
pub mod seat;
pub mod spec;
pub mod unread;
pub mod written;

use crate::process::env::{Changes, Env};
use first::First;
use launchers::launcher;
use parse::input::Input;
use spec::{ClusterError, ClusterSpec, Fact, PlatformName, Reading, Warning};
use unread::signs::{self, Signs};
use unread::unsupported;
use written::Simulated;

/// Reads a source; `None` if its variables are not set.
pub type Read = fn(&Input<'_>, &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError>;

/// One platform: a source of the cluster.
pub struct Platform {
    /// Its name; several if it may be one of several platforms.
    pub names: &'static [PlatformName],
    /// The variables it reads, with `*` for any ending. Messages name the first of them. Blank ones are removed from
    /// the child.
    pub variables: &'static [&'static str],
    /// The variables that it needs to match, in words.
    pub needs: &'static str,
    /// Reads it; `None` if its variables are not set.
    pub read: Read,
    /// Reads the place that a launcher gave to this process, if the launcher starts one trainit for each process. Below
    /// such a launcher, another source's rank is a node's rank.
    pub read_launcher: Read,
    /// A framework reads this variable, too, and fails if it is malformed, whichever platform is used.
    pub is_frameworks: bool,
    /// How it identifies the first process of its job.
    pub first: First,
    /// Its variables that indicate several nodes or processes, even if no place can be read.
    pub signs: &'static [Signs],
    /// The variables that hold other facts about the job, whichever platform is used.
    pub facts: &'static [(Fact, &'static str)],
    /// Variables, with `*` for any ending, that show that the collector of its logs parses JSON.
    pub collector: &'static [&'static str],
    /// How `trainit simulate` imitates it, if it can.
    pub simulated: Option<Simulated>,
}

impl Platform {
    /// A platform that only trainit reads, with one trainit for each node.
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
            read_launcher: |_, _| Ok(None),
            is_frameworks: false,
            first: First::Unknown,
            signs: &[],
            facts: &[],
            collector: &[],
            simulated: None,
        }
    }
}

/// Every source, in order of precedence: the first that matches wins.
///
/// 1. A launcher that has placed this process.
/// 2. Platforms with variables that no other program sets.
/// 3. Variables that frameworks and launchers leave in the environment, from the specific to the general.
pub const PLATFORMS: &[&Platform] = &[
    &launchers::torchelastic::TORCHELASTIC,
    &platforms::sagemaker::SAGEMAKER,
    &platforms::vertex::VERTEX,
    &platforms::tf_config::TF_CONFIG,
    &platforms::aws_batch::AWS_BATCH,
    &platforms::count_and_rank::SKYPILOT,
    &platforms::count_and_rank::DSTACK,
    &platforms::count_and_rank::METAFLOW,
    &platforms::count_and_rank::BEAKER,
    &launchers::mpi::MPI,
    &launchers::pmi::PMI,
    &launchers::nodes_env::NODES_ENV,
    &launchers::torch_env::TORCH_ENV,
    &launchers::jax_env::JAX_ENV,
    &platforms::slurm::SLURM,
    &platforms::k8s_indexed::K8S_INDEXED,
    &platforms::tpu::TPU,
    // It sets the variables of a TPU, too.
    &platforms::count_and_rank::LWS,
];

/// The values of `--platform`.
pub fn names() -> impl Iterator<Item = PlatformName> {
    PLATFORMS.iter().flat_map(|platform| platform.names).copied().chain([PlatformName::NONE])
}

/// The variable with this fact, and its value.
pub fn fact_variable(fact: Fact, env: &Env) -> Option<(&'static str, &str)> {
    let mut variables = PLATFORMS.iter().flat_map(|platform| platform.facts).filter(|(of, _)| *of == fact);
    variables.find_map(|(_, variable)| Some((*variable, env.given(variable)?)))
}

/// trainit's own variables of the cluster. A blank one counts as unset, like a source's.
pub const EXPLICIT: [&str; 3] = ["TRAINIT_NNODES", "TRAINIT_NODE_RANK", "TRAINIT_LEADER"];

/// The result of a detection.
#[derive(Debug)]
pub struct Detected {
    /// The model.
    pub spec: ClusterSpec,
    /// Non-fatal problems.
    pub warnings: Vec<Warning>,
    /// Variables removed from the child because they are blank.
    pub changes: Changes,
}

/// Reads the job and the place of this replica. `also_read` are the variables that frameworks' rules read. Errors: the
/// source is contradictory, so nothing may be started.
pub fn detect(input: &Input<'_>, also_read: &[&str]) -> Result<Detected, ClusterError> {
    detect_as_written(input, also_read).map_err(|error| with_way_out(error, input.env))
}

fn detect_as_written(input: &Input<'_>, also_read: &[&str]) -> Result<Detected, ClusterError> {
    let mut warnings = Vec::new();
    let (at, reading) = match input.options.platform {
        Some(platform) => (None, read_named_platform(platform, input, &mut warnings)?),
        None => {
            let (at, reading) = first_match(input, &mut warnings)?;
            (at, place_below_launcher(reading, input, &mut warnings)?)
        }
    };
    let mut changes = Changes::default();
    if !reading.hands_off {
        warnings.splice(0..0, drop_blank(input.env, also_read, &mut changes));
    }
    let spec = complete::complete(reading, input, &mut warnings)?;
    warnings.extend(unknown_place(&spec.reading, input, &warnings));
    if let Some(at) = at.filter(|_| !spec.reading.hands_off) {
        warnings.extend(disagreements(&spec, at, input)?);
    }
    Ok(Detected { spec, warnings, changes })
}

/// Every mistake in the description of the cluster, each once, `first` before the others: in the explicit values, in
/// the source that is used (if that is clear), and in variables that a framework reads in addition.
pub fn malformed(input: &Input<'_>, first: Option<ClusterError>, with_sources: bool) -> Vec<ClusterError> {
    let read = match input.options.platform {
        Some(platform) => read_named_platform(platform, input, &mut Vec::new()),
        None => first_match(input, &mut Vec::new()).map(|(_, reading)| reading),
    };
    if matches!(&read, Ok(reading) if reading.hands_off) {
        return first.into_iter().collect();
    }
    let sources = || {
        let others = PLATFORMS.iter().filter(|source| input.options.platform.is_none() && source.is_frameworks);
        let others = others.filter_map(|source| (source.read)(input, &mut Vec::new()).err());
        read.err().into_iter().chain(others).map(|error| with_way_out(error, input.env))
    };
    let mut mistakes: Vec<ClusterError> = first.into_iter().collect();
    let sources = with_sources.then(sources).into_iter().flatten();
    let values = complete::wrong_values(input.options).into_iter().map(|error| with_way_out(error, input.env));
    for mistake in values.chain(sources) {
        if !mistakes.contains(&mistake) {
            mistakes.push(mistake);
        }
    }
    mistakes
}

/// If the variable's value is in quotes, the error says that the quotes are the mistake.
fn with_way_out(mut error: ClusterError, env: &Env) -> ClusterError {
    let way_out = signs::quotes([error.variable.as_str()].into_iter(), env);
    error.message.extend(way_out);
    error
}

/// The warning that variables name several nodes or processes although this replica is treated as the only one; unless
/// the user has given the place, or there was a warning already.
fn unknown_place(reading: &Reading, input: &Input<'_>, warnings: &[Warning]) -> Option<Warning> {
    let options = input.options;
    let is_warned = warnings.iter().any(|warning| matches!(warning.code, "node_rank_unknown" | "batch_script"));
    let is_given = [&options.nnodes, &options.node_rank].into_iter().any(Option::is_some) || options.platform.is_some();
    let is_alone = (reading.node_rank, reading.num_nodes) == (Some(0), Some(1)) && reading.process.is_none();
    let has_others = reading.hands_off || reading.tf.as_ref().is_some_and(|tf| tf.replicas > 1);
    if is_warned || is_given || !is_alone || has_others {
        return None;
    }
    // A platform that was read decides about a world of one itself.
    let read = PLATFORMS.iter().filter(|_| reading.platform == PlatformName::NONE);
    let read = read.flat_map(|platform| platform.signs.iter().map(|signs| (signs, Some(platform.needs))));
    let mut all = read.chain(unsupported::UNSUPPORTED.iter().map(|signs| (signs, None)));
    all.find_map(|(signs, needs)| signs.warning(needs, input)).or_else(|| signs::unnamed(input.env))
}

fn first_match(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<(Option<usize>, Reading), ClusterError> {
    // A source that lacks part of a place does not matter if another source or an explicit value gives the place.
    let lacks_place = |warning: &Warning| warning.code == "node_rank_unknown";
    for (at, source) in PLATFORMS.iter().enumerate() {
        let mut notes = Vec::new();
        if let Some(reading) = (source.read)(input, &mut notes)? {
            warnings.retain(|warning| !lacks_place(warning));
            warnings.extend(notes);
            return Ok((Some(at), reading));
        }
        warnings.extend(notes);
    }
    if [&input.options.nnodes, &input.options.node_rank].into_iter().any(Option::is_some) {
        warnings.retain(|warning| !lacks_place(warning));
    }
    Ok((None, Reading::alone()))
}

/// Below a launcher that starts one trainit for each process, a source of nodes gives all processes of a node one rank.
/// The launcher gives the ranks, and the source gives the nodes.
fn place_below_launcher(
    nodes: Reading,
    input: &Input<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<Reading, ClusterError> {
    let places_nodes = nodes.platform != PlatformName::NONE && nodes.process.is_none() && nodes.node_rank.is_some();
    if nodes.hands_off || !places_nodes {
        return Ok(nodes);
    }
    let mut notes = Vec::new();
    let Some(read_launcher) = read_launcher(input, &mut notes)? else { return Ok(nodes) };
    warnings.extend(notes);
    Ok(launcher::merge_with_nodes(nodes, read_launcher, warnings))
}

/// Reads a launcher of several processes, whatever precedes it in the list.
fn read_launcher(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let are_several = |reading: &Reading| reading.process.as_ref().is_some_and(|process| process.world > 1);
    for source in PLATFORMS {
        if let Some(reading) = (source.read_launcher)(input, warnings)?.filter(are_several) {
            return Ok(Some(reading));
        }
    }
    Ok(None)
}

/// Reads only the named platform's variables.
fn read_named_platform(
    platform: PlatformName,
    input: &Input<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<Reading, ClusterError> {
    let Some(source) = PLATFORMS.iter().find(|s| s.names.contains(&platform)) else { return Ok(Reading::alone()) };
    (source.read)(input, warnings)?.ok_or_else(|| {
        let message = format!(
            "nothing here describes a cluster of {}, so no rank can be given: that needs {}; set it, or omit --platform",
            platform.word(),
            source.needs
        );
        ClusterError::new("missing_cluster", source.variables[0], message)
    })
}

/// Removes blank variables, which crash programs that only check whether they exist.
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

/// Later sources that disagree. A variable that a framework reads must be well-formed even then.
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
    let message = || format!("the cluster was read from {}, but {}", spec.reading.platform.word(), pieces.join("; "));
    Ok((!pieces.is_empty()).then(|| Warning::new("env_conflict", message())))
}

fn differs(spec: &ClusterSpec, other: &Reading) -> Option<String> {
    let same = |rank: Option<u32>, world: Option<u32>| {
        other.node_rank == rank && (world == other.num_nodes || world.is_none() || other.num_nodes.is_none())
    };
    let as_process = spec.reading.process.as_ref().is_some_and(|p| same(Some(p.rank), Some(p.world)));
    let is_same_process = other.process.is_some() && other.process == spec.reading.process;
    // mpirun starts its daemons on the other nodes in a Slurm step of their own.
    let is_of_launcher =
        spec.reading.process.is_some() && other.launch.is_some() && other.num_nodes < spec.reading.num_nodes;
    if same(spec.reading.node_rank, spec.reading.num_nodes) || as_process || is_same_process || is_of_launcher {
        return None;
    }
    let place = |rank: Option<u32>, world: Option<u32>| {
        let rank = rank.map_or("no rank".to_owned(), |rank| format!("rank {rank}"));
        world.map_or(rank.clone(), |world| format!("{rank} of {world}"))
    };
    let (other_place, own_place) =
        (place(other.node_rank, other.num_nodes), place(spec.reading.node_rank, spec.reading.num_nodes));
    Some(format!("and related variables say {other_place} instead of {own_place}"))
}

//! torch's variables: torchrun's `PET_NNODES` and `PET_NODE_RANK` (Kubeflow's PyTorchJob and TrainJob), or else `RANK`
//! and `WORLD_SIZE` (XGBoostJob, Azure ML, PAI, set by hand). The latter are those of a node, unless `LOCAL_RANK` and
//! the number of processes on a node show that they are those of a process.

use std::collections::HashSet;

use crate::cluster::Platform;
use crate::cluster::first::First;
use crate::cluster::launchers::nodes_env;
use crate::cluster::parse::address::canonical;
use crate::cluster::parse::input::{Input, MAX_REPLICAS, count, host, rank, within};
use crate::cluster::parse::pools::workers;
use crate::cluster::platforms::slurm;
use crate::cluster::spec::{ClusterError, Leader, PlatformName, Process, Reading, Warning, quote, role_of_rank};
use crate::cluster::unread::signs::{self, Signs, bare, quotes};
use crate::cluster::written::{Job, Limit, Notice, Permanent, Replica, Restarts, Simulated, Success};

/// The usual port of TensorFlow's server.
const TENSORFLOW_PORT: u16 = 2222;

const NAME: PlatformName = PlatformName("torch_env");

pub(in crate::cluster) const TORCH_ENV: Platform = Platform {
    read_launcher: one_of_several,
    first: First::Host(&["PET_NODE_RANK"]),
    // Kubeflow's PyTorchJob with restartPolicy ExitCode.
    simulated: Some(Simulated {
        name: NAME.0,
        write,
        other_roles: &[],
        restarts: Restarts { whole_job: false, limit: Limit::None, permanent: Permanent::Below128 },
        success: Success::OfChief,
        notice: Notice::Signal,
    }),
    signs: &[
        Signs {
            launcher: "torchrun",
            counts: &["PET_NNODES"],
            places: &["PET_NODE_RANK"],
            leaders: &["PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "MASTER_ADDR"],
            ..Signs::NODES
        },
        Signs {
            launcher: "Azure ML",
            counts: &["AZUREML_NODE_COUNT"],
            places: &["NODE_RANK"],
            leaders: &["MASTER_ADDR"],
            also_set: &["AZUREML_NODE_COUNT"],
            ..Signs::NODES
        },
        Signs {
            launcher: "torch",
            counts: &["LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"],
            places: &["RANK", "LOCAL_RANK", "GROUP_RANK"],
            leaders: &["MASTER_ADDR"],
            ..Signs::PROCESSES
        },
    ],
    ..Platform::of(
        &[NAME],
        &[
            "RANK",
            "WORLD_SIZE",
            "MASTER_ADDR",
            "MASTER_PORT",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "LOCAL_SIZE",
            "AZUREML_NODE_COUNT",
            "PET_*",
            "WORKER_ADDRS",
        ],
        "PET_NNODES and PET_NODE_RANK, or RANK and WORLD_SIZE",
        read,
    )
};

/// The variables of a replica, as the operator sets them.
fn write(job: &Job, replica: &Replica) -> Vec<(&'static str, String)> {
    let (rank, world, port) = (job.rank(replica), job.training().count(), job.rendezvous_port.to_string());
    vec![
        ("MASTER_ADDR", job.leader_host().to_owned()),
        ("MASTER_PORT", port.clone()),
        ("WORLD_SIZE", world.to_string()),
        ("RANK", rank.to_string()),
        ("PET_NNODES", world.to_string()),
        ("PET_NODE_RANK", rank.to_string()),
        ("PET_MASTER_ADDR", job.leader_host().to_owned()),
        ("PET_MASTER_PORT", port),
    ]
}

/// Reads either pair.
fn read(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let given = |name| input.env.given(name);
    let mut reading = match (given("PET_NNODES"), given("PET_NODE_RANK"), given("RANK"), given("WORLD_SIZE")) {
        (Some(nodes), Some(node_rank), _, _) => launcher(input, nodes, node_rank)?,
        (_, _, Some(_), Some(_)) if copies_slurm(input) => return Ok(None),
        (_, _, Some(own), Some(_)) => rank_and_world(input, own, warnings)?,
        _ => {
            warnings.extend(incomplete_place(input).filter(|_| given("PET_NNODES").is_none()));
            return Ok(None);
        }
    };
    reading.procs_per_node = given("PET_NPROC_PER_NODE").or(nodes_env::processes(input.env)).map(str::to_owned);
    reading.hosts = hosts(input, &reading)?;
    reading.tf = match (&reading.hosts, reading.node_rank) {
        (Some(hosts), Some(rank)) => Some(workers(hosts, TENSORFLOW_PORT, rank)),
        _ => None,
    };
    Ok(Some(reading))
}

/// One of several processes that a launcher (DeepSpeed's, Composer's, trainit itself) has started on a node.
/// Contradictory values count as a node's, and are no error if another source gives the node.
fn one_of_several(input: &Input<'_>, _: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let own = input.env.given("RANK").filter(|_| input.env.given("WORLD_SIZE").is_some() && !copies_slurm(input));
    let reading = own.and_then(|own| rank_and_world(input, own, &mut Vec::new()).ok());
    let is_one = |reading: &Reading| reading.process.as_ref().is_some_and(|process| process.local_size > Some(1));
    Ok(reading.filter(is_one))
}

/// The warning for either the number of nodes or the rank without the other. `RANK` alone is covered by its signs.
fn incomplete_place(input: &Input<'_>) -> Option<Warning> {
    let leader = input.env.given("MASTER_ADDR").map(bare);
    let several = || input.env.given("WORLD_SIZE").and_then(signs::count).is_some_and(|world| world > 1);
    let (given, missing) = match (input.env.given("RANK"), several()) {
        (None, true) => ("WORLD_SIZE", "RANK"),
        (Some(_), false) if leader.is_some() && input.env.given("WORLD_SIZE").is_none() => ("RANK", "WORLD_SIZE"),
        _ => return None,
    };
    let given = if leader.is_some() { format!("{given} and MASTER_ADDR are") } else { format!("{given} is") };
    let message = format!(
        "{given} set, but {missing} is not: this is taken for the only replica, and those that share a \
         checkpoint directory or store overtake each other (205); set {missing}, or give --nnodes, --node-rank and \
         --leader HOST:PORT, on every node{}",
        quotes(["RANK", "WORLD_SIZE", "MASTER_ADDR"].into_iter(), input.env).unwrap_or_default()
    );
    // A program that starts its processes itself on this machine alone needs no rank.
    let is_here = leader.is_some_and(|leader| matches!(leader, "localhost" | "::1") || leader.starts_with("127."));
    (!is_here).then(|| Warning::new("node_rank_unknown", message))
}

/// Reads torchrun's options. An elastic job (`min:max`) has no known world size.
fn launcher(input: &Input<'_>, nodes: &str, node_rank: &str) -> Result<Reading, ClusterError> {
    let (min, max) = nodes.split_once(':').unwrap_or((nodes, nodes));
    let (min, max) = match (count("PET_NNODES", min), count("PET_NNODES", max)) {
        (Ok(min), Ok(max)) if min <= max => (min, max),
        _ => {
            let message =
                format!("expected a number of nodes up to {MAX_REPLICAS}, or min:max, found {}", quote(nodes));
            return Err(ClusterError::new("bad_cluster", "PET_NNODES", message));
        }
    };
    let node_rank = rank("PET_NODE_RANK", node_rank)?;
    within("PET_NODE_RANK", node_rank, "PET_NNODES", max)?;
    let named = first(input.host("PET_MASTER_ADDR")?, || input.host("MASTER_ADDR"))?;
    // One node needs no endpoint: torchrun uses `localhost:0` for it. If there is an address, the endpoint may be
    // another backend's.
    let endpoint = match input.endpoint("PET_RDZV_ENDPOINT") {
        Err(_) if max == 1 || named.is_some() => None,
        endpoint => endpoint?,
    };
    let (endpoint_host, endpoint_port) = endpoint.map_or((None, None), |(host, port)| (Some(host), port));
    let port = if named.is_none() { endpoint_port } else { None };
    Ok(Reading {
        num_nodes: (min == max).then_some(max),
        leader: Leader { host: named.or(endpoint_host), port, platform_port: None },
        leader_variable: "PET_MASTER_ADDR",
        ..Reading::of(NAME, role_of_rank(node_rank), node_rank, max)
    })
}

fn rank_and_world(input: &Input<'_>, own: &str, warnings: &mut Vec<Warning>) -> Result<Reading, ClusterError> {
    let rank = rank("RANK", own)?;
    let world = input.count("WORLD_SIZE")?.unwrap_or(1);
    within("RANK", rank, "WORLD_SIZE", world)?;
    let process = process(input, rank, world, warnings);
    let (node_rank, num_nodes) = match &process {
        Some((_, node_rank, num_nodes)) => (*node_rank, *num_nodes),
        None => (rank, world),
    };
    Ok(Reading {
        is_chief: rank == 0,
        process: process.map(|(process, _, _)| process),
        leader: Leader { host: input.host("MASTER_ADDR")?, ..Leader::default() },
        leader_variable: "MASTER_ADDR",
        ..Reading::of(NAME, role_of_rank(rank), node_rank, num_nodes)
    })
}

/// Set if a launcher has started one trainit for each process, and the values are complete.
fn process(input: &Input<'_>, rank: u32, world: u32, warnings: &mut Vec<Warning>) -> Option<(Process, u32, u32)> {
    let local_rank = input.rank("LOCAL_RANK").ok().flatten()?;
    let fits = |size: &u32| world.is_multiple_of(*size) && rank % size == local_rank;
    let Some(local_size) = local_size(input, world).filter(fits) else {
        if local_rank > 0 {
            let message = format!(
                "LOCAL_RANK: {local_rank} means that this is one of several processes of a node, but LOCAL_WORLD_SIZE is not \
                 set or does not fit rank {rank} of {world}, so this process is treated as a node, whose checkpoints are stored \
                 separately; start the same number on every node, and set LOCAL_WORLD_SIZE to it"
            );
            warnings.push(Warning::new("local_size_unknown", message));
        }
        return None;
    };
    let process =
        Process { local_rank: Some(local_rank), local_size: Some(local_size), rank, world, node_guessed: false };
    Some((process, rank / local_size, world / local_size))
}

/// The number of processes on a node, if one trainit is started for each: torchrun's variable, DeepSpeed's, or
/// calculated from Azure ML's number of nodes (if it is one, the process is the node).
fn local_size(input: &Input<'_>, world: u32) -> Option<u32> {
    let count = |name| input.count(name).ok().flatten();
    let by_nodes = || count("AZUREML_NODE_COUNT").filter(|nodes| world > *nodes).map(|nodes| world / nodes);
    count("LOCAL_WORLD_SIZE").or_else(|| count("LOCAL_SIZE")).or_else(by_nodes)
}

/// Whether a job script copied Slurm's place (`RANK=$SLURM_PROCID`): Slurm knows the number of processes on a node.
fn copies_slurm(input: &Input<'_>) -> bool {
    let is_counted = input.env.given("LOCAL_WORLD_SIZE").is_some();
    !is_counted && slurm::is_task_place(input.env, &["RANK", "WORLD_SIZE", "LOCAL_RANK"])
}

/// XGBoostJob lists its workers separately from the master.
fn hosts(input: &Input<'_>, reading: &Reading) -> Result<Option<Vec<String>>, ClusterError> {
    let (Some(list), Some(leader)) = (input.env.given("WORKER_ADDRS"), &reading.leader.host) else { return Ok(None) };
    let workers = list.split(',').map(|item| host("WORKER_ADDRS", item)).collect::<Result<Vec<_>, _>>()?;
    // All of them listen at one port.
    let mut seen = HashSet::new();
    if let Some(twice) = workers.iter().find(|worker| !seen.insert(canonical(worker))) {
        let message = format!("{} is listed twice; every worker needs its own address", quote(twice));
        return Err(ClusterError::new("duplicate_address", "WORKER_ADDRS", message));
    }
    let hosts: Vec<String> = std::iter::once(leader.clone()).chain(workers).collect();
    Ok((reading.num_nodes == Some(hosts.len() as u32)).then_some(hosts))
}

fn first<T>(
    found: Option<T>,
    other: impl FnOnce() -> Result<Option<T>, ClusterError>,
) -> Result<Option<T>, ClusterError> {
    found.map_or_else(other, |found| Ok(Some(found)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::detect;
    use crate::cluster::spec::{ClusterOptions, Explicit};
    use crate::process::env::Env;

    /// Node rank and number of nodes, rank and number of processes on the node, the codes of the warnings.
    type Place = (Option<u32>, Option<u32>, Option<(u32, Option<u32>)>, Vec<&'static str>);

    /// The place of rank 5 of 8, and the codes of the warnings.
    fn placed(given: &[(&str, &str)]) -> Place {
        let job = [("RANK", "5"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "m")];
        let (env, options) = (Env::from_pairs(given.iter().chain(&job).copied()), ClusterOptions::default());
        let found = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
        let warned = found.warnings.iter().map(|warning| warning.code).collect();
        let spec = found.spec.reading;
        (spec.node_rank, spec.num_nodes, spec.process.and_then(|p| Some((p.local_rank?, p.local_size))), warned)
    }

    #[test]
    fn one_of_several_processes_has_a_local_rank_if_its_variables_fit_together() {
        let second_of_four = (Some(1), Some(2), Some((1, Some(4))), vec![]);
        for size in [("LOCAL_WORLD_SIZE", "4"), ("LOCAL_SIZE", "4"), ("AZUREML_NODE_COUNT", "2")] {
            assert_eq!(placed(&[("LOCAL_RANK", "1"), size]), second_of_four, "{size:?}");
            assert_eq!(
                placed(&[("LOCAL_RANK", "2"), size]),
                (Some(5), Some(8), None, vec!["local_size_unknown"]),
                "rank 5 cannot be process 2 of 4 on a node"
            );
        }
        let node = (Some(5), Some(8), None, vec![]);
        assert_eq!(
            placed(&[("LOCAL_RANK", "0"), ("AZUREML_NODE_COUNT", "8")]),
            node,
            "a single process on a node may start several"
        );
        assert_eq!(placed(&[("LOCAL_SIZE", "4")]), node, "the local rank is unknown");
    }

    #[test]
    fn slurms_place_in_torchs_variables_is_slurms_place() {
        let slurm = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "5"), ("SLURM_LOCALID", "1"), ("SLURM_NTASKS", "8")];
        let nodes = [("SLURM_NNODES", "2"), ("SLURM_NODEID", "1"), ("SLURM_STEP_NODELIST", "n[1-2]")];
        let with = |local_rank| placed(&[&slurm[..], &nodes[..], &[("LOCAL_RANK", local_rank)]].concat());
        assert_eq!(with("1"), (Some(1), Some(2), Some((1, Some(4))), vec![]));
        assert_eq!(with("2").0, Some(5), "the place differs from Slurm's");
    }

    #[test]
    fn an_unknown_number_of_processes_on_a_node_causes_a_warning() {
        assert_eq!(placed(&[("LOCAL_RANK", "1")]), (Some(5), Some(8), None, vec!["local_size_unknown"]));
        assert_eq!(placed(&[("LOCAL_RANK", "0")]), (Some(5), Some(8), None, vec![]));
    }

    #[test]
    fn elastic_nodes_without_a_rank_cause_a_warning() {
        let warned = |nodes: &str| {
            let (env, options) = (Env::from_pairs([("PET_NNODES", nodes)]), ClusterOptions::default());
            let found = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
            found.warnings.iter().map(|warning| warning.code).collect::<Vec<_>>()
        };
        assert_eq!((warned("1:3"), warned("2")), (vec!["node_rank_unknown"], vec!["node_rank_unknown"]));
        assert_eq!((warned("1"), warned("1:1"), warned("x")), (vec![], vec![], vec![]));
    }

    #[test]
    fn an_incomplete_place_causes_a_warning_unless_another_source_gives_it() {
        let warned = |given: &[(&str, &str)], node_rank: Option<&str>| {
            let node_rank = node_rank.map(|text| Explicit { place: "--node-rank".to_owned(), text: text.to_owned() });
            let nnodes = node_rank.as_ref().map(|_| Explicit { place: "--nnodes".to_owned(), text: "4".to_owned() });
            let (env, options) = (
                Env::from_pairs(given.iter().copied()),
                ClusterOptions { node_rank, nnodes, ..ClusterOptions::default() },
            );
            let found = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
            found.warnings.iter().map(|warning| warning.code).collect::<Vec<_>>()
        };
        let (address, world) = (("MASTER_ADDR", "m"), ("WORLD_SIZE", "4"));
        assert_eq!(warned(&[address, world], None), ["node_rank_unknown"]);
        assert_eq!(warned(&[address, ("RANK", "3")], None), ["node_rank_unknown"]);
        assert!(
            warned(&[address, world], Some("3")).is_empty()
                && warned(&[("PET_NNODES", "4"), address], Some("3")).is_empty()
        );
        let slurm = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "3"), ("SLURM_NTASKS", "4"), ("SLURM_NNODES", "4")];
        assert!(warned(&[&slurm[..], &[address, world]].concat(), None).is_empty(), "a batch script exports these two");
        assert_eq!(warned(&[world], None), ["node_rank_unknown"]);
        for no_job in [&[address][..], &[address, ("WORLD_SIZE", "1")], &[("MASTER_ADDR", "127.0.0.1"), world]] {
            assert!(warned(no_job, None).is_empty(), "{no_job:?}");
        }
    }

    #[test]
    fn an_unnecessary_rendezvous_may_have_any_value() {
        let nodes = |given: &[(&str, &str)]| {
            let all = given.iter().chain(&[("PET_NODE_RANK", "0"), ("PET_RDZV_BACKEND", "c10d")]);
            let (env, options) = (Env::from_pairs(all.copied()), ClusterOptions::default());
            let found = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]);
            found.map(|found| found.spec.reading.num_nodes).map_err(|error| error.code)
        };
        let free_port = ("PET_RDZV_ENDPOINT", "localhost:0");
        assert_eq!(nodes(&[("PET_NNODES", "1"), free_port]), Ok(Some(1)), "torchrun documents this for one node");
        let of_etcd = ("PET_RDZV_ENDPOINT", "http://etcd:2379");
        assert_eq!(nodes(&[("PET_NNODES", "2"), of_etcd, ("PET_MASTER_ADDR", "m-0")]), Ok(Some(2)));
        assert_eq!(nodes(&[("PET_NNODES", "2"), free_port]), Err("bad_address"));
    }
}

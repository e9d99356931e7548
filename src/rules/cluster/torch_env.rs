//! torch's own variables: torchrun's `PET_NNODES` and `PET_NODE_RANK` (Kubeflow's PyTorchJob and TrainJob), else `RANK`
//! and `WORLD_SIZE` (XGBoostJob, Azure ML, PAI, by hand), which are a node's here unless `LOCAL_WORLD_SIZE` says that
//! they are a process's.

use super::Platform;
use super::input::{Input, host, rank, within};
use super::pools::workers;
use super::spec::{ClusterError, Leader, PlatformName, Process, Reading, Warning, quote, role_of_rank};

/// The usual port of TensorFlow's server.
const TENSORFLOW_PORT: u16 = 2222;

const NAME: PlatformName = PlatformName("torch_env");

pub(super) const TORCH_ENV: Platform = Platform::of(
    &[NAME],
    &[
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NPROC_PER_NODE",
        "PET_*",
        "WORKER_ADDRS",
    ],
    "PET_NNODES and PET_NODE_RANK, or RANK and WORLD_SIZE",
    read,
);

/// Reads either pair.
fn read(input: &Input<'_>, _: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let given = |name| input.env.given(name);
    let mut reading = match (given("PET_NNODES"), given("PET_NODE_RANK"), given("RANK"), given("WORLD_SIZE")) {
        (Some(nodes), Some(node_rank), _, _) => launcher(input, nodes, node_rank)?,
        (_, _, Some(own), Some(_)) => plain(input, own)?,
        _ => return Ok(None),
    };
    reading.procs_per_node = given("PET_NPROC_PER_NODE").or(given("NPROC_PER_NODE")).map(str::to_owned);
    reading.hosts = hosts(input, &reading)?;
    reading.tf = match (&reading.hosts, reading.node_rank) {
        (Some(hosts), Some(rank)) => Some(workers(hosts, TENSORFLOW_PORT, rank)),
        _ => None,
    };
    Ok(Some(reading))
}

/// torchrun's options. An elastic job (`min:max`) has no world that could be known now.
fn launcher(input: &Input<'_>, nodes: &str, node_rank: &str) -> Result<Reading, ClusterError> {
    let (min, max) = nodes.split_once(':').unwrap_or((nodes, nodes));
    let bounds = |text: &str| text.trim().parse::<u32>().ok().filter(|n| *n > 0);
    let (min, max) = match (bounds(min), bounds(max)) {
        (Some(min), Some(max)) if min <= max => (min, max),
        _ => {
            let message = format!("expected a number of nodes, or min:max, found {}", quote(nodes));
            return Err(ClusterError::new("bad_cluster", "PET_NNODES", message));
        }
    };
    let node_rank = rank("PET_NODE_RANK", node_rank)?;
    within("PET_NODE_RANK", node_rank, "PET_NNODES", max)?;
    let named = first(input.host("PET_MASTER_ADDR")?, || input.host("MASTER_ADDR"))?;
    // One node needs none: torchrun's own words for it are `localhost:0`. Beside an address it may be of another backend.
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

fn plain(input: &Input<'_>, own: &str) -> Result<Reading, ClusterError> {
    let rank = rank("RANK", own)?;
    let world = input.count("WORLD_SIZE")?.unwrap_or(1);
    within("RANK", rank, "WORLD_SIZE", world)?;
    let process = process(input, rank, world);
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

/// Set where somebody else has started one of us for each process, and has said so in full.
fn process(input: &Input<'_>, rank: u32, world: u32) -> Option<(Process, u32, u32)> {
    let local_rank = input.rank("LOCAL_RANK").ok().flatten()?;
    let local_size = input.count("LOCAL_WORLD_SIZE").ok().flatten()?;
    let whole = world.is_multiple_of(local_size) && rank % local_size == local_rank;
    let process = Process { local_rank, local_size: Some(local_size), rank, world, node_guessed: false };
    whole.then_some((process, rank / local_size, world / local_size))
}

/// XGBoostJob names its workers beside the master.
fn hosts(input: &Input<'_>, reading: &Reading) -> Result<Option<Vec<String>>, ClusterError> {
    let (Some(list), Some(leader)) = (input.env.given("WORKER_ADDRS"), &reading.leader.host) else { return Ok(None) };
    let workers = list.split(',').map(|item| host("WORKER_ADDRS", item)).collect::<Result<Vec<_>, _>>()?;
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
    use super::super::detect;
    use super::*;
    use crate::rules::cluster::spec::ClusterOptions;
    use crate::rules::env::Env;

    #[test]
    fn who_is_started_once_a_process_is_one_of_its_node_where_all_that_it_is_told_fits_together() {
        let placed = |local_rank: &str| {
            let told = [("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", local_rank), ("LOCAL_WORLD_SIZE", "4")];
            let env = Env::from_pairs(told.into_iter().chain([("MASTER_ADDR", "m")]));
            let options = ClusterOptions::default();
            let spec =
                detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job").spec.said;
            (spec.node_rank, spec.num_nodes, spec.process.map(|p| (p.local_rank, p.local_size, p.rank, p.world)))
        };
        assert_eq!(placed("1"), (Some(1), Some(2), Some((1, Some(4), 5, 8))));
        assert_eq!(placed("2"), (Some(5), Some(8), None), "the third of four is no rank 5");
    }
    #[test]
    fn a_rendezvous_that_nobody_needs_may_be_any() {
        let nodes = |told: &[(&str, &str)]| {
            let all = told.iter().chain(&[("PET_NODE_RANK", "0"), ("PET_RDZV_BACKEND", "c10d")]);
            let (env, options) = (Env::from_pairs(all.copied()), ClusterOptions::default());
            let found = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]);
            found.map(|found| found.spec.said.num_nodes).map_err(|error| error.code)
        };
        let free_port = ("PET_RDZV_ENDPOINT", "localhost:0");
        assert_eq!(nodes(&[("PET_NNODES", "1"), free_port]), Ok(Some(1)), "torchrun's documentation for one node");
        let of_etcd = ("PET_RDZV_ENDPOINT", "http://etcd:2379");
        assert_eq!(nodes(&[("PET_NNODES", "2"), of_etcd, ("PET_MASTER_ADDR", "m-0")]), Ok(Some(2)));
        assert_eq!(nodes(&[("PET_NNODES", "2"), free_port]), Err("bad_address"));
    }
}

//! Completes a platform's reading: applies the user's explicit values, finds the leader and its port, and checks the
//! result.
//!
//! The rendezvous port is the first of these that is given: the explicit leader's, `MASTER_PORT`, `PET_MASTER_PORT`,
//! the platform's, the port in the leader's address, 29500. For processes that `run` starts on a single node, a free
//! port replaces the last one, so that two runs on one host use different ports.

use core::net::IpAddr;

use super::spec::{
    ClusterError, ClusterOptions, ClusterSpec, Explicit, Nproc, PlatformName, Reading, Warning, quote, role_of_rank,
};
use crate::cluster::parse::address::{Address, parse_host};
use crate::cluster::parse::input::{Input, address, count, rank};

/// Set for the replicas of `trainit simulate`.
pub const SIMULATED: &str = "TRAINIT_SIMULATED";
const DEFAULT_PORT: u16 = 29_500;
const LOOPBACK: &str = "127.0.0.1";
/// The range of ports for launches on one node.
const FIRST_PORT_OF_LAUNCHES: u16 = 25_000;
const PORTS_OF_LAUNCHES: u32 = 4000;

/// Completes a reading. Errors: `missing_leader`, `missing_task`, `bad_address`, `task_index_out_of_range`, and those of
/// explicit values.
pub fn complete(
    mut reading: Reading,
    input: &Input<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<ClusterSpec, ClusterError> {
    if reading.hands_off {
        let host = reading.leader.host.clone();
        let leader = host.map(|host| Address { host, port: reading.leader.port.unwrap_or(DEFAULT_PORT) });
        return Ok(ClusterSpec { reading, leader: leader.clone(), rendezvous: leader });
    }
    apply_explicit_values(&mut reading, input)?;
    refuse_second_launcher(&reading, input)?;
    // A world of one process that a launcher sets is ignored: the processes of --nproc get ranks of their own.
    if process_count(input)?.is_some() && reading.process.as_ref().is_some_and(|process| process.world < 2) {
        reading.process = None;
    }
    let several_nodes = reading.num_nodes.is_some_and(|n| n > 1);
    if !several_nodes && reading.process.is_none() {
        // A single or unknown replica needs no rendezvous, except for the processes of --nproc.
        let alone = reading.num_nodes == Some(1) && input.options.nproc.is_some();
        let own = reading.leader.platform_port.filter(|_| reading.traits.shares_nodes);
        let rendezvous = match explicit_leader(input)? {
            None if alone => {
                let own = own.or(input.options.free_port);
                Some(Address { host: LOOPBACK.to_owned(), port: port(own, input, None)? })
            }
            explicit => explicit.filter(|_| alone),
        };
        return Ok(ClusterSpec { reading, leader: None, rendezvous });
    }
    let leader = leader(&reading, input)?;
    if leader.is_none() && reading.process.is_none() {
        let way_out = match reading.leader_variable {
            "TRAINIT_LEADER" => "set it to HOST:PORT of node 0 on every node, or give --leader HOST:PORT",
            _ => "set it, or TRAINIT_LEADER=HOST:PORT on every node",
        };
        let message = format!(
            "is not set, and the job has {} nodes, which need the leader's address; {way_out}",
            reading.num_nodes.unwrap_or(0)
        );
        return Err(ClusterError::new("missing_leader", reading.leader_variable, message));
    }
    if leader.is_none() {
        let message = "the address of rank 0 is unknown, so MASTER_ADDR and related variables are not set \
                       (MPI and Horovod need none); if the program does, set TRAINIT_LEADER=HOST:PORT";
        warnings.push(Warning::new("leader_unknown", message));
    }
    warnings.extend(leader.as_ref().and_then(|leader| loopback(leader, &reading, input)));
    let rendezvous = leader.clone().map(|leader| own_name(leader, &reading, input));
    Ok(ClusterSpec { reading, leader, rendezvous })
}

/// The warning if another node would look for the leader on its own machine. All replicas of a simulation are on one.
fn loopback(leader: &Address, reading: &Reading, input: &Input<'_>) -> Option<Warning> {
    let is_on_another_node = reading.node_rank.is_some_and(|rank| rank > 0)
        && reading.process.as_ref().is_none_or(|process| !process.node_guessed)
        && input.env.given(SIMULATED).is_none();
    let is_loopback = match leader.host.parse::<IpAddr>() {
        Ok(ip) => ip.is_loopback(),
        Err(_) => leader.host == "localhost",
    };
    let message = format!(
        "the leader is at {}, which is this machine itself, but this is node {} of {}: unless all of them are on one machine, \
         they never meet; give the address of node 0, with --leader or MASTER_ADDR",
        quote(&leader.host),
        reading.node_rank.unwrap_or(0),
        reading.num_nodes.unwrap_or(0)
    );
    (is_on_another_node && is_loopback).then(|| Warning::new("loopback_leader", message))
}

/// A pod may not reach itself by the name of its service, so node rank 0 dials its own host name. Its server listens on
/// every interface, so this always works.
fn own_name(leader: Address, reading: &Reading, input: &Input<'_>) -> Address {
    let leads = reading.traits.behind_services && reading.node_rank == Some(0) && !input.options.keep_leader_name;
    let name = input.options.hostname.as_deref().filter(|_| leads).and_then(|name| parse_host(name.trim()).ok());
    Address { host: name.unwrap_or(leader.host), port: leader.port }
}

/// Explicit values win over every source. Hosts and addresses of the source are dropped if they no longer fit.
fn apply_explicit_values(reading: &mut Reading, input: &Input<'_>) -> Result<(), ClusterError> {
    let options = input.options;
    let nnodes = options.nnodes.as_ref().map(|e| count(&e.place, &e.text)).transpose()?;
    let node_rank = options.node_rank.as_ref().map(|e| rank(&e.place, &e.text)).transpose()?;
    let place = |explicit: &Option<Explicit>, name: &str| {
        explicit.as_ref().map_or_else(|| name.to_owned(), |e| e.place.clone())
    };
    let is_bare = reading.platform == PlatformName::NONE;
    if is_bare && node_rank.is_none() && nnodes.is_some_and(|n| n > 1) {
        let message = "is not set, but the number of nodes is, so the rank of this node is unknown. \
                       Set it on every node, from 0 for the leader";
        return Err(ClusterError::new("missing_task", "TRAINIT_NODE_RANK", message));
    }
    let mut changed = false;
    if let Some(nodes) = nnodes.filter(|n| reading.num_nodes != Some(*n)) {
        reading.num_nodes = Some(nodes);
        changed = true;
    }
    if let Some(rank) = node_rank.filter(|r| reading.node_rank != Some(*r)) {
        reading.node_rank = Some(rank);
        reading.role = role_of_rank(rank);
        reading.is_chief = rank == 0 && reading.process.as_ref().is_none_or(|p| p.rank == 0);
        changed = true;
    }
    if changed {
        reading.hosts = None;
        reading.tf = None;
    }
    if let (Some(rank), Some(nodes)) = (reading.node_rank, reading.num_nodes)
        && rank >= nodes
    {
        let variable = match node_rank {
            Some(_) => place(&options.node_rank, "TRAINIT_NODE_RANK"),
            None => place(&options.nnodes, "TRAINIT_NNODES"),
        };
        let message = format!("rank {rank} does not exist among {nodes} nodes; ranks go from 0 to {}", nodes - 1);
        return Err(ClusterError::new("task_index_out_of_range", variable, message));
    }
    Ok(())
}

/// The mistakes in the explicit values, for any source.
pub fn wrong_values(options: &ClusterOptions) -> Vec<ClusterError> {
    let nnodes = options.nnodes.as_ref().and_then(|e| count(&e.place, &e.text).err());
    let node_rank = options.node_rank.as_ref().and_then(|e| rank(&e.place, &e.text).err());
    let leader = options.leader.as_ref().and_then(|e| address(&e.place, &e.text).err());
    [nnodes, node_rank, leader].into_iter().flatten().collect()
}

fn refuse_second_launcher(reading: &Reading, input: &Input<'_>) -> Result<(), ClusterError> {
    match (&reading.process, input.options.nproc) {
        (Some(process), Some(asked)) if process.world > 1 && asked != Nproc::Count(1) => {
            let message = format!(
                "a launcher has already started one trainit for each of {} processes; omit --nproc",
                process.world
            );
            Err(ClusterError::new("bad_setting", "--nproc", message))
        }
        _ => Ok(()),
    }
}

fn explicit_leader(input: &Input<'_>) -> Result<Option<Address>, ClusterError> {
    input.options.leader.as_ref().map(|explicit| address(&explicit.place, &explicit.text)).transpose()
}

fn leader(reading: &Reading, input: &Input<'_>) -> Result<Option<Address>, ClusterError> {
    if let Some(explicit) = explicit_leader(input)? {
        return Ok(Some(explicit));
    }
    let host = match &reading.leader.host {
        Some(host) => Some(host.clone()),
        None => match input.host("MASTER_ADDR")? {
            Some(host) => Some(host),
            None => match input.host("PET_MASTER_ADDR")? {
                // JAX's coordinator is rank 0, too, whatever starts the ranks.
                None => input.endpoint("JAX_COORDINATOR_ADDRESS")?.map(|(host, _)| host),
                host => host,
            },
        },
    };
    if let Some(host) = host {
        let port = port(reading.leader.platform_port, input, reading.leader.port)?;
        return Ok(Some(Address { host, port }));
    }
    if reading.num_nodes != Some(1) {
        return Ok(None);
    }
    let own = reading.leader.platform_port.or_else(|| reading.launch.as_deref().map(port_of_launch));
    Ok(Some(Address { host: LOOPBACK.to_owned(), port: port(own, input, None)? }))
}

/// The rendezvous port of a launch on one node. Each process must compute the same port independently, and two launches
/// should get different ports. The range contains neither the kernel's ephemeral ports nor Slurm's ports.
fn port_of_launch(name: &str) -> u16 {
    let hash = name.bytes().fold(0u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
    FIRST_PORT_OF_LAUNCHES + (hash % PORTS_OF_LAUNCHES) as u16
}

fn port(platform: Option<u16>, input: &Input<'_>, leader: Option<u16>) -> Result<u16, ClusterError> {
    for variable in ["MASTER_PORT", "PET_MASTER_PORT"] {
        if let Some(port) = input.port(variable)? {
            return Ok(port);
        }
    }
    Ok(platform.or(leader).unwrap_or(DEFAULT_PORT))
}

/// The number of processes that `--nproc` asks for. Errors: `bad_setting` if there is no GPU to count, `gpu_demand` if
/// the driver fails.
pub fn process_count(input: &Input<'_>) -> Result<Option<u32>, ClusterError> {
    match input.options.nproc {
        None => Ok(None),
        Some(Nproc::Count(count)) => Ok(Some(count)),
        Some(Nproc::Gpu) if let Some(failure) = &input.options.gpu_failure => {
            Err(ClusterError::new("gpu_demand", "--nproc", failure.clone()))
        }
        Some(Nproc::Gpu) if input.options.gpu_count > 0 => Ok(Some(input.options.gpu_count)),
        Some(Nproc::Gpu) => {
            let message = format!(
                "{} asks for one process for each GPU, but no GPU is visible here; `trainit gpus` says why",
                quote("gpu")
            );
            Err(ClusterError::new("bad_setting", "--nproc", message))
        }
    }
}

/// The number of these that start on this replica, which must have a place in a world. Errors: `bad_setting` if several
/// processes could not get ranks.
pub fn process_count_here(asked: Option<u32>, spec: &ClusterSpec) -> Result<Option<u32>, ClusterError> {
    let refuse = |why: &str| Err(ClusterError::new("bad_setting", "--nproc", why));
    match asked {
        Some(2..) if spec.reading.hands_off => {
            refuse("this process was started by torchrun and has a rank already; omit --nproc")
        }
        Some(_) if !spec.reading.role.trains() && spec.reading.node_rank.is_none() => Ok(None),
        Some(2..) if spec.reading.num_nodes.is_none() || spec.reading.node_rank.is_none() => refuse(
            "the number of nodes is unknown, so several processes cannot get ranks; \
             set TRAINIT_NNODES and TRAINIT_NODE_RANK, or use torchrun instead",
        ),
        _ => Ok(asked),
    }
}

#[cfg(test)]
mod tests {
    use super::super::detect;
    use super::*;
    use crate::process::env::Env;

    #[test]
    fn explicit_values_win_over_the_source() {
        let tf_config = r#"{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}"#;
        let env = Env::from_pairs([("TF_CONFIG", tf_config)]);
        let asked = |nnodes: Option<&str>, node_rank: Option<&str>| {
            let explicit = |text: &str| Explicit { place: "a flag".to_owned(), text: text.to_owned() };
            let (nnodes, node_rank) = (nnodes.map(explicit), node_rank.map(explicit));
            let options = ClusterOptions { nnodes, node_rank, ..ClusterOptions::default() };
            let spec =
                detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job").spec.reading;
            (spec.num_nodes, spec.node_rank, spec.is_chief, spec.hosts.is_some(), spec.tf.is_some())
        };
        assert_eq!(asked(None, None), (Some(2), Some(1), false, true, true));
        assert_eq!(asked(Some("2"), Some("1")), (Some(2), Some(1), false, true, true), "the explicit value is equal");
        assert_eq!(asked(Some("3"), None), (Some(3), Some(1), false, false, false));
        assert_eq!(asked(None, Some("0")), (Some(2), Some(0), true, false, false));
    }

    /// The rendezvous port for processes of one node.
    fn port_alone(pairs: &[(&str, &str)], nproc: Option<u32>, free_port: Option<u16>) -> Option<u16> {
        let env = Env::from_pairs(pairs.iter().copied());
        let options = ClusterOptions { nproc: nproc.map(Nproc::Count), free_port, ..ClusterOptions::default() };
        let found = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
        found.spec.rendezvous.map(|address| address.port)
    }

    #[test]
    fn processes_of_one_node_meet_at_the_free_port_unless_a_port_is_given() {
        assert_eq!(port_alone(&[], Some(2), Some(4711)), Some(4711));
        assert_eq!(port_alone(&[], Some(2), None), Some(DEFAULT_PORT), "no free port was determined");
        assert_eq!(port_alone(&[("MASTER_PORT", "29501")], Some(2), Some(4711)), Some(29501));
        assert_eq!(port_alone(&[], None, Some(4711)), None);
        let of_one = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
        assert_eq!(port_alone(&of_one, Some(1), Some(4711)), Some(4711), "mpirun -n 1 gives no ranks");
        let nodes = [("NNODES", "2"), ("NODE_RANK", "1"), ("MASTER_ADDR", "a")];
        assert_eq!(port_alone(&nodes, Some(2), Some(4711)), Some(DEFAULT_PORT), "every node must know it");
    }

    #[test]
    fn two_launches_meet_at_different_ports() {
        let of = |rank: &str, launch: Option<&str>| {
            let process = [("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", "2")];
            let here = [("OMPI_COMM_WORLD_LOCAL_RANK", rank), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
            let launch = launch.map(|name| ("PMIX_NAMESPACE", name));
            port_alone(&process.into_iter().chain(here).chain(launch).collect::<Vec<_>>(), None, None)
        };
        assert_eq!(of("0", Some("603324417")), of("1", Some("603324417")));
        assert_ne!(of("0", Some("603324417")), of("0", Some("603455489")));
        assert!(of("0", Some("x")).is_some_and(|port| (25_000..29_000).contains(&port)));
        assert_eq!(of("0", None), Some(DEFAULT_PORT));
    }

    #[test]
    fn a_replica_with_a_rank_among_the_trainers_starts_as_many_processes() {
        let tf_config = r#"{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}}"#;
        let env = Env::from_pairs([("TF_CONFIG", tf_config)]);
        let here = |rank_all_pools| {
            let options = ClusterOptions { rank_all_pools, ..ClusterOptions::default() };
            let spec = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job").spec;
            process_count_here(Some(2), &spec).expect("a place")
        };
        assert_eq!((here(true), here(false)), (Some(2), None), "rank 1 is the worker's second process");
    }
}

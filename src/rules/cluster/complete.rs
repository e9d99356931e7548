//! From what a source says to the one model: the user's explicit values over it, the leader and its port found, and the
//! whole checked.
//!
//! Rendezvous port, first that is given: the explicit leader's, `MASTER_PORT`, `PET_MASTER_PORT`, the platform's, the one
//! in the leader's address, 29500.

use super::address::{Address, parse_host};
use super::input::{Input, address, count, rank};
use super::spec::{
    ClusterError, ClusterOptions, ClusterSpec, Explicit, Nproc, PlatformName, Reading, Warning, quote, role_of_rank,
};

const DEFAULT_PORT: u16 = 29_500;
const LOOPBACK: &str = "127.0.0.1";

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
        return Ok(ClusterSpec { said: reading, leader: leader.clone(), rendezvous: leader });
    }
    overrule(&mut reading, input)?;
    refuse_second_launcher(&reading, input)?;
    // A launcher's world of one places nobody: the processes that --nproc starts get ranks of their own.
    if process_count(input)?.is_some_and(|count| count > 1) {
        reading.process = None;
    }
    let several_nodes = reading.num_nodes.is_some_and(|n| n > 1);
    if !several_nodes && reading.process.is_none() {
        // What is unknown or alone needs nobody to dial; only --nproc has processes that must meet.
        let alone = reading.num_nodes == Some(1) && input.options.nproc.is_some();
        let own = reading.leader.platform_port.filter(|_| reading.traits.shares_nodes);
        let rendezvous = match explicit_leader(input)? {
            None if alone => Some(Address { host: LOOPBACK.to_owned(), port: port(own, input, None)? }),
            explicit => explicit.filter(|_| alone),
        };
        return Ok(ClusterSpec { said: reading, leader: None, rendezvous });
    }
    let leader = leader(&reading, input)?;
    if leader.is_none() && reading.process.is_none() {
        let way_out = match reading.leader_variable {
            "TRAINIT_LEADER" => "set it to HOST:PORT of node 0 on every node, or give --leader HOST:PORT",
            _ => "set it, or TRAINIT_LEADER=HOST:PORT on every node",
        };
        let message = format!(
            "is not set, and the job has {} nodes: nobody would know whom to dial; {way_out}",
            reading.num_nodes.unwrap_or(0)
        );
        return Err(ClusterError::new("missing_leader", reading.leader_variable, message));
    }
    if leader.is_none() {
        let message = "the address of rank 0 is not known, so MASTER_ADDR and related variables are not set \
                       (MPI and Horovod need none); if the program does, set TRAINIT_LEADER=HOST:PORT";
        warnings.push(Warning::new("leader_unknown", message));
    }
    let rendezvous = leader.clone().map(|leader| own_name(leader, &reading, input));
    Ok(ClusterSpec { said: reading, leader, rendezvous })
}

/// Behind a service name a pod may not reach itself: there, node rank 0 dials its own host name. What listens does so on
/// every interface, so nothing is lost.
fn own_name(leader: Address, reading: &Reading, input: &Input<'_>) -> Address {
    let leads = reading.traits.behind_services && reading.node_rank == Some(0) && !input.options.keep_leader_name;
    let name = input.options.hostname.as_deref().filter(|_| leads).and_then(|name| parse_host(name.trim()).ok());
    Address { host: name.unwrap_or(leader.host), port: leader.port }
}

/// Explicit values win over any source. What the source said of others then no longer holds.
fn overrule(reading: &mut Reading, input: &Input<'_>) -> Result<(), ClusterError> {
    let options = input.options;
    let nnodes = options.nnodes.as_ref().map(|e| count(&e.place, &e.text)).transpose()?;
    let node_rank = options.node_rank.as_ref().map(|e| rank(&e.place, &e.text)).transpose()?;
    let place = |explicit: &Option<Explicit>, name: &str| {
        explicit.as_ref().map_or_else(|| name.to_owned(), |e| e.place.clone())
    };
    let is_bare = reading.platform == PlatformName::NONE;
    if is_bare && node_rank.is_none() && nnodes.is_some_and(|n| n > 1) {
        let message = "is not set, though a number of nodes is: which of them is this? \
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

/// What is wrong with the explicit values, whatever any source says.
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
                "a launcher has started one trainit for each of {} processes already; leave --nproc away",
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
            None => input.host("PET_MASTER_ADDR")?,
        },
    };
    let host = host.or_else(|| (reading.num_nodes == Some(1)).then(|| LOOPBACK.to_owned()));
    let Some(host) = host else { return Ok(None) };
    Ok(Some(Address { host, port: port(reading.leader.platform_port, input, reading.leader.port)? }))
}

fn port(platform: Option<u16>, input: &Input<'_>, leader: Option<u16>) -> Result<u16, ClusterError> {
    for variable in ["MASTER_PORT", "PET_MASTER_PORT"] {
        if let Some(port) = input.port(variable)? {
            return Ok(port);
        }
    }
    Ok(platform.or(leader).unwrap_or(DEFAULT_PORT))
}

/// How many processes `--nproc` asks for. Errors: `bad_setting` where there is no GPU to count, `gpu_demand` where the
/// driver fails.
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
                "{} asks for one process a GPU, and there is none to be seen here; `trainit gpus` says why",
                quote("gpu")
            );
            Err(ClusterError::new("bad_setting", "--nproc", message))
        }
    }
}

/// How many of those are started on this replica: it has a place in a world. Errors: `bad_setting` where
/// several processes could not be told their ranks.
pub fn process_count_here(asked: Option<u32>, spec: &ClusterSpec) -> Result<Option<u32>, ClusterError> {
    let refuse = |why: &str| Err(ClusterError::new("bad_setting", "--nproc", why));
    match asked {
        Some(2..) if spec.said.hands_off => {
            refuse("this is a process of torchrun's already, with a rank of its own; leave --nproc away")
        }
        Some(_) if !spec.said.role.trains() && spec.said.node_rank.is_none() => Ok(None),
        Some(2..) if spec.said.num_nodes.is_none() || spec.said.node_rank.is_none() => refuse(
            "the number of nodes is not known, so several processes cannot be told their ranks; \
             set TRAINIT_NNODES and TRAINIT_NODE_RANK, or start torchrun instead",
        ),
        _ => Ok(asked),
    }
}

#[cfg(test)]
mod tests {
    use super::super::detect;
    use super::*;
    use crate::rules::env::Env;

    #[test]
    fn what_is_asked_for_of_the_cluster_outdoes_what_its_source_says_of_others() {
        let told = r#"{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}"#;
        let env = Env::from_pairs([("TF_CONFIG", told)]);
        let asked = |nnodes: Option<&str>, node_rank: Option<&str>| {
            let explicit = |text: &str| Explicit { place: "a flag".to_owned(), text: text.to_owned() };
            let (nnodes, node_rank) = (nnodes.map(explicit), node_rank.map(explicit));
            let options = ClusterOptions { nnodes, node_rank, ..ClusterOptions::default() };
            let spec =
                detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job").spec.said;
            (spec.num_nodes, spec.node_rank, spec.is_chief, spec.hosts.is_some(), spec.tf.is_some())
        };
        assert_eq!(asked(None, None), (Some(2), Some(1), false, true, true));
        assert_eq!(asked(Some("2"), Some("1")), (Some(2), Some(1), false, true, true), "it says the same");
        assert_eq!(asked(Some("3"), None), (Some(3), Some(1), false, false, false));
        assert_eq!(asked(None, Some("0")), (Some(2), Some(0), true, false, false));
    }

    #[test]
    fn a_replica_that_is_ranked_among_the_trainers_starts_as_many_processes_as_they_do() {
        let told = r#"{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}}"#;
        let env = Env::from_pairs([("TF_CONFIG", told)]);
        let here = |rank_all_pools| {
            let options = ClusterOptions { rank_all_pools, ..ClusterOptions::default() };
            let spec = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job").spec;
            process_count_here(Some(2), &spec).expect("a place")
        };
        assert_eq!((here(true), here(false)), (Some(2), None), "rank 1 is the worker's second process");
    }
}

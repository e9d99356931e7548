//! Slurm: `SLURM_JOB_ID`, `SLURM_PROCID`, `SLURM_NTASKS`. With as many tasks as nodes there is one trainit for each
//! node, with more tasks one for each process. The batch script has the variables of task 0 without being a task, so
//! nothing is derived there.

use std::collections::HashSet;

use crate::cluster::Platform;
use crate::cluster::first::First;
use crate::cluster::parse::hostlist;
use crate::cluster::parse::input::{Input, rank, within};
use crate::cluster::parse::pools::workers;
use crate::cluster::spec::{ClusterError, Leader, PlatformName, Process, Reading, Role, Traits, Warning, quote};
use crate::cluster::unread::signs::Signs;
use crate::cluster::written::{Job, Limit, Notice, Permanent, Replica, Restarts, Simulated, Success};
use crate::process::env::Env;
use crate::process::signal::Signal;

/// Lightning's rule for a port that jobs on one node do not share: this, plus the last four digits of the job id.
const PORT_BASE: u16 = 15_000;
/// The first port of TensorFlow's own Slurm resolver.
const TENSORFLOW_PORT: u16 = 8888;
/// The variables that list the nodes, best first: the step's before the job's.
const LISTS: [&str; 3] = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
/// The signals that users request before the time limit (`--signal=USR1@120`): passed on, and a reason to commit
/// complete checkpoints.
const CHECKPOINT: [Signal; 2] = [Signal::USR1, Signal::USR2];
/// Every task that srun started has one of these, in every version of Slurm; the batch script has none.
const STEP: [&str; 4] = ["SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS"];

const NAME: PlatformName = PlatformName("slurm");

pub(in crate::cluster) const SLURM: Platform = Platform {
    first: First::Rank(&[&["SLURM_PROCID"]]),
    simulated: Some(Simulated {
        name: NAME.0,
        write,
        other_roles: &[],
        restarts: Restarts { whole_job: true, limit: Limit::None, permanent: Permanent::All },
        success: Success::OfAll,
        notice: Notice::Signal,
    }),
    signs: &[
        Signs {
            launcher: "Slurm",
            counts: &["SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES", LISTS[0], LISTS[1], LISTS[2]],
            places: &["SLURM_PROCID", "SLURM_NODEID"],
            leaders: &LISTS,
            ..Signs::NODES
        },
        Signs {
            launcher: "Slurm",
            counts: &["SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE"],
            places: &["SLURM_PROCID", "SLURM_LOCALID"],
            leaders: &LISTS,
            ..Signs::PROCESSES
        },
    ],
    ..Platform::of(
        &[NAME],
        &[
            "SLURM_JOB_ID",
            "SLURM_PROCID",
            "SLURM_NTASKS",
            "SLURM_NNODES",
            "SLURM_JOB_NUM_NODES",
            "SLURM_NODEID",
            "SLURM_LOCALID",
            "SLURM_STEP_NODELIST",
            "SLURM_JOB_NODELIST",
            "SLURM_NODELIST",
            "SLURM_STEP_NUM_NODES",
            "SLURM_STEP_NUM_TASKS",
            "SLURM_STEP_TASKS_PER_NODE",
            "SLURMD_NODENAME",
        ],
        "SLURM_JOB_ID, SLURM_PROCID and SLURM_NTASKS, which srun sets",
        read,
    )
};

/// The variables of srun's task, one for each node. The port follows from the job's number.
fn write(job: &Job, replica: &Replica) -> Vec<(&'static str, String)> {
    let hosts = job.training_hosts();
    let (rank, nodes, list) = (job.rank(replica).to_string(), hosts.len().to_string(), hosts.join(","));
    vec![
        ("SLURM_JOB_ID", job.number.to_string()),
        ("SLURM_PROCID", rank.clone()),
        ("SLURM_NODEID", rank),
        ("SLURM_LOCALID", "0".to_owned()),
        ("SLURM_NTASKS", nodes.clone()),
        ("SLURM_NNODES", nodes.clone()),
        ("SLURM_JOB_NUM_NODES", nodes.clone()),
        ("SLURM_JOB_NODELIST", list.clone()),
        (STEP[0], "0".to_owned()),
        (STEP[3], nodes.clone()),
        ("SLURM_STEP_NUM_NODES", nodes.clone()),
        ("SLURM_STEP_TASKS_PER_NODE", format!("1(x{nodes})")),
        (LISTS[0], list),
        ("SLURMD_NODENAME", replica.address.host.clone()),
        ("SLURM_RESTART_COUNT", job.restarts.to_string()),
    ]
}

/// Reads the place of the task.
fn read(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let given = |name| input.env.given(name);
    let (Some(job), Some(id)) = (given("SLURM_JOB_ID"), given("SLURM_PROCID")) else { return Ok(None) };
    let said = match counted(input, "SLURM_STEP_NUM_NODES", "SLURM_NNODES")? {
        Some(nodes) => Some(nodes),
        None => input.count("SLURM_JOB_NUM_NODES")?,
    };
    let Some(tasks) = tasks(input, said)? else { return Ok(None) };
    let id = rank("SLURM_PROCID", id)?;
    within("SLURM_PROCID", id, "SLURM_NTASKS", tasks)?;
    if tasks > 1 && id == 0 && is_batch_script(input) {
        let message = format!(
            "this is Slurm's batch script, not one of the job's {tasks} tasks, so ranks and addresses are not set and the \
             command runs alone; start trainit with srun: srun trainit run -- COMMAND"
        );
        if input.options.platform == Some(NAME) {
            return Err(ClusterError::new("missing_task", STEP[0], format!("is not set: {message}")));
        }
        // A user that gives the place by flags needs no warning.
        let is_given = [&input.options.nnodes, &input.options.node_rank].into_iter().any(Option::is_some);
        warnings.extend((!is_given).then(|| Warning::new("batch_script", message)));
        return Ok(None);
    }
    let listed = hosts(input, said)?;
    let hosts = listed.as_ref().map(|listed| by_number(input, listed));
    let nodes = said.or(hosts.as_ref().map(|h| h.len() as u32)).unwrap_or(tasks);
    if tasks < nodes {
        let message =
            format!("{tasks} tasks cannot fill {nodes} nodes (SLURM_NNODES); start at least one task on each node");
        return Err(ClusterError::new("bad_cluster", "SLURM_NTASKS", message));
    }
    let (node_rank, process) = if tasks == nodes {
        (input.rank("SLURM_NODEID")?.unwrap_or(id), None)
    } else {
        let place = |node| place(input, listed.as_deref()?, hosts.as_deref()?.get(node as usize)?);
        let (node, process) = process(input, id, tasks, nodes, &place)?;
        (node, Some(process))
    };
    within("SLURM_NODEID", node_rank, "SLURM_NNODES", nodes)?;
    let hosts = match hosts.as_deref().and_then(|hosts| order_conflict(input, hosts, node_rank, process.as_ref())) {
        None => hosts,
        Some(_) if leader_is_said(input) => None,
        Some(message) => return Err(ClusterError::new("bad_hostlist", LISTS[0], message)),
    };
    Ok(Some(Reading {
        is_chief: process.as_ref().map_or(node_rank, |p| p.rank) == 0,
        process,
        launch: launch(input, job),
        leader: Leader { host: hosts.as_ref().and_then(|h| h.first().cloned()), platform_port: port(job), port: None },
        leader_variable: LISTS[0],
        tf: hosts.as_ref().map(|hosts| workers(hosts, TENSORFLOW_PORT, node_rank)),
        hosts,
        traits: Traits {
            checkpoint_signals: &CHECKPOINT,
            known_to_jax: true,
            shares_nodes: true,
            restarts_all: true,
            ..Traits::default()
        },
        ..Reading::of(NAME, Role::Worker, node_rank, nodes)
    }))
}

/// Whether this is a task of a step, for which Slurm gives the complete place.
pub(in crate::cluster) fn is_task(env: &Env) -> bool {
    let is_given = |name: &str| env.given(name).is_some();
    is_given("SLURM_JOB_ID") && is_given("SLURM_PROCID") && STEP.iter().any(|name| is_given(name))
}

/// Whether the place in these variables (rank, size, local rank if necessary) is that of srun's task.
pub(in crate::cluster) fn is_task_place(env: &Env, variables: &[&str]) -> bool {
    let number = |name: &str| env.given(name).and_then(|text| text.trim().parse::<u32>().ok());
    let is_in_step = ["SLURM_STEP_ID", LISTS[0]].iter().any(|name| env.given(name).is_some());
    let mut pairs = variables.iter().zip(["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"]);
    is_in_step && pairs.all(|(variable, slurms)| number(variable).is_some_and(|n| number(slurms) == Some(n)))
}

/// The first of the nodes that a launcher within the job fills in the order of the job's list. Only if this node's
/// position in the list matches its number: a user's own host file may have another order.
pub(in crate::cluster) fn leader(input: &Input<'_>, node: u32, nodes: u32) -> Option<Leader> {
    let given = |name| input.env.given(name);
    let hosts = hostlist::expand(LISTS[1..].iter().find_map(|name| given(name))?.trim()).ok()?;
    let own = hosts.get(node as usize)?;
    let short = |name: &str| name.split('.').next().map(str::to_owned);
    let is_own = given("SLURMD_NODENAME") == Some(own) || short(own) == short(input.options.hostname.as_deref()?);
    let is_it = nodes > 1 && hosts.len() == nodes as usize && is_own && !leader_is_said(input);
    let job = given("SLURM_JOB_ID").and_then(port);
    is_it.then(|| Leader { host: hosts.first().cloned(), platform_port: job, port: None })
}

/// The step of the job and its restart count: a requeued job keeps its id, and counts its steps from 0 again.
fn launch(input: &Input<'_>, job: &str) -> Option<String> {
    let given = |name| input.env.given(name);
    let (step, restarts) = (given(STEP[0]).or_else(|| given(STEP[1]))?, given("SLURM_RESTART_COUNT").unwrap_or("0"));
    Some(format!("{job}.{step}.{restarts}"))
}

/// The number of tasks that srun starts. sbatch sets it only on request; otherwise there is one task on each node.
fn tasks(input: &Input<'_>, nodes: Option<u32>) -> Result<Option<u32>, ClusterError> {
    let tasks = counted(input, STEP[3], "SLURM_NTASKS")?;
    Ok(tasks.or(nodes.filter(|_| is_batch_script(input))))
}

/// The step's value if there is one: salloc's shell runs in a step with one task, but has the variables of the whole
/// job.
fn counted(input: &Input<'_>, of_step: &str, of_job: &str) -> Result<Option<u32>, ClusterError> {
    let is_in_step = input.env.given(LISTS[0]).is_some();
    match if is_in_step { input.count(of_step)? } else { None } {
        Some(count) => Ok(Some(count)),
        None => input.count(of_job),
    }
}

fn is_batch_script(input: &Input<'_>) -> bool {
    input.env.given("ENVIRONMENT") == Some("BATCH") && STEP.iter().all(|name| input.env.given(name).is_none())
}

fn hosts(input: &Input<'_>, nodes: Option<u32>) -> Result<Option<Vec<String>>, ClusterError> {
    let Some((name, list)) = LISTS.iter().find_map(|name| Some((*name, input.env.given(name)?))) else {
        return Ok(None);
    };
    let bad = |message: String| ClusterError::new("bad_hostlist", name, message);
    let hosts = hostlist::expand(list.trim())
        .map_err(|what| bad(format!("{what}; expected a list as scontrol show hostnames reads it")))?;
    match nodes {
        Some(nodes) if nodes as usize != hosts.len() => {
            let message = format!("{} names {} hosts, but SLURM_NNODES is {nodes}", quote(list), hosts.len());
            Err(bad(message))
        }
        _ => Ok(Some(hosts)),
    }
}

/// The hosts in the order of the node numbers: Slurm sorts the list of a step, but numbers the nodes of a heterogeneous
/// step by component.
fn by_number(input: &Input<'_>, sorted: &[String]) -> Vec<String> {
    let component = |n: u32| input.env.given(&format!("SLURM_JOB_NODELIST_HET_GROUP_{n}"));
    let lists = (0..).map_while(component).filter_map(|list| hostlist::expand(list.trim()).ok());
    let in_step: HashSet<&String> = sorted.iter().collect();
    let counted: Vec<String> = lists.flatten().filter(|host| in_step.contains(host)).collect();
    let is_all = counted.len() == sorted.len() && counted.iter().collect::<HashSet<_>>() == in_step;
    if is_all { counted } else { sorted.to_vec() }
}

/// The position of this node in the step's own list, whose order numbers the tasks.
fn place(input: &Input<'_>, listed: &[String], name: &str) -> Option<u32> {
    let at = |name| Some(listed.iter().position(|host| host == name)? as u32);
    input.env.given("SLURMD_NODENAME").and_then(at).or_else(|| at(name))
}

/// Why the first host of the list does not run rank 0, if this task can tell.
fn order_conflict(input: &Input<'_>, hosts: &[String], node: u32, process: Option<&Process>) -> Option<String> {
    let way_out =
        "so the address of rank 0 is unknown; give --leader HOST:PORT, the host of rank 0, or set MASTER_ADDR";
    if process.is_some_and(|process| process.rank == 0) && node > 0 {
        return Some(format!("begins with {}, but rank 0 is on node {node} (--distribution), {way_out}", hosts[0]));
    }
    let (name, _) = (input.env.given("SLURMD_NODENAME")?, input.env.given("SLURM_NODEID")?);
    let at = hosts.iter().position(|host| host == name)?;
    (at != node as usize).then(|| {
        format!(
            "has {name} as node {at}, but SLURM_NODEID counts it as node {node}: srun's components are not in the \
             order of their names, {way_out}; or start them from one batch script (#SBATCH hetjob)"
        )
    })
}

fn leader_is_said(input: &Input<'_>) -> bool {
    let given = |name| input.env.given(name).is_some();
    input.options.leader.is_some() || given("MASTER_ADDR") || given("PET_MASTER_ADDR")
}

/// The place in the node and in the world, with one trainit for each process.
fn process(
    input: &Input<'_>,
    rank: u32,
    tasks: u32,
    nodes: u32,
    place: &dyn Fn(u32) -> Option<u32>,
) -> Result<(u32, Process), ClusterError> {
    let missing = |variable: &str| {
        let message = "is not set, but there are more tasks than nodes; start trainit with srun";
        ClusterError::new("missing_task", variable, message)
    };
    let node = input.rank("SLURM_NODEID")?.ok_or_else(|| missing("SLURM_NODEID"))?;
    let local_rank = input.rank("SLURM_LOCALID")?.ok_or_else(|| missing("SLURM_LOCALID"))?;
    let local_size = match (input.env.given("SLURM_STEP_TASKS_PER_NODE"), tasks % nodes) {
        (Some(text), _) => {
            let place = place(node).unwrap_or(node);
            Some(tasks_of_node("SLURM_STEP_TASKS_PER_NODE", text, place, nodes, tasks)?)
        }
        (None, 0) => Some(tasks / nodes),
        (None, _) => None,
    };
    if let Some(size) = local_size {
        within("SLURM_LOCALID", local_rank, "SLURM_STEP_TASKS_PER_NODE", size)?;
    }
    Ok((node, Process { local_rank: Some(local_rank), local_size, rank, world: tasks, node_guessed: false }))
}

/// The entry at an index of a list such as `4(x2),1`. Errors: `bad_cluster`.
fn tasks_of_node(variable: &str, text: &str, node: u32, nodes: u32, all: u32) -> Result<u32, ClusterError> {
    let bad = || {
        let message =
            format!("expected tasks for each of {nodes} nodes, {all} in all, such as 4(x2),1, found {}", quote(text));
        ClusterError::new("bad_cluster", variable, message)
    };
    let (mut found, mut counted, mut summed) = (None, 0u64, 0u64);
    for item in text.trim().split(',') {
        let (tasks, times) = match item.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')').ok_or_else(bad)?),
            None => (item, "1"),
        };
        let tasks: u32 = tasks.trim().parse().map_err(|_| bad())?;
        let times: u32 = times.trim().parse().map_err(|_| bad())?;
        counted += u64::from(times);
        summed = summed.saturating_add(u64::from(tasks) * u64::from(times));
        if found.is_none() && u64::from(node) < counted {
            found = Some(tasks);
        }
    }
    let is_right = counted == u64::from(nodes) && summed == u64::from(all);
    found.filter(|tasks| *tasks > 0 && is_right).ok_or_else(bad)
}

fn port(job: &str) -> Option<u16> {
    let job = job.trim();
    let digits = job.bytes().all(|b| b.is_ascii_digit());
    let last = job.get(job.len().saturating_sub(4)..)?.parse::<u16>().ok()?;
    digits.then_some(PORT_BASE + last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_outside_the_ephemeral_range() {
        assert_eq!((port("4242"), port("7"), port("1234567")), (Some(19242), Some(15007), Some(19567)));
        assert_eq!((port(""), port("x1"), port("12é")), (None, None, None));
    }

    #[test]
    fn tasks_are_processes_of_their_nodes_and_fewer_tasks_than_nodes_are_refused() {
        let placed = |tasks: &str, nodes: &str| {
            let own = [("SLURM_NTASKS", tasks), ("SLURM_NNODES", nodes), ("SLURM_PROCID", "1"), ("SLURM_NODEID", "0")];
            let list = format!("gpu[1-{nodes}]");
            let step = [("SLURM_JOB_ID", "42"), ("SLURM_LOCALID", "1"), ("SLURM_STEP_NODELIST", &list)];
            let env = crate::process::env::Env::from_pairs(own.into_iter().chain(step));
            let options = crate::cluster::spec::ClusterOptions::default();
            let found = crate::cluster::detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]);
            let process = found.map_err(|error| error.code)?.spec.reading.process.expect("a process");
            Ok((process.local_rank.expect("a place"), process.local_size, process.rank, process.world))
        };
        assert_eq!(placed("8", "2"), Ok((1, Some(4), 1, 8)));
        assert_eq!(placed("3", "2"), Ok((1, None, 1, 3)), "the number of processes on this node is unknown");
        assert_eq!(placed("3", "4"), Err("bad_cluster"));
    }

    #[test]
    fn the_shell_of_salloc_is_its_own_single_task() {
        let job = [("SLURM_JOB_ID", "42"), ("SLURM_NTASKS", "4"), ("SLURM_NNODES", "2"), ("SLURM_PROCID", "0")];
        let step = [("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_STEP_NUM_NODES", "1"), ("SLURM_STEP_NODELIST", "gpu-n1")];
        let of_one = [("SLURM_NODEID", "0"), ("SLURM_LOCALID", "0"), ("SLURM_STEP_TASKS_PER_NODE", "1")];
        let env = crate::process::env::Env::from_pairs(job.into_iter().chain(step).chain(of_one));
        let options = crate::cluster::spec::ClusterOptions::default();
        let found = crate::cluster::detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]);
        let said = found.expect("a task").spec.reading;
        assert_eq!((said.num_nodes, said.node_rank, said.process.is_none()), (Some(1), Some(0), true));
    }

    #[test]
    fn the_tasks_of_each_node_are_counted_through_the_repeats() {
        let of = |node| tasks_of_node("X", "4(x2),1", node, 3, 9).map_err(|e| e.code);
        assert_eq!([of(0), of(1), of(2), of(3)], [Ok(4), Ok(4), Ok(1), Err("bad_cluster")]);
        for text in ["", "4(x", "4(x2", "a", "4,,1", "0", "4(x2)", "3", "4(x9)"] {
            assert!(tasks_of_node("X", text, 0, 1, 4).is_err(), "{text}");
        }
    }
}

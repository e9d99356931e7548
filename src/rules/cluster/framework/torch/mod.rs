//! torch: `env://` (`MASTER_*`, `RANK`, `WORLD_SIZE`) and torchrun's `PET_*`.
//!
//! Node mode has no `LOCAL_*` and no `GROUP_RANK`: with them Lightning would expect that a launcher starts the
//! processes, and would use one GPU. Process mode has no `PET_*`: with them a torchrun in the command would start
//! further processes. The rendezvous is torchrun's static one, so that its ranks are trainit's.

pub mod flight_recorder;

use std::ffi::OsString;
use std::path::Path;

use super::vars::{Context, Derived, Group, Precedence};
use super::{Framework, Resolved};
use crate::cluster::parse::address::bracketed;
use crate::cluster::spec::{ClusterSpec, Process, Warning};
use crate::process::env::Env;

pub(super) const TORCH: Framework = Framework {
    start_warning: |resolved, env, command| {
        started_once(resolved, env, command).or_else(|| starts_another_job(resolved, command))
    },
    ..Framework::of("torch", &["NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"], derive)
};

/// The rendezvous of torchrun, and the one in which a node has the rank that it is given.
const BACKEND: &str = "PET_RDZV_BACKEND";
const STATIC: &str = "static";

/// The variables of this process or node.
fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    let Some(group) = context.group() else {
        derived.warnings.extend(elastic_ranks(context));
        return derived;
    };
    if let Some(rendezvous) = group.rendezvous {
        derived.put("MASTER_ADDR", &rendezvous.host, context.leader_precedence(|leader| leader.host.clone()));
        derived.put("MASTER_PORT", rendezvous.port, context.port_precedence());
    }
    derived.put("RANK", group.rank, context.rank_precedence());
    let world = match context.world_precedence() {
        Precedence::Preset if counts_processes(context.spec, context.env).is_some() => Precedence::IfUnset,
        precedence => precedence,
    };
    derived.put("WORLD_SIZE", group.world, world);
    if !group.process.is_some_and(|process| process.node_guessed) {
        derived.put("NODE_RANK", group.node_rank, context.rank_precedence());
    }
    match group.process {
        Some(_) => derive_process(context, &group, &mut derived),
        None => derive_node(context, &group, &mut derived),
    }
    derived
}

/// torchrun's rendezvous, if it is one that gives nodes their ranks itself (`c10d`, `etcd`).
fn own_rendezvous(context: &Context<'_>) -> Option<String> {
    let backend = context.env.given(BACKEND)?.trim();
    (!backend.eq_ignore_ascii_case(STATIC)).then(|| backend.to_owned())
}

/// The warning for a number of nodes that may change: torchrun's ranks cannot be made those of trainit.
fn elastic_ranks(context: &Context<'_>) -> Option<Warning> {
    let reading = &context.spec.reading;
    let backend = own_rendezvous(context).filter(|_| reading.num_nodes.is_none() && reading.node_rank.is_some())?;
    let message = format!(
        "{BACKEND} is {backend} and the number of nodes may change, so torchrun gives ranks itself: trainit's rank, the prefix in \
         its checkpoint store and its place in a gang may be another node's; give a fixed number of nodes (PET_NNODES=N)"
    );
    Some(Warning::new("elastic_ranks", message))
}

/// The number of processes on a node, if `WORLD_SIZE` counts processes although `RANK` is the node's, as PyTorchJob
/// sets them. torchrun overwrites both for its workers, and a program that starts the processes itself may use
/// `WORLD_SIZE`.
fn counts_processes(spec: &ClusterSpec, env: &Env) -> Option<u32> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let (procs, nodes) = (number(spec.reading.procs_per_node.as_deref()?)?, spec.reading.num_nodes?);
    let is_all = env.given("PET_NNODES").is_some() && number(env.given("WORLD_SIZE")?) == procs.checked_mul(nodes);
    (is_all && procs > 1 && spec.reading.process.is_none()).then_some(procs)
}

/// The warning for a Python program that is started once on each node of a job with several processes on each: it would
/// wait for ranks that are never started. torchrun or a script would start them.
fn started_once(resolved: &Resolved, env: &Env, command: &[OsString]) -> Option<Warning> {
    let launch = resolved.launches.first().filter(|launch| launch.process.is_none())?;
    let procs = counts_processes(&resolved.spec, env).filter(|_| !launch.changes.set.contains_key("WORLD_SIZE"))?;
    let (program, arguments) = command.split_first()?;
    let program = Path::new(program).file_name()?.to_str()?;
    // For example `python -m torch.distributed.run`.
    let is_module = arguments.iter().any(|argument| argument == "-m");
    if !program.starts_with("python") || is_module {
        return None;
    }
    let message = format!(
        "WORLD_SIZE counts {procs} processes a node and {program} is started once: init_process_group() would wait for ranks \
         that are never started, unless the program starts them itself; use torchrun, or trainit run --nproc {procs}"
    );
    Some(Warning::new("env_conflict", message))
}

/// Launchers that do not take the place of the node from torch's variables: the flags that give it, and what happens
/// without them.
const OTHER_LAUNCHERS: [(&str, &[&str], &str); 2] = [
    (
        "composer",
        &["--world_size"],
        "reads WORLD_SIZE, here the number of nodes, as the number of processes: give it --world_size with the number of \
         processes on all nodes",
    ),
    (
        "deepspeed",
        &["--hostfile", "-H", "--no_ssh"],
        "starts a job of this node alone, whatever RANK and WORLD_SIZE say: give it --hostfile, --no_ssh, --node_rank and \
         --master_addr on every node",
    ),
];

/// The warning for a launcher that would not form one job of all nodes.
fn starts_another_job(resolved: &Resolved, command: &[OsString]) -> Option<Warning> {
    let launch = resolved.launches.first().filter(|launch| launch.process.is_none())?;
    launch.changes.set.get("WORLD_SIZE")?;
    let is_name = |argument: &OsString, name| Path::new(argument).file_name().is_some_and(|file| file == name);
    // For example `composer …` and `python -m composer …`.
    let starts = |name| {
        let is_module = command.windows(2).any(|pair| pair[0] == "-m" && pair[1] == name);
        is_module || command.first().is_some_and(|program| is_name(program, name))
    };
    let (name, flags, mistake) = OTHER_LAUNCHERS.into_iter().find(|(name, ..)| starts(*name))?;
    let is_flag = |argument: &OsString| {
        argument.to_str().and_then(|text| text.split('=').next()).is_some_and(|text| flags.contains(&text))
    };
    let message = format!("{name} {mistake}, or use trainit run --nproc N instead of it");
    (!command.iter().any(is_flag)).then(|| Warning::new("env_conflict", message))
}

/// The warning if the platform gives another number of processes than `--nproc` starts. Ranks are calculated as if
/// every node started the same number.
fn unequal(context: &Context<'_>, process: &Process, nodes: u32) -> Option<Warning> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let is_started_here = context.spec.reading.process.is_none() && nodes > 1;
    let count = process.local_size.filter(|_| is_started_here)?;
    let a_node = context.spec.reading.procs_per_node.as_deref().and_then(number).filter(|stated| *stated != count);
    let is_other = |world: &u32| *world > nodes && *world != process.world;
    let world = context.env.given("WORLD_SIZE").and_then(number).filter(is_other);
    let stated = match (a_node, world) {
        (_, Some(world)) => format!("WORLD_SIZE says {world} in all"),
        (Some(a_node), None) => format!("the platform says {a_node} on each node"),
        (None, None) => return None,
    };
    let message = format!(
        "--nproc starts {count} processes here, and with the same number on each of {nodes} nodes the world is {}, but {stated}: if \
         nodes have different numbers of GPUs, ranks would collide; give --nproc the same number on every node, the smallest",
        process.world
    );
    Some(Warning::new("unequal_nodes", message))
}

fn derive_node(context: &Context<'_>, group: &Group<'_>, derived: &mut Derived) {
    derived.put("PET_NNODES", group.num_nodes, context.world_precedence());
    derived.put("PET_NODE_RANK", group.node_rank, context.rank_precedence());
    if let Some(rendezvous) = group.rendezvous {
        derived.put(
            "PET_MASTER_ADDR",
            bracketed(&rendezvous.host),
            context.leader_precedence(|leader| bracketed(&leader.host)),
        );
        derived.put("PET_MASTER_PORT", rendezvous.port, context.port_precedence());
    }
    if own_rendezvous(context).is_some() {
        derived.put(BACKEND, STATIC, Precedence::Derived);
        // The static rendezvous would prefer it to the leader's address.
        derived.removed.push("PET_RDZV_ENDPOINT".to_owned());
    }
    if let Some(procs) = &context.spec.reading.procs_per_node {
        derived.put("PET_NPROC_PER_NODE", procs, Precedence::IfUnset);
    }
}

fn derive_process(context: &Context<'_>, group: &Group<'_>, derived: &mut Derived) {
    let Some(process) = group.process else { return };
    derived.warnings.extend(unequal(context, process, group.num_nodes));
    derived.put_if("LOCAL_RANK", process.local_rank, Precedence::Derived);
    if !process.node_guessed {
        derived.put("GROUP_RANK", group.node_rank, Precedence::Derived);
        derived.put("GROUP_WORLD_SIZE", group.num_nodes, Precedence::Derived);
    }
    if let Some(size) = process.local_size {
        derived.put("LOCAL_WORLD_SIZE", size, Precedence::Derived);
        if size > 1 && context.options.cores > 0 {
            derived.put("OMP_NUM_THREADS", (context.options.cores / size).max(1), Precedence::IfUnset);
        }
    }
    // Lightning treats every process below Slurm as its task, whatever other variables say.
    let is_started_here = context.spec.reading.process.is_none() && process.world > group.num_nodes;
    derived.removed.extend(is_started_here.then(|| "SLURM_NTASKS".to_owned()));
    let presets = context.env.iter().map(|(name, _)| name).filter(|name| name.starts_with("PET_"));
    derived.removed.extend(presets.map(str::to_owned));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::framework::resolve;
    use crate::cluster::parse::input::Input;
    use crate::cluster::spec::{ClusterOptions, Nproc};

    fn warning_of(world: &str, nproc: Option<u32>, command: &[&str]) -> Option<String> {
        let operators = [
            ("PET_NNODES", "2"),
            ("PET_NODE_RANK", "1"),
            ("PET_NPROC_PER_NODE", "4"),
            ("RANK", "1"),
            ("WORLD_SIZE", world),
            ("MASTER_ADDR", "m"),
        ];
        let env = Env::from_pairs(operators);
        let options = ClusterOptions { nproc: nproc.map(Nproc::Count), ..ClusterOptions::default() };
        let resolved = resolve(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
        started_once(&resolved, &env, &command.iter().map(OsString::from).collect::<Vec<_>>())
            .map(|warning| warning.message)
    }

    #[test]
    fn a_program_started_once_for_a_world_of_processes_causes_a_warning_with_advice() {
        let message = warning_of("8", None, &["/usr/bin/python3", "train.py"]).expect("a warning");
        assert!(message.contains("torchrun, or trainit run --nproc 4"), "{message}");
    }

    #[test]
    fn the_processes_of_a_node_share_its_processors_unless_set_and_one_is_the_chief() {
        let threads = |cores, preset: Option<&str>| {
            let env = Env::from_pairs(preset.map(|threads| ("OMP_NUM_THREADS", threads)));
            let options = ClusterOptions { nproc: Some(Nproc::Count(2)), cores, ..ClusterOptions::default() };
            let resolved = resolve(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
            assert_eq!(resolved.launches.iter().map(|l| l.is_chief).collect::<Vec<_>>(), [true, false]);
            resolved.launches[1].changes.set.get("OMP_NUM_THREADS").cloned()
        };
        assert_eq!([threads(16, None), threads(1, None)], [Some("8".to_owned()), Some("1".to_owned())]);
        assert_eq!([threads(16, Some("3")), threads(0, None)], [None, None]);
    }

    #[test]
    fn slurms_variables_are_removed_only_from_processes_that_are_not_its_tasks() {
        let removed = |nproc: Option<u32>, tasks| {
            let of_step =
                [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", tasks), ("SLURM_NNODES", "1")];
            let env = Env::from_pairs(of_step.into_iter().chain([("SLURM_NODEID", "0"), ("SLURM_LOCALID", "0")]));
            let options = ClusterOptions { nproc: nproc.map(Nproc::Count), ..ClusterOptions::default() };
            let resolved = resolve(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
            resolved.launches.iter().all(|launch| launch.changes.removed.contains("SLURM_NTASKS"))
        };
        assert!(removed(Some(2), "1"));
        assert!(!removed(Some(1), "1") && !removed(None, "1") && !removed(None, "2"));
    }

    #[test]
    fn a_launcher_that_counts_processes_causes_a_warning() {
        let warning_of = |command: &[&str]| {
            let env = Env::from_pairs([("NNODES", "2"), ("NODE_RANK", "1"), ("MASTER_ADDR", "m")]);
            let options = ClusterOptions::default();
            let resolved = resolve(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
            starts_another_job(&resolved, &command.iter().map(OsString::from).collect::<Vec<_>>())
        };
        for command in [&["/opt/bin/composer", "train.py"][..], &["python3", "-m", "composer", "train.py"]] {
            let message = warning_of(command).expect("a warning").message;
            assert!(message.contains("--world_size"), "{message}");
        }
        let message = warning_of(&["deepspeed", "train.py"]).expect("a warning").message;
        assert!(message.contains("--no_ssh"), "{message}");
        assert_eq!(warning_of(&["deepspeed", "--hostfile=h", "--no_ssh", "train.py"]), None);
        for command in
            [&["composer", "--world_size", "16", "train.py"][..], &["composer", "--world_size=16"], &["torchrun"]]
        {
            assert_eq!(warning_of(command), None);
        }
    }

    #[test]
    fn unequal_numbers_of_processes_cause_a_warning_if_they_are_known() {
        let warned = |pairs: &[(&str, &str)], nproc| {
            let nodes = [("NNODES", "2"), ("NODE_RANK", "0"), ("MASTER_ADDR", "m")];
            let env = Env::from_pairs(nodes.iter().chain(pairs).copied());
            let options = ClusterOptions { nproc: Some(Nproc::Count(nproc)), ..ClusterOptions::default() };
            let resolved = resolve(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
            resolved.warnings.into_iter().map(|warning| warning.code).collect::<Vec<_>>()
        };
        assert_eq!(warned(&[("NPROC_PER_NODE", "8")], 4), ["unequal_nodes"]);
        assert_eq!(warned(&[("WORLD_SIZE", "12")], 8), ["unequal_nodes"]);
        for same in [
            &[("NPROC_PER_NODE", "8")][..],
            &[("NPROC_PER_NODE", "gpu")],
            &[("WORLD_SIZE", "16")],
            &[("WORLD_SIZE", "2")],
        ] {
            assert!(warned(same, 8).is_empty(), "{same:?}");
        }
    }

    #[test]
    fn a_command_that_starts_the_processes_causes_no_warning() {
        assert_eq!(warning_of("8", None, &["torchrun", "train.py"]), None);
        assert_eq!(warning_of("8", None, &["python", "-m", "torch.distributed.run", "train.py"]), None);
        assert_eq!(warning_of("8", Some(4), &["python", "train.py"]), None);
        assert_eq!(warning_of("2", None, &["python", "train.py"]), None);
    }
}

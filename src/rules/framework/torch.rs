//! torch: `env://` (`MASTER_*`, `RANK`, `WORLD_SIZE`) and torchrun's `PET_*`.
//!
//! Node mode has no `LOCAL_*` and no `GROUP_RANK`: Lightning would believe that somebody else starts the processes, and
//! use one GPU. Process mode has no `PET_*`: a torchrun below would multiply. Rendezvous is torchrun's static one, so
//! that its ranks are ours.

use super::Framework;
use std::ffi::OsString;
use std::path::Path;

use super::Resolved;
use super::vars::{Claim, Context, Derived, Group};
use crate::rules::cluster::address::bracketed;
use crate::rules::cluster::spec::{ClusterSpec, Warning};
use crate::rules::env::Env;

pub(super) const TORCH: Framework = Framework {
    odd_start: started_once,
    ..Framework::of("torch", &["NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"], derive)
};

/// The variables of this process or node.
fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    let Some(group) = context.group() else { return derived };
    if let Some(rendezvous) = group.rendezvous {
        derived.put("MASTER_ADDR", &rendezvous.host, context.of_leader(|leader| leader.host.clone()));
        derived.put("MASTER_PORT", rendezvous.port, context.of_port());
    }
    derived.put("RANK", group.rank, context.of_rank());
    let world = match context.of_world() {
        Claim::Preset if counts_processes(context.spec, context.env).is_some() => Claim::IfUnset,
        claim => claim,
    };
    derived.put("WORLD_SIZE", group.world, world);
    if !group.process.is_some_and(|process| process.node_guessed) {
        derived.put("NODE_RANK", group.node_rank, context.of_rank());
    }
    match group.process {
        Some(_) => of_process(context, &group, &mut derived),
        None => of_node(context, &group, &mut derived),
    }
    derived
}

/// How many processes a node has, where `WORLD_SIZE` counts them all though `RANK` is the node's: so PyTorchJob has it. torchrun
/// gives its workers both anew, and who starts processes alone may go by it.
fn counts_processes(spec: &ClusterSpec, env: &Env) -> Option<u32> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let (procs, nodes) = (number(spec.said.procs_per_node.as_deref()?)?, spec.said.num_nodes?);
    let is_all = env.given("PET_NNODES").is_some() && number(env.given("WORLD_SIZE")?) == procs.checked_mul(nodes);
    (is_all && procs > 1 && spec.said.process.is_none()).then_some(procs)
}

/// What to tell of a Python program that is started once a node where the job is to have several processes there: it would
/// wait for ranks that nobody starts. Others start them (torchrun, a script).
fn started_once(resolved: &Resolved, env: &Env, command: &[OsString]) -> Option<Warning> {
    let launch = resolved.launches.first().filter(|launch| launch.process.is_none())?;
    let procs = counts_processes(&resolved.spec, env).filter(|_| !launch.changes.set.contains_key("WORLD_SIZE"))?;
    let (program, arguments) = command.split_first()?;
    let program = Path::new(program).file_name()?.to_str()?;
    // As in `python -m torch.distributed.run`.
    let is_module = arguments.iter().any(|argument| argument == "-m");
    if !program.starts_with("python") || is_module {
        return None;
    }
    let message = format!(
        "WORLD_SIZE counts {procs} processes a node and {program} is started once: init_process_group() would wait for ranks that \
         nobody starts, unless the program starts them itself; use torchrun, or trainit run --nproc {procs}"
    );
    Some(Warning::new("env_conflict", message))
}

fn of_node(context: &Context<'_>, group: &Group<'_>, derived: &mut Derived) {
    derived.put("PET_NNODES", group.num_nodes, context.of_world());
    derived.put("PET_NODE_RANK", group.node_rank, context.of_rank());
    if let Some(rendezvous) = group.rendezvous {
        derived.put(
            "PET_MASTER_ADDR",
            bracketed(&rendezvous.host),
            context.of_leader(|leader| bracketed(&leader.host)),
        );
        derived.put("PET_MASTER_PORT", rendezvous.port, context.of_port());
    }
    if let Some(procs) = &context.spec.said.procs_per_node {
        derived.put("PET_NPROC_PER_NODE", procs, Claim::IfUnset);
    }
}

fn of_process(context: &Context<'_>, group: &Group<'_>, derived: &mut Derived) {
    let Some(process) = group.process else { return };
    derived.put("LOCAL_RANK", process.local_rank, Claim::Ours);
    if !process.node_guessed {
        derived.put("GROUP_RANK", group.node_rank, Claim::Ours);
        derived.put("GROUP_WORLD_SIZE", group.num_nodes, Claim::Ours);
    }
    if let Some(size) = process.local_size {
        derived.put("LOCAL_WORLD_SIZE", size, Claim::Ours);
        if size > 1 && context.options.cores > 0 {
            derived.put("OMP_NUM_THREADS", (context.options.cores / size).max(1), Claim::IfUnset);
        }
    }
    // Lightning takes every process below Slurm for that of its task, whatever else it is told.
    let is_ours = context.spec.said.process.is_none() && process.world > group.num_nodes;
    derived.removed.extend(is_ours.then(|| "SLURM_NTASKS".to_owned()));
    let presets = context.env.iter().map(|(name, _)| name).filter(|name| name.starts_with("PET_"));
    derived.removed.extend(presets.map(str::to_owned));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::cluster::input::Input;
    use crate::rules::cluster::spec::{ClusterOptions, Nproc};
    use crate::rules::framework::resolve;

    fn told(world: &str, nproc: Option<u32>, command: &[&str]) -> Option<String> {
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
    fn a_program_started_once_for_a_world_of_processes_is_told_how_to_start_them() {
        let message = told("8", None, &["/usr/bin/python3", "train.py"]).expect("a warning");
        assert!(message.contains("torchrun, or trainit run --nproc 4"), "{message}");
    }

    #[test]
    fn the_processes_of_a_node_share_its_processors_unless_somebody_said_otherwise_and_one_is_the_chief() {
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
    fn only_processes_that_are_no_tasks_of_slurms_are_not_told_of_its_tasks() {
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
    fn who_starts_the_processes_is_told_nothing() {
        assert_eq!(told("8", None, &["torchrun", "train.py"]), None);
        assert_eq!(told("8", None, &["python", "-m", "torch.distributed.run", "train.py"]), None);
        assert_eq!(told("8", Some(4), &["python", "train.py"]), None);
        assert_eq!(told("2", None, &["python", "train.py"]), None);
    }
}

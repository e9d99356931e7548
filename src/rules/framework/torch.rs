//! torch: `env://` (`MASTER_*`, `RANK`, `WORLD_SIZE`) and torchrun's `PET_*` (contracts/cluster-environment.md sections
//! 3.2, 3.3).
//!
//! Node mode has no `LOCAL_*` and no `GROUP_RANK`: Lightning would believe that somebody else starts the processes, and
//! use one GPU. Process mode has no `PET_*`: a torchrun below would multiply. Rendezvous is torchrun's static one, so
//! that its ranks are ours.

use super::vars::{Claim, Context, Derived, Group};
use crate::rules::cluster::address::bracketed;

/// The variables of this process or node.
pub fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    let Some(group) = context.group() else { return derived };
    if let Some(rendezvous) = group.rendezvous {
        derived.put("MASTER_ADDR", &rendezvous.host, context.of_leader(|leader| leader.host.clone()));
        derived.put("MASTER_PORT", rendezvous.port, context.of_port());
    }
    derived.put("RANK", group.rank, context.of_rank());
    derived.put("WORLD_SIZE", group.world, context.of_world());
    if !group.process.is_some_and(|process| process.node_guessed) {
        derived.put("NODE_RANK", group.node_rank, context.of_rank());
    }
    match group.process {
        Some(_) => of_process(context, &group, &mut derived),
        None => of_node(context, &group, &mut derived),
    }
    derived
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
    if let Some(procs) = &context.spec.procs_per_node {
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
    let presets = context.env.iter().map(|(name, _)| name).filter(|name| name.starts_with("PET_"));
    derived.removed.extend(presets.map(str::to_owned));
}

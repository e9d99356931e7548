//! What launchers that start one trainit for each process (mpirun, mpiexec) have in common: they number processes, and nodes
//! only where ranks are packed.

use super::input::{Input, rank, within};
use super::spec::{ClusterError, Leader, PlatformName, Process, Reading, Warning, role_of_rank};

/// The variables in which an MPI launcher tells a process its place.
pub(super) struct Names {
    /// In the world.
    pub rank: &'static str,
    /// Of the world.
    pub size: &'static str,
    /// On its node.
    pub local_rank: &'static str,
    /// Of those on its node.
    pub local_size: &'static str,
}

/// The place as these variables tell it; the leader is not known.
pub(super) fn place(
    platform: PlatformName,
    names: &Names,
    input: &Input<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<Option<Reading>, ClusterError> {
    let Some(own) = input.env.given(names.rank) else { return Ok(None) };
    let Some(world) = input.count(names.size)? else { return Ok(None) };
    let rank = rank(names.rank, own)?;
    within(names.rank, rank, names.size, world)?;
    let size = input.count(names.local_size)?.unwrap_or(1).min(world);
    let local_rank = input.rank(names.local_rank)?.unwrap_or(rank % size);
    within(names.local_rank, local_rank, names.local_size, size)?;
    let is_said = input.options.nnodes.is_some() && input.options.node_rank.is_some();
    let is_packed = size == world || (world.is_multiple_of(size) && rank % size == local_rank);
    let node_guessed = !is_said && !is_packed;
    if node_guessed {
        let message = format!(
            "{}: rank {rank} of {world}, {local_rank} of {size} on its node, is not packed node by node, so \
             NODE_RANK, GROUP_RANK and GROUP_WORLD_SIZE are not set (RANK and LOCAL_RANK are right); if the program reads \
             them, set TRAINIT_NODE_RANK and TRAINIT_NNODES, or start as many ranks on each node, in the launcher's own order",
            names.rank
        );
        warnings.push(Warning::new("node_rank_unknown", message));
    }
    Ok(Some(Reading {
        is_chief: rank == 0,
        process: Some(Process { local_rank, local_size: Some(size), rank, world, node_guessed }),
        leader_variable: "MASTER_ADDR",
        ..Reading::of(platform, role_of_rank(rank), rank / size, world.div_ceil(size))
    }))
}

/// A launcher's process on the nodes that another source has named: its own ranks, their addresses. A world of this node
/// alone (each host ran a launcher of its own) meets here.
pub(super) fn across(nodes: Reading, launched: Reading, warnings: &mut Vec<Warning>) -> Reading {
    let Some(process) = launched.process else { return nodes };
    // The source knows the node that could only be guessed from ranks.
    let counted = if process.node_guessed { nodes.num_nodes } else { launched.num_nodes };
    let node_rank = if process.node_guessed { nodes.node_rank } else { launched.node_rank };
    let is_all = counted == nodes.num_nodes;
    if let (false, Some(ours), Some(theirs)) = (is_all, counted, nodes.num_nodes) {
        let message = format!(
            "{} says {theirs} nodes, but the launcher's {} processes are on {ours}, and their ranks hold: give mpirun all hosts, \
             or those who are left out train apart",
            nodes.platform.word(),
            process.world
        );
        warnings.push(Warning::new("env_conflict", message));
    }
    Reading {
        is_chief: process.rank == 0,
        node_rank,
        num_nodes: counted,
        hosts: nodes.hosts.filter(|_| is_all),
        tf: nodes.tf.filter(|_| is_all),
        leader: if !is_all && counted == Some(1) { Leader::default() } else { nodes.leader },
        process: Some(process),
        ..nodes
    }
}

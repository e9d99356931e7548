//! JAX: the coordinator, which `jax.distributed.initialize()` reads, and the two numbers that it does not read but its
//! caller can pass on (contracts/cluster-environment.md section 3.4).
//!
//! Deliberately absent: anything on Slurm, where JAX finds its way alone, and faked `SLURM_*` elsewhere.

use super::vars::{Claim, Context, Derived};
use crate::rules::cluster::address::Address;
use crate::rules::cluster::spec::Platform;

/// The variables of this process or node.
pub fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    let Some(group) = context.group().filter(|_| context.spec.platform != Platform::Slurm) else { return derived };
    let Some(rendezvous) = group.rendezvous else { return derived };
    derived.put("JAX_COORDINATOR_ADDRESS", rendezvous, context.of_leader(Address::to_string));
    derived.put("JAX_NUM_PROCESSES", group.world, context.of_world());
    derived.put("JAX_PROCESS_ID", group.rank, context.of_rank());
    if let Some(process) = group.process.filter(|_| context.shares_node()) {
        derived.put("JAX_LOCAL_DEVICE_IDS", process.local_rank, Claim::Ours);
    }
    derived
}

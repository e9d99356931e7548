//! JAX: the coordinator, which `jax.distributed.initialize()` reads, and the two numbers that it does not read but its
//! caller can pass on.
//!
//! On Slurm JAX finds its way alone and gets nothing, but for `--nproc`: it would take each of a task's processes for the
//! task, and train apart without a word. No variable tells it otherwise, so there it gets the same as elsewhere, and the
//! one variable is taken away without which it knows no Slurm: `initialize()` without numbers then fails.
//! On a TPU it gets nothing at all. Deliberately absent: faked `SLURM_*`.

use super::Framework;
use super::vars::{Claim, Context, Derived};
use crate::rules::cluster::address::Address;

/// JAX needs it to detect Slurm, and hardly anybody else does.
const SLURM_STEP: &str = "SLURM_STEP_NODELIST";

pub(super) const JAX: Framework = Framework::of("jax", &["JAX_LOCAL_DEVICE_IDS"], derive);

/// The variables of this process or node.
fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    let is_one_of_a_task = context.spec.said.process.is_none() && context.process.is_some() && context.shares_node();
    let traits = context.spec.said.traits;
    let finds_itself = (traits.known_to_jax && !is_one_of_a_task) || traits.places_nodes;
    let Some(group) = context.group().filter(|_| !finds_itself) else { return derived };
    if is_one_of_a_task {
        derived.removed.extend(context.env.given(SLURM_STEP).map(|_| SLURM_STEP.to_owned()));
    }
    let Some(rendezvous) = group.rendezvous else { return derived };
    derived.put("JAX_COORDINATOR_ADDRESS", rendezvous, context.of_leader(Address::to_string));
    derived.put("JAX_NUM_PROCESSES", group.world, context.of_world());
    derived.put("JAX_PROCESS_ID", group.rank, context.of_rank());
    if let Some(process) = group.process.filter(|_| context.shares_node()) {
        let device = if context.instance().is_some() { 0 } else { process.local_rank };
        derived.put("JAX_LOCAL_DEVICE_IDS", device, Claim::Ours);
    }
    derived
}

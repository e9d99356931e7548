//! JAX: the coordinator, which `jax.distributed.initialize()` reads, and two numbers that it does not read, but that
//! the program can pass to it.
//!
//! On Slurm JAX detects its place itself and gets no variables. With `--nproc` that detection is wrong: JAX would treat
//! each process as the whole task, and the processes would silently train separately. So with `--nproc` JAX gets the
//! same variables as elsewhere, and the variable by which it detects Slurm is removed. `initialize()` without arguments
//! then fails instead. On a TPU it gets nothing. Deliberately absent: faked `SLURM_*`.

use super::Framework;
use super::vars::{Context, Derived, Precedence};
use crate::cluster::parse::address::Address;
use crate::cluster::spec::Process;

/// JAX needs it to detect Slurm, and few other programs use it.
const SLURM_STEP: &str = "SLURM_STEP_NODELIST";

pub(super) const JAX: Framework = Framework::of("jax", &["JAX_LOCAL_DEVICE_IDS"], derive);

/// The device of this process among the visible devices. `None` if its place on the node is unknown, or if fewer devices are visible than the node has
/// processes: then the process owns all visible devices, and JAX uses all of them.
fn device(context: &Context<'_>, process: &Process) -> Option<u32> {
    if context.instance().is_some() {
        return Some(0);
    }
    let (local_rank, seen) = (process.local_rank?, context.visible_devices());
    let shares_them = match (seen, process.local_size) {
        (None, _) => true,
        (Some(seen), Some(size)) => seen >= size,
        (Some(seen), None) => seen > local_rank,
    };
    shares_them.then_some(local_rank)
}

/// The variables of this process or node.
fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    let is_one_of_a_task = context.spec.reading.process.is_none() && context.process.is_some() && context.shares_node();
    let traits = context.spec.reading.traits;
    let finds_itself = (traits.known_to_jax && !is_one_of_a_task) || traits.places_nodes;
    let Some(group) = context.group().filter(|_| !finds_itself) else { return derived };
    if is_one_of_a_task {
        derived.removed.extend(context.env.given(SLURM_STEP).map(|_| SLURM_STEP.to_owned()));
    }
    let Some(rendezvous) = group.rendezvous else { return derived };
    derived.put("JAX_COORDINATOR_ADDRESS", rendezvous, context.leader_precedence(Address::to_string));
    derived.put("JAX_NUM_PROCESSES", group.world, context.world_precedence());
    derived.put("JAX_PROCESS_ID", group.rank, context.rank_precedence());
    if let Some(process) = group.process.filter(|_| context.shares_node()) {
        derived.put_if("JAX_LOCAL_DEVICE_IDS", device(context, process), Precedence::Derived);
    }
    derived
}

#[cfg(test)]
mod tests {
    use crate::cluster::framework::resolve;
    use crate::cluster::parse::input::Input;
    use crate::cluster::spec::{ClusterOptions, Nproc};
    use crate::process::env::Env;

    /// The device that local rank 1 of two processes gets, started by Open MPI or by `--nproc 2`.
    fn device(shown: &[(&str, &str)], nproc: Option<u32>) -> Option<String> {
        let launched = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        let here = [("OMPI_COMM_WORLD_LOCAL_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
        let launcher = launched.into_iter().chain(here).filter(|_| nproc.is_none());
        let env = Env::from_pairs(launcher.chain(shown.iter().copied()));
        let options = ClusterOptions { nproc: nproc.map(Nproc::Count), ..ClusterOptions::default() };
        let resolved = resolve(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
        resolved.launches.last().expect("a process").changes.set.get("JAX_LOCAL_DEVICE_IDS").cloned()
    }

    #[test]
    fn a_process_gets_the_index_of_its_device_among_the_visible_ones() {
        for nproc in [None, Some(2)] {
            let second = Some("1".to_owned());
            for all in [&[][..], &[("CUDA_VISIBLE_DEVICES", "0,1")], &[("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")]] {
                assert_eq!(device(all, nproc), second, "{all:?}");
            }
            for all in
                [("NVIDIA_VISIBLE_DEVICES", "all"), ("NVIDIA_VISIBLE_DEVICES", "void"), ("CUDA_VISIBLE_DEVICES", "")]
            {
                assert_eq!(device(&[all], nproc), second, "{all:?}");
            }
            for own in ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]
            {
                assert_eq!(device(&[(own, "1")], nproc), None, "{own}: its own device is the only visible one");
            }
            assert_eq!(device(&[("CUDA_VISIBLE_DEVICES", "2,-1,3")], nproc), None, "entries after -1 are hidden");
        }
    }
}

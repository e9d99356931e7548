//! A process of MPICH's, Intel MPI's or Cray's launcher: `PMI_RANK` and `PMI_SIZE`, one trainit for each process.
//!
//! Its place on the node has other names: Hydra's (MPICH, Intel MPI) or Cray's. Deliberately absent: the world of
//! `PMIX_RANK`, beside which no variable has its size (Open MPI and Slurm, which set it, have their own); what Slurm's srun sets
//! for its tasks, which `SLURM_*` tell in full; and a name of the launch: Hydra gives its processes none.

use super::Platform;
use super::first::First;
use super::input::Input;
use super::launcher::{Names, place};
use super::slurm;
use super::spec::{ClusterError, PlatformName, Reading, Warning};

const HYDRA: Names =
    Names { rank: "PMI_RANK", size: "PMI_SIZE", local_rank: "MPI_LOCALRANKID", local_size: "MPI_LOCALNRANKS" };
const TORCH: Names = Names { local_rank: "LOCAL_RANK", local_size: "LOCAL_WORLD_SIZE", ..HYDRA };
const CRAY: Names = Names { local_rank: "PMI_LOCAL_RANK", local_size: "PMI_LOCAL_SIZE", ..HYDRA };

const NAME: PlatformName = PlatformName("pmi");

pub(super) const PMI: Platform = Platform {
    launched: read,
    first: First::Rank(&[&[HYDRA.rank], &["PMIX_RANK"]]),
    ..Platform::of(
        &[NAME],
        &["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"],
        "PMI_RANK and PMI_SIZE of several processes",
        read,
    )
};

/// Reads the process's place.
fn read(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    // Hydra's ranks have the variables of the step, or batch script, that mpiexec was called in, too.
    let is_hydras = input.env.given(HYDRA.local_rank).is_some();
    if !is_hydras && slurm::gave(input.env, &[HYDRA.rank, HYDRA.size]) {
        return Ok(None);
    }
    let given = |name| input.env.given(name).is_some();
    let by_hand = || Some(TORCH).filter(|names| given(names.local_rank) && given(names.local_size));
    let names = [HYDRA, CRAY].into_iter().find(|names| given(names.local_rank)).or_else(by_hand);
    let Some(reading) = place(NAME, names.as_ref().unwrap_or(&HYDRA), input, warnings)? else {
        return Ok(None);
    };
    // What `mpiexec -n 1` has wrapped is alone as far as that goes; others may know of more.
    if reading.process.as_ref().is_some_and(|process| process.world < 2) {
        return Ok(None);
    }
    if let Some(process) = reading.process.as_ref().filter(|process| process.world > 1 && names.is_none()) {
        let message = format!(
            "PMI_RANK is {} of {}, but its place on the node is not said (LOCAL_RANK, LOCAL_WORLD_SIZE), so it is taken \
             to be alone there, with LOCAL_RANK 0; where the launcher starts several on a node, set these two for each",
            process.rank, process.world
        );
        warnings.push(Warning::new("node_rank_unknown", message));
    }
    Ok(Some(reading))
}

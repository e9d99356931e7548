//! A process of MPICH's, Intel MPI's or Cray's launcher: `PMI_RANK` and `PMI_SIZE`, one trainit for each process.
//!
//! The variables for its place on the node are Hydra's (MPICH, Intel MPI), Cray's or Flux's. Deliberately absent: `PMIX_RANK`,
//! because no variable gives its world size (Open MPI and Slurm, which set it, have variables of their own); the tasks
//! of Slurm's srun, which `SLURM_*` describe completely; and a name of the launch, because Hydra sets none.

use crate::cluster::Platform;
use crate::cluster::first::First;
use crate::cluster::launchers::launcher::{Names, place};
use crate::cluster::parse::input::Input;
use crate::cluster::platforms::slurm;
use crate::cluster::spec::{ClusterError, PlatformName, Reading, Warning};
use crate::cluster::unread::signs::Signs;

const HYDRA: Names = Names {
    rank: "PMI_RANK",
    size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_size: "MPI_LOCALNRANKS",
    nodes: "",
};
const TORCH: Names = Names { local_rank: "LOCAL_RANK", local_size: "LOCAL_WORLD_SIZE", ..HYDRA };
const FLUX: Names = Names { local_rank: "FLUX_TASK_LOCAL_ID", local_size: "", nodes: "FLUX_JOB_NNODES", ..HYDRA };
const CRAY: Names = Names { local_rank: "PMI_LOCAL_RANK", local_size: "PMI_LOCAL_SIZE", ..HYDRA };

const NAME: PlatformName = PlatformName("pmi");

pub(in crate::cluster) const PMI: Platform = Platform {
    read_launcher: read,
    first: First::Rank(&[&[HYDRA.rank], &["PMIX_RANK"]]),
    signs: &[
        Signs {
            launcher: "PMI",
            counts: &[HYDRA.size, HYDRA.local_size, CRAY.local_size],
            places: &[HYDRA.rank, "PMIX_RANK", HYDRA.local_rank, CRAY.local_rank],
            ..Signs::PROCESSES
        },
        Signs {
            launcher: "Flux",
            counts: &["FLUX_JOB_NNODES", "FLUX_JOB_SIZE"],
            places: &["FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"],
            ..Signs::PROCESSES
        },
    ],
    ..Platform::of(
        &[NAME],
        &[
            "PMI_RANK",
            "PMI_SIZE",
            "MPI_LOCALRANKID",
            "MPI_LOCALNRANKS",
            "PMI_LOCAL_RANK",
            "PMI_LOCAL_SIZE",
            "FLUX_TASK_LOCAL_ID",
            "FLUX_JOB_NNODES",
        ],
        "PMI_RANK and PMI_SIZE of several processes",
        read,
    )
};

/// Reads the place of the process.
fn read(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    // Hydra's processes also inherit the variables of the Slurm step or batch script in which mpiexec was called.
    let is_hydras = input.env.given(HYDRA.local_rank).is_some();
    if !is_hydras && slurm::is_task_place(input.env, &[HYDRA.rank, HYDRA.size]) {
        return Ok(None);
    }
    let given = |name| input.env.given(name).is_some();
    let by_hand = || Some(TORCH).filter(|names| given(names.local_rank) && given(names.local_size));
    let names = [HYDRA, CRAY, FLUX].into_iter().find(|names| given(names.local_rank)).or_else(by_hand);
    let Some(reading) = place(NAME, names.as_ref().unwrap_or(&HYDRA), input, warnings)? else {
        return Ok(None);
    };
    // `mpiexec -n 1` adds nothing, and another source may know more.
    if reading.process.as_ref().is_some_and(|process| process.world < 2) {
        return Ok(None);
    }
    Ok(Some(reading))
}

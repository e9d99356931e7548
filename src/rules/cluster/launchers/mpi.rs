//! A child of Open MPI's mpirun: one trainit for each process. On Azure Batch a variable names the leader; in a Slurm
//! job it is the first host of the list.
//!
//! No variable gives the node. If ranks are packed (mpirun's default, with the same number on each node), the node can
//! be calculated. Deliberately absent: `OMPI_COMM_WORLD_NODE_RANK`, which is a rank in the node, and `SLURM_NODEID`,
//! which in mpirun's own step does not count the node that mpirun runs on.

use crate::cluster::Platform;
use crate::cluster::first::First;
use crate::cluster::launchers::launcher::{Names, place};
use crate::cluster::parse::input::Input;
use crate::cluster::spec::{ClusterError, Leader, PlatformName, Reading, Warning};
use crate::cluster::unread::signs::Signs;

/// Azure's variables for the first node, best first: on several nodes with a port, which the Batch service keeps for itself;
/// without one on a single node.
const AZURE: [&str; 2] = ["AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE"];

const OPEN_MPI: Names = Names {
    rank: "OMPI_COMM_WORLD_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    nodes: "",
};

/// mpirun's name for all its processes; it exists since mpirun uses PMIx (Open MPI 2).
const LAUNCH: &str = "PMIX_NAMESPACE";

const NAME: PlatformName = PlatformName("mpi");
const AZURE_ML: PlatformName = PlatformName("azureml");

pub(in crate::cluster) const MPI: Platform = Platform {
    read_launcher: read,
    first: First::Rank(&[&[OPEN_MPI.rank]]),
    signs: &[Signs {
        launcher: "Open MPI",
        counts: &[OPEN_MPI.size, OPEN_MPI.local_size],
        places: &[OPEN_MPI.rank, OPEN_MPI.local_rank],
        ..Signs::PROCESSES
    }],
    ..Platform::of(
        &[AZURE_ML, NAME],
        &[
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "AZ_BATCH_MASTER_NODE",
            "AZ_BATCHAI_MPI_MASTER_NODE",
        ],
        "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE",
        read,
    )
};

/// Reads the place of the process.
fn read(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let Some(reading) = place(NAME, &OPEN_MPI, input, warnings)? else { return Ok(None) };
    let named = AZURE.iter().find(|name| input.env.given(name).is_some());
    let leader = match named {
        Some(name) => {
            let host = input.endpoint(name)?.map(|(host, _)| host);
            Leader { host, ..Leader::default() }
        }
        None => reading.leader,
    };
    let platform = match input.options.platform {
        Some(forced @ (AZURE_ML | NAME)) => forced,
        _ if named.is_some() => AZURE_ML,
        _ => NAME,
    };
    let launch = input.env.given(LAUNCH).map(str::to_owned);
    Ok(Some(Reading { platform, leader, launch, ..reading }))
}

//! A child of Open MPI's mpirun: one trainit for each process. On Azure Batch the leader is named, in a
//! job of Slurm's it is the first host of the list.
//!
//! No variable names the node. Where ranks are packed (mpirun's default, as many on each node) it can be counted.
//! Deliberately absent: `OMPI_COMM_WORLD_NODE_RANK`, a rank in the node, and `SLURM_NODEID`, which mpirun's own step counts
//! without the node that mpirun runs on.

use super::Platform;
use super::first::First;
use super::input::Input;
use super::launcher::{Names, place};
use super::spec::{ClusterError, Leader, PlatformName, Reading, Warning};

/// Azure's names for the first node, best first: with a port on several nodes, without on one.
const AZURE: [&str; 2] = ["AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE"];

const OPEN_MPI: Names = Names {
    rank: "OMPI_COMM_WORLD_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
};

/// What mpirun calls its processes together, since it starts them by PMIx (Open MPI 2).
const LAUNCH: &str = "PMIX_NAMESPACE";

const NAME: PlatformName = PlatformName("mpi");
const AZURE_ML: PlatformName = PlatformName("azureml");

pub(super) const MPI: Platform = Platform {
    launched: read,
    first: First::Rank(&[&[OPEN_MPI.rank]]),
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

/// Reads the process's place.
fn read(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let Some(reading) = place(NAME, &OPEN_MPI, input, warnings)? else { return Ok(None) };
    let named = AZURE.iter().find(|name| input.env.given(name).is_some());
    let leader = match named {
        Some(name) => {
            let (host, port) = input.endpoint(name)?.map_or((None, None), |(host, port)| (Some(host), port));
            Leader { host, port, platform_port: None }
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

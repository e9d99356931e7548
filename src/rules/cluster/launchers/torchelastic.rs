//! A torchrun worker: torchrun has set everything. Nothing is derived, changed or refused.

use crate::cluster::Platform;
use crate::cluster::first::First;
use crate::cluster::parse::input::Input;
use crate::cluster::spec::{ClusterError, Leader, PlatformName, Process, Reading, Warning, role_of_rank};

const NAME: PlatformName = PlatformName("torchelastic");

/// The run id of every torchrun without `--rdzv-id`.
const UNNAMED: &str = "none";

pub(in crate::cluster) const TORCHELASTIC: Platform = Platform {
    first: First::Rank(&[&["RANK"]]),
    ..Platform::of(&[NAME], &["TORCHELASTIC_RUN_ID"], "TORCHELASTIC_RUN_ID", read)
};

/// Reads the place that torchrun gave to this process. Values that cannot be read stay unknown.
fn read(input: &Input<'_>, _: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let Some(id) = input.env.given("TORCHELASTIC_RUN_ID") else { return Ok(None) };
    let rank = input.rank("RANK").unwrap_or_default().unwrap_or(0);
    let leader = Leader {
        host: input.host("MASTER_ADDR").unwrap_or_default(),
        port: input.port("MASTER_PORT").unwrap_or_default(),
        platform_port: None,
    };
    let number = |name| input.rank(name).unwrap_or_default();
    let process = match (number("LOCAL_RANK"), input.count("WORLD_SIZE").unwrap_or_default()) {
        (Some(local_rank), Some(world)) if rank < world => {
            let local_size = input.count("LOCAL_WORLD_SIZE").unwrap_or_default();
            Some(Process { local_rank: Some(local_rank), local_size, rank, world, node_guessed: false })
        }
        _ => None,
    };
    Ok(Some(Reading {
        process,
        launch: Some(id).filter(|id| *id != UNNAMED).map(str::to_owned),
        node_rank: input.rank("GROUP_RANK").unwrap_or_default(),
        num_nodes: input.count("GROUP_WORLD_SIZE").unwrap_or_default(),
        leader,
        hands_off: true,
        ..Reading::of(NAME, role_of_rank(rank), rank, 1)
    }))
}

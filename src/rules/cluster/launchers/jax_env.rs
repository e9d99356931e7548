//! JAX's variables: `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` (Kubeflow's TrainJob), or the JAXJob's names without the
//! prefix.

use crate::cluster::Platform;
use crate::cluster::first::First;
use crate::cluster::parse::input::{Input, rank, within};
use crate::cluster::spec::{ClusterError, Leader, PlatformName, Reading, Warning, role_of_rank};
use crate::cluster::unread::signs::Signs;

struct Names {
    world: &'static str,
    rank: &'static str,
    address: &'static str,
    port: &'static str,
    /// The names are too common to be used without the address.
    needs_address: bool,
}

const FORMS: [Names; 2] = [
    Names {
        world: "JAX_NUM_PROCESSES",
        rank: "JAX_PROCESS_ID",
        address: "JAX_COORDINATOR_ADDRESS",
        port: "JAX_COORDINATOR_PORT",
        needs_address: false,
    },
    Names {
        world: "NUM_PROCESSES",
        rank: "PROCESS_ID",
        address: "COORDINATOR_ADDRESS",
        port: "COORDINATOR_PORT",
        needs_address: true,
    },
];

const NAME: PlatformName = PlatformName("jax_env");

pub(in crate::cluster) const JAX_ENV: Platform = Platform {
    first: First::Rank(&[&["JAX_PROCESS_ID"], &["PROCESS_ID", "NUM_PROCESSES", "COORDINATOR_ADDRESS"]]),
    signs: &[
        Signs {
            launcher: "JAX",
            counts: &["JAX_NUM_PROCESSES"],
            places: &["JAX_PROCESS_ID"],
            leaders: &["JAX_COORDINATOR_ADDRESS"],
            ..Signs::NODES
        },
        Signs {
            launcher: "JAXJob",
            counts: &["NUM_PROCESSES"],
            places: &["PROCESS_ID"],
            leaders: &["COORDINATOR_ADDRESS"],
            also_set: &["COORDINATOR_ADDRESS"],
            ..Signs::NODES
        },
    ],
    ..Platform::of(
        &[NAME],
        &[
            "JAX_NUM_PROCESSES",
            "JAX_PROCESS_ID",
            "JAX_COORDINATOR_ADDRESS",
            "JAX_COORDINATOR_PORT",
            "NUM_PROCESSES",
            "PROCESS_ID",
            "COORDINATOR_ADDRESS",
            "COORDINATOR_PORT",
        ],
        "JAX_NUM_PROCESSES and JAX_PROCESS_ID",
        read,
    )
};

/// Reads either set of names.
fn read(input: &Input<'_>, _: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    for names in &FORMS {
        let (Some(own), Some(_)) = (input.env.given(names.rank), input.env.given(names.world)) else { continue };
        if names.needs_address && input.env.given(names.address).is_none() {
            continue;
        }
        let rank = rank(names.rank, own)?;
        let world = input.count(names.world)?.unwrap_or(1);
        within(names.rank, rank, names.world, world)?;
        let (host, port) = input.endpoint(names.address)?.map_or((None, None), |(host, port)| (Some(host), port));
        let port = match port {
            Some(port) => Some(port),
            None => input.port(names.port)?,
        };
        return Ok(Some(Reading {
            leader: Leader { host, port, platform_port: None },
            leader_variable: names.address,
            ..Reading::of(NAME, role_of_rank(rank), rank, world)
        }));
    }
    Ok(None)
}

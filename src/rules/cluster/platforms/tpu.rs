//! A slice of TPUs with several hosts on GKE: `TPU_WORKER_ID`, `TPU_WORKER_HOSTNAMES`; for several slices
//! `MEGASCALE_*`.
//!
//! The TPU's runtime and JAX read the same variables, so frameworks get nothing in node mode. Only trainit uses the
//! place: one replica leads, and each has its own part of the store. With several slices, only the first host of the
//! first slice has a known name.

use crate::cluster::Platform;
use crate::cluster::first::First;
use crate::cluster::parse::input::{Input, MAX_REPLICAS, host, rank, within};
use crate::cluster::spec::{ClusterError, Leader, PlatformName, Reading, Traits, Warning, role_of_rank};
use crate::cluster::unread::signs::Signs;

/// The port of JAX's coordinator on a TPU.
const COORDINATOR_PORT: u16 = 8482;

const NAME: PlatformName = PlatformName("tpu");

pub(in crate::cluster) const TPU: Platform = Platform {
    first: First::Host(&["TPU_WORKER_ID", "MEGASCALE_SLICE_ID"]),
    signs: &[
        Signs {
            launcher: "TPU",
            counts: &["TPU_WORKER_HOSTNAMES"],
            places: &["TPU_WORKER_ID"],
            leaders: &["TPU_WORKER_HOSTNAMES"],
            ..Signs::NODES
        },
        Signs {
            launcher: "TPU slices",
            counts: &["MEGASCALE_NUM_SLICES"],
            places: &["MEGASCALE_SLICE_ID"],
            leaders: &["MEGASCALE_COORDINATOR_ADDRESS"],
            ..Signs::NODES
        },
    ],
    ..Platform::of(
        &[NAME],
        &[
            "TPU_WORKER_ID",
            "TPU_WORKER_HOSTNAMES",
            "MEGASCALE_NUM_SLICES",
            "MEGASCALE_SLICE_ID",
            "MEGASCALE_COORDINATOR_ADDRESS",
        ],
        "TPU_WORKER_ID, and several hosts in TPU_WORKER_HOSTNAMES",
        read,
    )
};

/// Reads the place of the host. A single host is not a cluster.
fn read(input: &Input<'_>, _: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let given = |name| input.env.given(name);
    let (Some(own), Some(list)) = (given("TPU_WORKER_ID"), given("TPU_WORKER_HOSTNAMES")) else { return Ok(None) };
    let names: Vec<&str> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let count = names.len() as u32;
    let slices = input.count("MEGASCALE_NUM_SLICES")?.unwrap_or(1);
    let all = count.saturating_mul(slices);
    if all > MAX_REPLICAS {
        let message = format!("{count} hosts in each of {slices} slices are more than {MAX_REPLICAS}");
        return Err(ClusterError::new("bad_cluster", "MEGASCALE_NUM_SLICES", message));
    }
    if all < 2 {
        return Ok(None);
    }
    if slices > 1 && given("MEGASCALE_SLICE_ID").is_none() {
        return Ok(None);
    }
    let hosts = names.into_iter().map(|name| host("TPU_WORKER_HOSTNAMES", without_port(name)));
    let hosts = hosts.collect::<Result<Vec<_>, _>>()?;
    let own = rank("TPU_WORKER_ID", own)?;
    within("TPU_WORKER_ID", own, "TPU_WORKER_HOSTNAMES", count)?;
    let slice = if slices > 1 { input.rank("MEGASCALE_SLICE_ID")?.unwrap_or(0) } else { 0 };
    within("MEGASCALE_SLICE_ID", slice, "MEGASCALE_NUM_SLICES", slices)?;
    let node_rank = slice.saturating_mul(count).saturating_add(own);
    let (first, hosts, leader_variable) = if slices > 1 {
        let coordinator = input.endpoint("MEGASCALE_COORDINATOR_ADDRESS")?;
        (coordinator.map(|(host, _)| host), None, "MEGASCALE_COORDINATOR_ADDRESS")
    } else {
        (hosts.first().cloned(), Some(hosts), "TPU_WORKER_HOSTNAMES")
    };
    Ok(Some(Reading {
        leader: Leader { host: first, port: None, platform_port: Some(COORDINATOR_PORT) },
        leader_variable,
        hosts,
        traits: Traits { places_nodes: true, ..Traits::default() },
        ..Reading::of(NAME, role_of_rank(node_rank), node_rank, all)
    }))
}

/// `10.0.0.1` of `10.0.0.1:8470`.
fn without_port(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') && port.parse::<u16>().is_ok() => host,
        _ => name,
    }
}

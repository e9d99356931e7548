//! A slice of TPUs of several hosts on GKE: `TPU_WORKER_ID`, `TPU_WORKER_HOSTNAMES`; of several slices `MEGASCALE_*`.
//!
//! The TPU's own runtime and JAX read the same variables, so that no framework is told anything in node mode: the place is
//! for trainit's own sake, so that one replica leads and the others have corners of their own in the store. Of several slices
//! only the first host of the first is named.

use super::Platform;
use super::first::First;
use super::input::{Input, host, rank, within};
use super::spec::{ClusterError, Leader, PlatformName, Reading, Traits, Warning, role_of_rank};

/// Where JAX's coordinator listens on a TPU.
const COORDINATOR_PORT: u16 = 8482;

const NAME: PlatformName = PlatformName("tpu");

pub(super) const TPU: Platform = Platform {
    first: First::Host(&["TPU_WORKER_ID", "MEGASCALE_SLICE_ID"]),
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

/// Reads the host's place; one host alone is no cluster.
fn read(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let given = |name| input.env.given(name);
    let (Some(own), Some(list)) = (given("TPU_WORKER_ID"), given("TPU_WORKER_HOSTNAMES")) else { return Ok(None) };
    let names: Vec<&str> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let count = names.len() as u32;
    let slices = input.count("MEGASCALE_NUM_SLICES")?.unwrap_or(1);
    let all = count.saturating_mul(slices);
    if all < 2 {
        return Ok(None);
    }
    if slices > 1 && given("MEGASCALE_SLICE_ID").is_none() {
        let message = format!(
            "MEGASCALE_NUM_SLICES is {slices} and MEGASCALE_SLICE_ID is not set, so which of them this is nobody knows, and \
             no rank is given; set it"
        );
        warnings.push(Warning::new("node_rank_unknown", message));
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

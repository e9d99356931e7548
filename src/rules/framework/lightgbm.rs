//! LightGBM's `machines` parameter, in the form that names its own rank: without it LightGBM compares IP addresses as
//! text and host names never match. The program passes it on, and `num_machines` with it, since the package would count
//! the first element, and resolves the names: LightGBM 4.7 dials 0.0.0.0 for a name, which looks right only where all
//! machines are one (tests/trainers/lightgbm_dist.py shows how).

use super::Framework;
use std::collections::HashMap;

use super::vars::{Claim, Context, Derived};
use crate::rules::cluster::address::canonical;

/// LightGBM's own default port, and the first of a host's.
const PORT: u16 = 12_400;

pub(super) const LIGHTGBM: Framework = Framework::of("lightgbm", &[], derive);

/// The list, where every host is known. IPv6 has no form that LightGBM reads.
fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    let Some(group) = context.group().filter(|g| g.num_nodes > 1 && context.is_one_a_node()) else { return derived };
    let Some(hosts) = context.spec.said.hosts.as_ref().filter(|h| h.iter().all(|host| !host.contains(':'))) else {
        return derived;
    };
    let Some(ports) = ports(hosts) else { return derived };
    let machines = hosts.iter().zip(ports).map(|(host, port)| format!("{host}:{port}"));
    let elements: Vec<String> = std::iter::once(format!("rank={}", group.node_rank)).chain(machines).collect();
    derived.put("TRAINIT_LIGHTGBM_MACHINES", elements.join(","), Claim::Ours);
    derived
}

/// A port for each: workers on one host cannot share one. `None` where there are not so many ports.
fn ports(hosts: &[String]) -> Option<Vec<u16>> {
    let mut next: HashMap<String, u16> = HashMap::new();
    let port = |host: &String| {
        let next = next.entry(canonical(host)).or_insert(PORT);
        let own = *next;
        *next = own.checked_add(1)?;
        Some(own)
    };
    hosts.iter().map(port).collect()
}

//! LightGBM's `machines` parameter, in the form that contains its own rank. Otherwise LightGBM finds its rank by
//! comparing IP addresses as text, and host names never match. The program must pass the parameter to LightGBM together
//! with `num_machines`, because the package would count the first element. The program must also resolve the names: LightGBM
//! 4.7 dials 0.0.0.0 for a name, which works only on a single machine. tests/trainers/lightgbm_dist.py does both.

use std::collections::HashMap;

use super::Framework;
use super::vars::{Context, Derived, Precedence};
use crate::cluster::parse::address::canonical;

/// LightGBM's default port, used for the first worker of a host.
const PORT: u16 = 12_400;

pub(super) const LIGHTGBM: Framework = Framework::of("lightgbm", &[], derive);

/// The list, if every host is known. LightGBM reads no form of IPv6.
fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    let Some(group) = context.group().filter(|g| g.num_nodes > 1 && context.has_one_process_per_node()) else {
        return derived;
    };
    let Some(hosts) = context.spec.reading.hosts.as_ref().filter(|h| h.iter().all(|host| !host.contains(':'))) else {
        return derived;
    };
    let Some(ports) = ports(hosts) else { return derived };
    let machines = hosts.iter().zip(ports).map(|(host, port)| format!("{host}:{port}"));
    let elements: Vec<String> = std::iter::once(format!("rank={}", group.node_rank)).chain(machines).collect();
    derived.put("TRAINIT_LIGHTGBM_MACHINES", elements.join(","), Precedence::Derived);
    derived
}

/// A port for each worker, because workers on one host cannot share a port. `None` if there are not enough ports.
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

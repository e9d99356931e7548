//! The network interface for NCCL and Gloo. It is set only if the platform names it, because a wrong one is worse than
//! none.

use super::Framework;
use super::vars::{Context, Derived, Precedence};

pub(super) const NETWORK: Framework = Framework::of("network", &[], derive);

/// The name of the interface, unless it is set already.
fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    if let (Some(interface), Some(_)) = (&context.spec.reading.interface, context.group()) {
        derived.put("NCCL_SOCKET_IFNAME", interface, Precedence::IfUnset);
        derived.put("GLOO_SOCKET_IFNAME", interface, Precedence::IfUnset);
    }
    derived
}

//! The interface for NCCL and Gloo, only where the platform names it: a wrong one is worse than none.

use super::Framework;
use super::vars::{Claim, Context, Derived};

pub(super) const NETWORK: Framework = Framework::of("network", &[], derive);

/// The interface's name, unless somebody has chosen one.
fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    if let (Some(interface), Some(_)) = (&context.spec.said.interface, context.group()) {
        derived.put("NCCL_SOCKET_IFNAME", interface, Claim::IfUnset);
        derived.put("GLOO_SOCKET_IFNAME", interface, Claim::IfUnset);
    }
    derived
}

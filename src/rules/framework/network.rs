//! The interface for NCCL and Gloo, only where the platform names it: a wrong one is worse than none.

use super::vars::{Claim, Context, Derived};

/// The interface's name, unless somebody has chosen one.
pub fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    if let (Some(interface), Some(_)) = (&context.spec.interface, context.group()) {
        derived.put("NCCL_SOCKET_IFNAME", interface, Claim::IfUnset);
        derived.put("GLOO_SOCKET_IFNAME", interface, Claim::IfUnset);
    }
    derived
}

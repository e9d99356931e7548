//! What trainit itself tells every child of its cluster, and what the platform's own image would have.

use super::Framework;
use super::vars::{Claim, Context, Derived};

pub(super) const TRAINIT: Framework = Framework::of("trainit", &[], derive);

/// The leader's published name (also where the leader dials itself by another), the trial, the platform's companions.
fn derive(context: &Context<'_>) -> Derived {
    let spec = context.spec;
    let mut derived = Derived::default();
    if let Some(leader) = &spec.leader {
        derived.put("TRAINIT_LEADER_ADDR", &leader.host, Claim::Ours);
        derived.put("TRAINIT_LEADER_PORT", leader.port, Claim::Ours);
    }
    if let Some(trial) = &spec.said.trial {
        derived.put("TRAINIT_TRIAL", trial, Claim::IfUnset);
    }
    for (name, value) in &spec.said.companions {
        derived.put(name, value, Claim::IfUnset);
    }
    derived
}

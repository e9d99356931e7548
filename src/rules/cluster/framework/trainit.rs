//! trainit's own variables about the cluster, and those of the platform's own image.

use super::Framework;
use super::vars::{Context, Derived, Precedence};

pub(super) const TRAINIT: Framework = Framework::of("trainit", &[], derive);

/// The leader's published name (even if the leader dials itself by another name), the trial, the platform's companion
/// variables.
fn derive(context: &Context<'_>) -> Derived {
    let spec = context.spec;
    let mut derived = Derived::default();
    if let Some(leader) = &spec.leader {
        derived.put("TRAINIT_LEADER_ADDR", &leader.host, Precedence::Derived);
        derived.put("TRAINIT_LEADER_PORT", leader.port, Precedence::Derived);
    }
    if let Some(trial) = &spec.reading.trial {
        derived.put("TRAINIT_TRIAL", trial, Precedence::IfUnset);
    }
    for (name, value) in &spec.reading.companions {
        derived.put(name, value, Precedence::IfUnset);
    }
    derived
}

//! XGBoost: the tracker's place and the worker's number under DMLC's names. The library itself reads no environment; the
//! program passes them on to `collective.init`.

use super::Framework;
use super::vars::{Context, Derived};

pub(super) const XGBOOST: Framework =
    Framework::of("xgboost", &["DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER"], derive);

/// The variables of this process or node.
fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    let Some(group) = context.group() else { return derived };
    let Some(rendezvous) = group.rendezvous else { return derived };
    derived.put("DMLC_TRACKER_URI", &rendezvous.host, context.of_leader(|leader| leader.host.clone()));
    derived.put("DMLC_TRACKER_PORT", rendezvous.port, context.of_port());
    derived.put("DMLC_TASK_ID", group.rank, context.of_rank());
    derived.put("DMLC_NUM_WORKER", group.world, context.of_world());
    derived
}

//! CUDA: of the MIG instances that `CUDA_VISIBLE_DEVICES` lists a process finds the first only (NVIDIA's MIG user guide,
//! "Device enumeration"), so where there is one process for each (`--nproc gpu`) each is shown its own.
//!
//! Deliberately absent: whole GPUs, of which a process finds all and takes that of its local rank.

use super::Framework;
use super::vars::{Claim, Context, Derived, VISIBLE};

pub(super) const CUDA: Framework = Framework::of("cuda", &[], derive);

fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    if let Some(instance) = context.instance() {
        derived.put(VISIBLE, instance, Claim::Ours);
    }
    derived
}

//! CUDA: a process uses only the first MIG instance in `CUDA_VISIBLE_DEVICES` (NVIDIA's MIG user guide, "Device
//! enumeration"). So each process of `--nproc` gets only its own instance, if there are enough.
//!
//! Deliberately absent: whole GPUs. A process sees all of them, and takes the one of its local rank.

use super::Framework;
use super::vars::{Context, Derived, Precedence, VISIBLE};

pub(super) const CUDA: Framework = Framework::of("cuda", &[], derive);

fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    if let Some(instance) = context.instance() {
        derived.put(VISIBLE, instance, Precedence::Derived);
    }
    derived
}

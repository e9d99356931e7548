//! The side of the checkpoint directory on this disk.

pub(crate) mod disk;
pub(crate) mod look;
pub(crate) mod record;
pub(crate) mod scratch_dir;
pub(crate) mod sums;

//! The five formats whose files must be read to know whether a unit is complete. Bytes are foreign: nothing here panics.

pub(super) mod dcp;
pub(super) mod deepspeed;
pub(super) mod huggingface;
pub(super) mod orbax;
pub(super) mod tensorflow;

//! The five formats whose files must be read to know whether a unit is complete. Bytes are foreign: nothing here panics.

pub(in crate::checkpoint) mod dcp;
pub(in crate::checkpoint) mod deepspeed;
pub(in crate::checkpoint) mod huggingface;
pub(in crate::checkpoint) mod orbax;
pub(in crate::checkpoint) mod tensorflow;

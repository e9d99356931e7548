//! The five formats whose files must be read to know whether a unit is complete. The content is foreign, so nothing here
//! may panic.

pub(in crate::checkpoint) mod dcp;
pub(in crate::checkpoint) mod deepspeed;
pub(in crate::checkpoint) mod huggingface;
pub(in crate::checkpoint) mod orbax;
pub(in crate::checkpoint) mod tensorflow;

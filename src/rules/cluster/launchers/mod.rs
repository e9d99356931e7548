//! The variables that a launcher, or a script around one, gives to its processes or nodes: one file for each source.

pub(in crate::cluster) mod jax_env;
pub(in crate::cluster) mod launcher;
pub(in crate::cluster) mod mpi;
pub(in crate::cluster) mod nodes_env;
pub(in crate::cluster) mod pmi;
pub(in crate::cluster) mod torch_env;
pub(in crate::cluster) mod torchelastic;

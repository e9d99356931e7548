//! The variables that a platform gives to a node: one file for each platform.

pub(in crate::cluster) mod aws_batch;
pub(in crate::cluster) mod count_and_rank;
pub(in crate::cluster) mod k8s_indexed;
pub mod sagemaker;
pub(in crate::cluster) mod slurm;
pub(in crate::cluster) mod tf_config;
pub(in crate::cluster) mod tpu;
pub(in crate::cluster) mod vertex;

//! The formats, each a file here and a line in [`LAYOUTS`]; what `deeper` finds is of [`generic`].

mod accelerate;
mod catboost;
pub(super) mod composer;
pub(super) mod dcp;
pub(super) mod deeper;
pub(super) mod deepspeed;
pub(super) mod dlrover;
mod flax;
pub(super) mod generic;
mod huggingface;
mod keras;
pub(super) mod marker;
mod megatron;
mod nvrx;
mod orbax;
mod tensorflow;
mod torch_file;
mod xgboost;

use super::Layout;

/// The layout of who gives a marker and no format.
pub(super) const MARKED: &str = marker::MARKER.name;

/// Every layout in order of precedence: what was asked for by flag, then those with pointer files, then shapes of
/// directories, then single files, and the one that fits anything at the end.
pub const LAYOUTS: &[&Layout] = &[
    &marker::MARKER,
    // Pointer files.
    &tensorflow::TENSORFLOW,
    &deepspeed::DEEPSPEED,
    &megatron::MEGATRON,
    &dlrover::DLROVER,
    // Shapes of directories.
    &accelerate::ACCELERATE,
    &huggingface::HUGGINGFACE,
    &orbax::ORBAX,
    &dcp::DCP,
    // Single files.
    &nvrx::NVRX,
    &keras::KERAS,
    &composer::COMPOSER,
    &flax::FLAX,
    &xgboost::XGBOOST,
    &torch_file::TORCH_FILE,
    &catboost::CATBOOST,
    &generic::GENERIC,
];

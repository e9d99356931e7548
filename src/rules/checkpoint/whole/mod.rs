//! Whether a file, or a checkpoint, is whole: what is cut short, what is missing, what is of another save.

pub mod check;
pub(super) mod containers;
pub mod json;
pub(super) mod order;
pub(super) mod parts;
pub(super) mod same_save;
pub(super) mod structure;

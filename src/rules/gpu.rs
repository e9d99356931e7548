//! GPUs as data.

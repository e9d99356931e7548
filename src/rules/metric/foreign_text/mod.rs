//! Text that trainit did not write: ends of records, terminal codes, numbers.

pub mod number;
pub(in crate::metric) mod text;
pub mod value;

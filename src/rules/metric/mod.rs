//! Metrics: reports as bytes, writes to the metrics file, and measurements from a trainer's output and files.
//!
//! Foreign text is read in one place: `text` finds the ends of records and removes terminal codes, and `value` reads
//! the numbers. Both patterns and records use them.

pub mod batch;
pub mod contract;
mod csv;
mod dialect;
mod digits;
pub mod event;
pub mod ledger;
pub mod line;
pub mod names;
pub mod number;
mod pairs;
pub mod pattern;
pub mod plan;
pub mod records;
mod sagemaker;
pub mod scrape;
pub mod searched;
pub mod sources;
mod tag_regex;
mod text;
pub mod tfrecord;
pub mod value;

/// The forms of a pattern in `--metric`; the first that accepts the text wins. trainit's own form is last, because a
/// text of any other form may contain `=`.
const FORMS: &[Form] = &[sagemaker::read, tag_regex::read];

/// `None` for a text of another form. Errors: the mistake in a text of this form.
type Form = fn(&str) -> Option<Result<Vec<pattern::Pattern>, String>>;

//! Metrics: one report as bytes, what a write does to the file, and measurements out of a trainer's output.

pub mod batch;
pub mod contract;
mod dialect;
pub mod event;
pub mod ledger;
pub mod line;
pub mod names;
pub mod number;
pub mod pattern;
pub mod plan;
pub mod records;
mod sagemaker;
pub mod scrape;
mod tag_regex;
pub mod tfrecord;

/// The forms in which `--metric` takes a pattern, the first that knows the text wins. Ours is last: a text of any other
/// form may hold an `=`.
const FORMS: &[Form] = &[sagemaker::read, tag_regex::read];

/// `None` for a text that is of another form. Errors: what is wrong with one that is of this form.
type Form = fn(&str) -> Option<Result<Vec<pattern::Pattern>, String>>;

//! Metrics: one report as bytes, what a write does to the file, who reports, and measurements out of a trainer's output.

pub mod batch;
pub mod ledger;
pub mod line;
pub mod number;
pub mod pattern;
pub mod plan;
pub mod rank;
mod sagemaker;
pub mod scrape;
mod tag_regex;

/// The forms in which `--metric` takes a pattern, the first that knows the text wins. Ours is last: a text of any other
/// form may hold an `=`.
const FORMS: &[Form] = &[sagemaker::read, tag_regex::read];

/// `None` for a text that is of another form. Errors: what is wrong with one that is of this form.
type Form = fn(&str) -> Option<Result<pattern::Pattern, String>>;

//! Metrics: reports as bytes, writes to the metrics file, and measurements from a trainer's output and files.
//!
//! Foreign text is read in one place (`foreign_text`): `text` finds the ends of records and removes terminal codes, and
//! `value` reads the numbers. Both patterns (`output`) and records (`files`) use them.

pub mod files;
pub mod foreign_text;
pub mod ledger;
pub mod output;
pub mod report;
pub mod sources;

use output::pattern::Pattern;
use output::{sagemaker, tag_regex};

/// The forms of a pattern in `--metric`; the first that accepts the text wins. trainit's own form is last, because a
/// text of any other form may contain `=`.
const FORMS: &[Form] = &[sagemaker::read, tag_regex::read];

/// `None` for a text of another form. Errors: the mistake in a text of this form.
type Form = fn(&str) -> Option<Result<Vec<Pattern>, String>>;

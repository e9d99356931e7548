//! The settings under the heading "Training data".

use super::{Setting, many, on};

const TOPIC: &str = "Training data";

/// In the order of `--help`.
pub(super) const SETTINGS: &[Setting] = &[many(
    "fetch",
    "URL=DIR",
    TOPIC,
    on::RUN | on::INSPECT,
    "Before the first start, fetch the objects under this URL into this absolute directory (gs://, s3://, az://, file:///path; * in names; $NAME is the URL in that variable)",
)];

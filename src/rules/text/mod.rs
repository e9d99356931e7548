//! Text for people: escaping, dates, durations, lines, progress.

pub mod duration;
pub mod last_line;
pub mod lines;
pub mod python_json;
pub mod quantity;
pub mod quoted;
pub mod safe_text;
pub mod timestamps;
pub mod transfer_progress;

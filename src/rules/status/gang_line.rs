//! The gang in the text of `trainit status`.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::text;
use crate::text::safe_text::printable;

/// Members that are listed one by one; of more, only those in another state than this replica.
const MOST_LISTED: usize = 16;

pub(super) fn gang_line(gang: &Map<String, Value>) -> String {
    let word = |key: &str| gang.get(key).map(text).unwrap_or_default();
    let state = word("state");
    let mut line = format!("generation {}, {} {state}", word("generation"), word("seat"));
    let list = |key: &str| gang.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let waiting: Vec<String> = list("waiting_for").iter().map(text).collect();
    if !waiting.is_empty() {
        let _ = write!(line, ", waits for {}", waiting.join(", "));
    }
    let members = list("members");
    let is_listed = |member: &&Value| members.len() <= MOST_LISTED || text(&member["state"]) != state;
    let listed = members.iter().filter(is_listed).take(MOST_LISTED).map(|member| {
        let step = member["step"].as_u64().map(|step| format!(" at step {step}")).unwrap_or_default();
        format!("{} on {} {}{step}", text(&member["seat"]), text(&member["host"]), text(&member["state"]))
    });
    let listed: Vec<String> = listed.collect();
    if !listed.is_empty() {
        let _ = write!(line, "; {}", listed.join(", "));
    }
    printable(&line)
}

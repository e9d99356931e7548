//! The results of `trainit checkpoint`, as tables for people and as JSON.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::command::checkpoint::directory::Survey;
use crate::rules::checkpoint::{Explanation, PartRecord, PartState, State};
use crate::rules::store::address::Address;
use crate::rules::store::manifest::Manifest;
use crate::rules::text::quoted;
use crate::rules::text::safe_text::printable;
use crate::supervisor::checkpoints::store::audit::Audited;
use crate::supervisor::checkpoints::store::retention::Pruned;

/// The limit for excluded paths in the table.
const MOST_EXCLUDED: usize = 20;

/// The first second of the year 10000, since 1970.
const TOO_LATE: u64 = 253_402_300_800;

/// The note on a commit that can be restored.
const POISONED: &str = "poisoned: a trainer failed twice soon after resuming from it";

pub(super) fn step_text(step: Option<u64>) -> String {
    step.map_or("no step".to_owned(), |s| format!("step {s}"))
}

pub(super) fn object(commit: &Audited) -> Value {
    let (name, manifest) = (&commit.name, commit.manifest.as_ref());
    let problems = commit.problems.iter().map(|p| json!({"path": p.path, "problem": p.what}));
    json!({
        "commit": name.stamp.to_string(),
        "attempt": name.stamp.attempt.number,
        "seq": name.stamp.seq,
        "step": manifest.map_or(Some(name.step), |m| m.step),
        "unit": manifest.map(|m| &m.unit),
        "framework": manifest.map(|m| &m.framework),
        "parts": manifest.map(|m| m.parts().iter().map(record_object).collect::<Vec<Value>>()),
        "files": manifest.map(|m| m.regular().count()),
        "bytes": manifest.map(|m| m.total_bytes),
        "created_unix": manifest.map(|m| m.created_unix),
        "complete": commit.problems.is_empty(),
        "problem": problem(commit),
        "poisoned": commit.is_poisoned,
        "problems": problems.collect::<Vec<Value>>(),
    })
}

/// The first problem, and the number of others.
fn problem(commit: &Audited) -> Option<String> {
    let first = commit.problems.first()?;
    let more = commit.problems.len() - 1;
    Some(if more == 0 { first.what.clone() } else { format!("{}, and {more} more", first.what) })
}

pub(super) fn commits_table(commits: &[Audited], store: &Address) -> String {
    if commits.is_empty() {
        return format!("no commits in {}\n", printable(&store.to_string()));
    }
    let mut table =
        format!("{:<18} {:>10} {:<20} {:>7} {:>15}  {}\n", "COMMIT", "STEP", "COMMITTED", "FILES", "BYTES", "PARTS");
    for commit in commits {
        let problem = match problem(commit) {
            Some(why) => format!("not usable: {}", printable(&why)),
            None if commit.is_poisoned => POISONED.to_owned(),
            None => String::new(),
        };
        let name = &commit.name;
        let (step, rest) = match &commit.manifest {
            Some(m) => {
                let gap = if problem.is_empty() { "" } else { "  " };
                let (files, time) = (m.regular().count(), time(m.created_unix));
                (m.step, format!("{time:<20} {files:>7} {:>15}  {}{gap}{problem}", m.total_bytes, printable(&units(m))))
            }
            None => (Some(name.step), format!("{:<20} {:>7} {:>15}  {problem}", "-", "-", "-")),
        };
        let step = step.map_or("-".to_owned(), |s| s.to_string());
        table.push_str(&format!("{:<18} {step:>10} {rest}\n", name.stamp.to_string()));
    }
    table
}

fn time(unix: u64) -> String {
    if unix >= TOO_LATE {
        return "-".to_owned();
    }
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(unix)).to_string()
}

/// A part of a commit.
fn record_object(part: &PartRecord) -> Value {
    json!({"root": part.root, "format": part.layout, "unit": part.unit, "step": part.step, "files": part.files.len()})
}

/// The parts of a commit, for people.
fn units(manifest: &Manifest) -> String {
    let parts = manifest.parts();
    let named = parts.iter().map(|part| part.unit.as_deref().filter(|unit| !unit.is_empty()).unwrap_or(REST));
    named.collect::<Vec<&str>>().join(", ")
}

/// The name of the part that is not a unit of a known format.
const REST: &str = "(the rest)";

/// A part of a directory.
pub(in crate::command) fn part_object(part: &PartState) -> Value {
    let (state, problem) = state(&part.state);
    json!({
        "root": part.root,
        "unit": part.unit,
        "step": part.step,
        "framework": part.layout.unwrap_or("tree"),
        "files": part.files,
        "bytes": part.bytes,
        "state": state,
        "complete": problem.is_none(),
        "problem": problem,
    })
}

/// A path that is never committed, with the pattern or reason that excludes it.
pub(super) fn excluded_object((path, why): &(String, String)) -> Value {
    json!({"path": path, "excluded_by": why})
}

/// The state in one word, and why the part is not committed.
fn state(state: &State) -> (&'static str, Option<&str>) {
    match state {
        State::Committed => ("committed", None),
        State::Ready => ("complete", None),
        State::Empty => ("empty", None),
        State::Settling(why) => ("settling", Some(why)),
        State::Incomplete(why) => ("incomplete", Some(why)),
        State::Torn(why) => ("torn", Some(why)),
        State::Unproven(why) => ("unproven", Some(why)),
    }
}

pub(super) fn local_table(local: &Survey, dir: &Path) -> String {
    let is_empty = local.parts.iter().all(|part| part.state == State::Empty);
    if is_empty && local.excluded.is_empty() {
        let why = if local.absent.is_some() { ", which does not exist" } else { "" };
        return format!("no checkpoints in {}{why}\n", printable(&quoted::shown(&dir.to_string_lossy())));
    }
    let mut table = format!("{:<18} {:>10} {:>7} {:>15}  {}\n", "LOCAL", "STEP", "FILES", "BYTES", "PART");
    for part in local.parts.iter().filter(|part| part.state != State::Empty) {
        let step = part.step.map_or("-".to_owned(), |s| s.to_string());
        let (word, problem) = state(&part.state);
        let problem = problem.map_or(word.to_owned(), |why| format!("{word}: {}", printable(why)));
        let unit = part.unit.as_deref().filter(|unit| !unit.is_empty()).or(part.root.as_deref());
        table.push_str(&format!(
            "{:<18} {step:>10} {:>7} {:>15}  {}  {problem}\n",
            part.layout.unwrap_or("tree"),
            part.files,
            part.bytes,
            printable(unit.filter(|unit| !unit.is_empty()).unwrap_or(REST)),
        ));
    }
    for (path, why) in local.excluded.iter().take(MOST_EXCLUDED) {
        table.push_str(&format!(
            "{:<18} {:>10} {:>7} {:>15}  {}  excluded: {}\n",
            "-",
            "-",
            "-",
            "-",
            printable(path),
            printable(why)
        ));
    }
    if local.excluded.len() > MOST_EXCLUDED {
        let more = local.excluded.len() - MOST_EXCLUDED;
        table.push_str(&format!("and {more} more excluded paths; trainit checkpoint explain shows every path\n"));
    }
    table
}

pub(super) fn explained_text(explained: &[Explanation]) -> String {
    let width = explained.iter().map(|of| of.path.len()).max().unwrap_or_default();
    let line = |of: &Explanation| {
        let gap = if of.detail.is_empty() { "" } else { "  " };
        format!("{:<width$}  {}{gap}{}\n", printable(&of.path), printable(&of.decided_by), printable(&of.detail))
    };
    explained.iter().map(line).collect()
}

pub(super) fn pruned_text(pruned: &Pruned, dry: bool) -> String {
    let verb = if dry { "would delete" } else { "deleted" };
    let mut text = String::new();
    for name in &pruned.commits {
        let step = step_text(Some(name.step).filter(|step| *step > 0));
        text.push_str(&format!("{verb} commit {} ({step})\n", name.stamp));
    }
    if pruned.swept > 0 {
        let files = if pruned.swept == 1 { "file" } else { "files" };
        text.push_str(&format!("{verb} {} incomplete {files} of interrupted writes\n", pruned.swept));
    }
    let commits = |n: usize| format!("{n} commit{}", if n == 1 { "" } else { "s" });
    let (gone, kept, orphans) = (commits(pruned.commits.len()), commits(pruned.kept), pruned.orphans.len());
    let stay = if pruned.kept == 1 { "stays" } else { "stay" };
    text.push_str(&format!("{verb} {gone} and {orphans} objects without a commit; {kept} {stay}\n"));
    text
}

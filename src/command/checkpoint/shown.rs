//! What `trainit checkpoint` found, as tables for people and as JSON.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::rules::checkpoint::address::Address;
use crate::rules::plain::plain;
use crate::supervisor::keeper::audit::Audited;
use crate::supervisor::keeper::retention::Pruned;
use crate::supervisor::keeper::survey::{Survey, Surveyed};

/// The first second of the year 10000, since 1970.
const TOO_LATE: u64 = 253_402_300_800;

/// Of a commit that can be restored.
const POISONED: &str = "poisoned: a trainer failed twice soon after going on from it";

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
        "files": manifest.map(|m| m.regular().count()),
        "bytes": manifest.map(|m| m.total_bytes),
        "created_unix": manifest.map(|m| m.created_unix),
        "complete": commit.problems.is_empty(),
        "problem": problem(commit),
        "poisoned": commit.is_poisoned,
        "problems": problems.collect::<Vec<Value>>(),
    })
}

/// The first problem, and how many more there are.
fn problem(commit: &Audited) -> Option<String> {
    let first = commit.problems.first()?;
    let more = commit.problems.len() - 1;
    Some(if more == 0 { first.what.clone() } else { format!("{}, and {more} more", first.what) })
}

pub(super) fn commits_table(commits: &[Audited], store: &Address) -> String {
    if commits.is_empty() {
        return format!("no commits in {}\n", plain(&store.to_string()));
    }
    let mut table =
        format!("{:<18} {:>10} {:<20} {:>7} {:>15}  {}\n", "COMMIT", "STEP", "COMMITTED", "FILES", "BYTES", "UNIT");
    for commit in commits {
        let problem = match problem(commit) {
            Some(why) => format!("not usable: {}", plain(&why)),
            None if commit.is_poisoned => POISONED.to_owned(),
            None => String::new(),
        };
        let name = &commit.name;
        let (step, rest) = match &commit.manifest {
            Some(m) => {
                let gap = if problem.is_empty() { "" } else { "  " };
                let (files, time) = (m.regular().count(), time(m.created_unix));
                (m.step, format!("{time:<20} {files:>7} {:>15}  {}{gap}{problem}", m.total_bytes, plain(&m.unit)))
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

pub(in crate::command) fn local_object(unit: &Surveyed) -> Value {
    json!({
        "unit": unit.unit,
        "step": unit.step,
        "framework": unit.framework,
        "evidence": unit.evidence,
        "files": unit.files,
        "bytes": unit.bytes,
        "complete": unit.problem.is_none(),
        "problem": unit.problem,
    })
}

pub(super) fn local_table(local: &Survey, dir: &Path) -> String {
    let Some(first) = local.units.first() else {
        let why = if local.absent.is_some() { ", which is not there" } else { &plain(&local.sought) };
        return format!("no checkpoints in {}{why}\n", plain(&dir.to_string_lossy()));
    };
    let mut table = format!("recognised as {}: {}\n", first.framework, first.evidence);
    table.push_str(&format!("{:<18} {:>10} {:>7} {:>15}  {}\n", "LOCAL", "STEP", "FILES", "BYTES", "UNIT"));
    for unit in &local.units {
        let step = unit.step.map_or("-".to_owned(), |s| s.to_string());
        let problem = unit.problem.as_ref().map_or(String::new(), |why| format!("  not complete: {}", plain(why)));
        table.push_str(&format!(
            "{:<18} {step:>10} {:>7} {:>15}  {}{problem}\n",
            unit.framework,
            unit.files,
            unit.bytes,
            plain(&unit.unit)
        ));
    }
    table
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
        text.push_str(&format!("{verb} {} half-written {files} of writes that were cut short\n", pruned.swept));
    }
    let commits = |n: usize| format!("{n} commit{}", if n == 1 { "" } else { "s" });
    let (gone, kept, orphans) = (commits(pruned.commits.len()), commits(pruned.kept), pruned.orphans.len());
    let stay = if pruned.kept == 1 { "stays" } else { "stay" };
    text.push_str(&format!("{verb} {gone} and {orphans} objects that no commit names; {kept} {stay}\n"));
    text
}

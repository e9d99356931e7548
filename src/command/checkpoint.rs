//! `trainit checkpoint list|verify|push|pull|prune`: the store by hand, over the same code as `run`.
//!
//! `push` claims an attempt as a run does, so it takes the store over from one that is still going: that run is fenced.

use std::time::Duration;

use serde_json::{Value, json};

use super::keeping::mirror_config;
use super::{refuse, values};
use crate::cli::Parsed;
use crate::edge::stdio;
use crate::edge::store::StoreError;
use crate::rules::checkpoint::manifest::Manifest;
use crate::rules::checkpoint::names::CommitName;
use crate::rules::env::Env;
use crate::rules::exit;
use crate::settings::checkpoint::Checkpoints;
use crate::settings::layers::hint;
use crate::settings::{Complaint, Reader};
use crate::supervisor::keeper::commit::Outcome;
use crate::supervisor::keeper::mirror::{Mirror, MirrorError};
use crate::supervisor::keeper::survey::Surveyed;
use crate::supervisor::keeper::transfer::shown;

const DEEDS: [&str; 5] = ["list", "verify", "push", "pull", "prune"];

/// Does one of [`DEEDS`]. Exit codes: 0; 1 for `verify` when a commit is no good, and for `push` when nothing complete is
/// there; 125 a mistake in the settings; 204 the store or the restore failed; 205 fenced.
pub fn main(parsed: &Parsed, env: &Env) -> u8 {
    let deed = parsed.operands.first().and_then(|o| o.to_str()).unwrap_or_default();
    if !DEEDS.contains(&deed) {
        let known = DEEDS.join(", ");
        return refuse(&[format!("checkpoint {deed}: expected one of {known}{}", hint(deed, &DEEDS))]);
    }
    let (layered, complaints) = values(parsed, env);
    let mut reader = Reader::new(&layered, complaints);
    let settings = Checkpoints::read(&mut reader);
    let (as_json, dry) = (reader.switch("json"), reader.switch("dry-run"));
    let mut complaints = reader.complaints;
    for (name, missing) in [("dir", settings.dir.is_none()), ("store", settings.store.is_none())] {
        let one_is_enough = deed == "list" && settings.dir.is_some();
        if missing && (name == "store" && !one_is_enough || matches!(deed, "push" | "pull")) {
            let message = format!(
                "checkpoint {deed} needs it; give --checkpoint-{name} or TRAINIT_CHECKPOINT_{}",
                name.to_uppercase()
            );
            complaints.push(Complaint { place: format!("--checkpoint-{name}"), message });
        }
    }
    if !complaints.is_empty() {
        return refuse(&complaints);
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&MirrorError { message: format!("cannot start: {error}"), code: 1 }),
    };
    let (settle, step, has_dir) = (settings.settle, settings.restore_step, settings.dir.is_some());
    let config = mirror_config(settings, 0, deed == "push" && !dry, env);
    let done = runtime.block_on(async {
        let mut mirror = Mirror::open(config).await?;
        let done = match deed {
            "push" => push(&mut mirror, settle, as_json, dry).await,
            "pull" if dry => would_pull(&mirror, step, as_json).await,
            "pull" => pull(&mut mirror, as_json).await,
            "verify" => verify(&mirror, as_json).await,
            "prune" => prune(&mirror, as_json, dry).await,
            _ => list(&mirror, as_json, has_dir).await,
        };
        for note in mirror.take_notes() {
            stdio::complain(&format!("trainit: {note}"));
        }
        done
    });
    done.unwrap_or_else(|error| fail(&error))
}

fn fail(error: &MirrorError) -> u8 {
    stdio::complain(&format!("trainit: error: {error}"));
    error.code
}

fn store_error(error: StoreError) -> MirrorError {
    MirrorError { message: error.to_string(), code: exit::STORE }
}

/// Prints the object, or the text; 1 when nobody listens.
fn show(as_json: bool, value: &Value, text: &str) -> u8 {
    let line = if as_json { format!("{value}\n") } else { text.to_owned() };
    u8::from(stdio::print(&line).is_err())
}

async fn push(mirror: &mut Mirror, settle: Duration, as_json: bool, dry: bool) -> Result<u8, MirrorError> {
    if dry {
        let newest = mirror.newest_local().await;
        let value = newest.as_ref().map(|r| json!({"unit": r.from, "step": r.step}));
        let text =
            newest.map_or("nothing complete to push\n".to_owned(), |r| format!("would push {}\n", r.from.display()));
        return Ok(show(as_json, &json!({"would_push": value}), &text));
    }
    let outcome = mirror.commit_newest(settle, None, &*shown("pushing")).await;
    let stamp = mirror.committed().map(|(_, stamp)| stamp.to_string());
    if matches!(outcome, Outcome::Committed { .. } | Outcome::UpToDate { .. }) {
        for why in mirror.passed() {
            stdio::complain(&format!("trainit: passed over: {why}"));
        }
    }
    Ok(match outcome {
        Outcome::Committed { step, unit, bytes, seconds, .. } => show(
            as_json,
            &json!({"committed": {"unit": unit, "step": step, "bytes": bytes, "seconds": seconds, "commit": stamp}}),
            &format!(
                "committed {unit} ({}, {bytes} bytes, {seconds:.2} s) as {}\n",
                step_text(step),
                stamp.unwrap_or_default()
            ),
        ),
        Outcome::UpToDate { step } => {
            show(as_json, &json!({"up_to_date": step}), &format!("the store holds it already ({})\n", step_text(step)))
        }
        Outcome::NothingComplete { why } | Outcome::Changed { why } => {
            stdio::complain(&format!("trainit: error: nothing was pushed: {why}"));
            1
        }
        Outcome::Fenced { by } => fail(&MirrorError {
            message: format!("a newer run (attempt {}) has taken over the store; nothing was pushed", by.number),
            code: exit::FENCED,
        }),
        Outcome::Failed { message, code } => fail(&MirrorError { message, code }),
        Outcome::OutOfTime { why } => fail(&MirrorError { message: why, code: exit::STORE }),
    })
}

async fn would_pull(mirror: &Mirror, step: Option<u64>, as_json: bool) -> Result<u8, MirrorError> {
    let judged = mirror.judged().await.map_err(store_error)?;
    let whole = judged.into_iter().filter_map(|j| Some((j.name, j.manifest.ok()?)));
    let newest = whole.into_iter().find(|(_, manifest)| step.is_none() || manifest.step == step);
    let value = newest.as_ref().map(
        |(name, m)| json!({"unit": m.unit, "step": m.step, "bytes": m.total_bytes, "commit": name.stamp.to_string()}),
    );
    let text = match &newest {
        Some((name, m)) => format!(
            "would pull {} ({}, {} bytes) of commit {}, unless it or a newer one of its run is there\n",
            m.unit,
            step_text(m.step),
            m.total_bytes,
            name.stamp
        ),
        None => "there is nothing to pull\n".to_owned(),
    };
    Ok(show(as_json, &json!({ "would_pull": value }), &text))
}

async fn pull(mirror: &mut Mirror, as_json: bool) -> Result<u8, MirrorError> {
    mirror.hear_restore(shown("pulling"));
    let resume = mirror.restore().await?;
    let value = resume
        .as_ref()
        .map(|r| json!({"from": r.from, "step": r.step, "commit": r.commit.as_ref().map(ToString::to_string)}));
    let text = match &resume {
        Some(r) => format!("{} is in place ({})\n", r.from.display(), step_text(r.step)),
        None => "there is nothing to pull\n".to_owned(),
    };
    Ok(show(as_json, &json!({"resume": value}), &text))
}

fn step_text(step: Option<u64>) -> String {
    step.map_or("no step".to_owned(), |s| format!("step {s}"))
}

/// The commits of the store, and what lies in the checkpoint directory, each where it was given.
async fn list(mirror: &Mirror, as_json: bool, has_dir: bool) -> Result<u8, MirrorError> {
    let judged = mirror.judged().await.map_err(store_error)?;
    let rows: Vec<(CommitName, Result<Manifest, String>)> = judged.into_iter().map(|j| (j.name, j.manifest)).collect();
    let (mut value, mut table) = rows_shown(&rows);
    if has_dir {
        let local = mirror.survey().await.map_err(|error| MirrorError {
            message: format!("cannot read the checkpoint directory: {error}; give a --checkpoint-dir that can be read"),
            code: exit::NOT_STARTED,
        })?;
        value["local"] = local.iter().map(local_object).collect();
        table.push_str(&local_table(&local));
    }
    Ok(show(as_json, &value, &table))
}

fn local_object(unit: &Surveyed) -> Value {
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

fn local_table(local: &[Surveyed]) -> String {
    let mut table = format!("{:<18} {:>10} {:>7} {:>15}  {}\n", "LOCAL", "STEP", "FILES", "BYTES", "UNIT");
    if let Some(unit) = local.first() {
        table.insert_str(0, &format!("taken for {}: {}\n", unit.framework, unit.evidence));
    }
    for unit in local {
        let step = unit.step.map_or("-".to_owned(), |s| s.to_string());
        let problem = unit.problem.as_ref().map_or(String::new(), |why| format!("  not complete: {why}"));
        table.push_str(&format!(
            "{:<18} {step:>10} {:>7} {:>15}  {}{problem}\n",
            unit.framework, unit.files, unit.bytes, unit.unit
        ));
    }
    table
}

async fn verify(mirror: &Mirror, as_json: bool) -> Result<u8, MirrorError> {
    let rows = mirror.verified().await.map_err(store_error)?;
    let rows: Vec<_> = rows.into_iter().map(|j| (j.name, j.manifest)).collect();
    let (value, table) = rows_shown(&rows);
    let code = show(as_json, &value, &table);
    let is_bad = rows.iter().any(|(_, manifest)| manifest.is_err());
    Ok(if is_bad { 1 } else { code })
}

/// As an object, and as a table.
fn rows_shown(rows: &[(CommitName, Result<Manifest, String>)]) -> (Value, String) {
    let object = |(name, manifest): &(CommitName, Result<Manifest, String>)| {
        let (whole, problem) = (manifest.is_ok(), manifest.as_ref().err());
        let manifest = manifest.as_ref().ok();
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
            "complete": whole,
            "problem": problem,
        })
    };
    let commits: Vec<Value> = rows.iter().map(object).collect();
    let mut table = format!("{:<18} {:>10} {:>7} {:>15}  {}\n", "COMMIT", "STEP", "FILES", "BYTES", "UNIT");
    for (name, manifest) in rows {
        let line = match manifest {
            Ok(m) => format!("{:>7} {:>15}  {}", m.regular().count(), m.total_bytes, m.unit),
            Err(why) => format!("{:>7} {:>15}  not usable: {why}", "-", "-"),
        };
        table.push_str(&format!("{:<18} {:>10} {line}\n", name.stamp.to_string(), name.step));
    }
    (json!({ "commits": commits }), table)
}

async fn prune(mirror: &Mirror, as_json: bool, dry: bool) -> Result<u8, MirrorError> {
    let pruned = mirror.prune(dry).await.map_err(store_error)?;
    let commits: Vec<String> = pruned.commits.iter().map(ToString::to_string).collect();
    let verb = if dry { "would delete" } else { "deleted" };
    let text = format!("{verb} {} commits and {} objects of none\n", commits.len(), pruned.orphans.len());
    Ok(show(as_json, &json!({"commits": commits, "orphans": pruned.orphans, "dry_run": dry}), &text))
}

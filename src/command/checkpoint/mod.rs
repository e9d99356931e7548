//! `trainit checkpoint list|explain|verify|push|pull|prune`: manual access to the store, with the same code as `run`.
//!
//! `push` claims an attempt like a run. A run that still commits to the store is fenced by that. The store cannot tell
//! whether such a run exists, so the runs on this machine are asked.

mod directory;
pub mod options;
mod push;
pub(super) mod shown;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use self::push::PushOptions;
use self::shown::{
    commits_table, excluded_object, explained_text, local_table, object, part_object, pruned_text, step_text,
};
use super::{refuse, values};
use crate::cli::Parsed;
use crate::command::checkpoint::options::mirror_config;
use crate::edge::fs::real_path::Found;
use crate::edge::io::stdio;
use crate::edge::process::signals;
use crate::edge::store::StoreError;
use crate::edge::transfer::blocking;
use crate::rules::checkpoint::{Explanation, State};
use crate::rules::process::env::Env;
use crate::rules::text::safe_text::printable;
use crate::settings::checkpoint::{Checkpoints, Resuming};
use crate::settings::values::suggest::hint;
use crate::settings::{Complaint, Origin, Reader, Values};
use crate::supervisor::checkpoints::config::{Config, Role};
use crate::supervisor::checkpoints::failure::Failure;
use crate::supervisor::checkpoints::mirror::Mirror;
use crate::supervisor::checkpoints::progress::shown;

/// The limit for pending writes to a disk at the end.
const EXIT_LIMIT: Duration = Duration::from_millis(500);

const ACTIONS: [&str; 6] = ["list", "explain", "verify", "push", "pull", "prune"];

/// Executes one of [`ACTIONS`]. Exit codes: see the help.
pub fn main(parsed: &Parsed, env: &Env) -> u8 {
    // A request to a server that closes the connection is retried, so SIGPIPE must not end the process.
    signals::ignore_write_signals();
    let action = parsed.operands.first().and_then(|o| o.to_str()).unwrap_or_default();
    if !ACTIONS.contains(&action) {
        let known = ACTIONS.join(", ");
        return refuse(&[format!("checkpoint {action}: expected one of {known}{}", hint(action, &ACTIONS))]);
    }
    let (layered, complaints) = values(parsed, env);
    let mut reader = Reader::new(&layered, complaints);
    let mut settings = Checkpoints::read(&mut reader);
    settings.model_dir = reader.path("model-dir");
    let is_given = |name: &&str| layered.get(name).is_some_and(|given| given.origin != Origin::Default);
    if action == "push" && !["keep-last", "keep-every"].iter().any(is_given) {
        // The retention rule of the run was not given for this command.
        settings.retention.last = u64::MAX;
    }
    let (as_json, dry) = (reader.switch("json"), reader.switch("dry-run"));
    let mut complaints = reader.complaints;
    complaints.extend(missing_settings(action, &layered));
    // In a variable or a file it is meant for a run, but on the command line it was meant for push.
    if action == "push" && parsed.flags.contains_key("restore-step") {
        let message = "checkpoint push ignores it, because it commits the present checkpoints".to_owned();
        complaints.push(Complaint { place: "--restore-step".to_owned(), message });
    }
    if dry && matches!(action, "push" | "pull") {
        let message = format!("checkpoint {action} has no dry run, only checkpoint prune has one");
        complaints.push(Complaint { place: "--dry-run".to_owned(), message });
    }
    let paths = explained_paths(parsed, action, settings.dir.as_deref(), &mut complaints);
    if !complaints.is_empty() {
        return refuse(&complaints);
    }
    // This must happen before the first thread starts.
    let held = (action == "push").then(|| signals::hold_back(&push::STOPPING));
    let runtime = match blocking::runtime(true) {
        Ok(runtime) => runtime,
        Err(error) => return print_failure(&Failure { message: format!("cannot start: {error}"), code: 1 }),
    };
    let (settle, restore, has_dir) = (settings.settle, settings.restore, settings.dir.is_some());
    let config = |role| {
        let config = mirror_config(settings.clone(), &Found::default(), 0, role, env);
        Config { note: |line| stdio::complain(&format!("trainit: {line}")), ..config }
    };
    let done = runtime.block_on(async {
        if let Some(held) = held {
            let tmp = env.given("TMPDIR").map(str::to_owned);
            return push::push(config, PushOptions { settle, as_json, tmp }, held).await;
        }
        if action == "explain" {
            return explain(&Mirror::open_to_look(config(Role::Looks)).await?, paths, as_json).await;
        }
        let mut mirror = Mirror::open(config(Role::Looks)).await?;
        match action {
            "pull" => pull(&mut mirror, restore, as_json).await,
            "verify" => verify(&mirror, as_json).await,
            "prune" => prune(&mirror, as_json, dry).await,
            _ => list(&mirror, as_json, has_dir).await,
        }
    });
    // A hanging disk does not block the exit.
    runtime.shutdown_timeout(EXIT_LIMIT);
    done.unwrap_or_else(|error| print_failure(&error))
}

/// Complaints about missing settings for places.
fn missing_settings(action: &str, layered: &Values) -> Vec<Complaint> {
    let is_given = |name: &str| layered.get(name).is_some();
    let copies = matches!(action, "push" | "pull");
    let needs_store = !matches!(action, "list" | "explain") || action == "list" && !is_given("checkpoint-dir");
    let needs = [
        ("checkpoint-dir", "TRAINIT_CHECKPOINT_DIR", copies || action == "explain"),
        ("checkpoint-store", "TRAINIT_CHECKPOINT_STORE", needs_store),
    ];
    let missing = needs.into_iter().filter(|(name, _, needed)| *needed && !is_given(name));
    let complaint = |(name, variable, _)| Complaint {
        place: format!("--{name}"),
        message: match action {
            "list" => "checkpoint list needs it, or --checkpoint-dir; give a store, a directory or both".to_owned(),
            _ => format!("checkpoint {action} needs it; give --{name} or {variable}"),
        },
    };
    missing.map(complaint).collect()
}

/// Lists local files that are not committed.
fn log_left_out(mirror: &Mirror) {
    for why in mirror.left_out() {
        stdio::complain(&format!("trainit: NOT committed: {why}"));
    }
}

/// The paths to explain, relative to the checkpoint directory. A path outside of it is a mistake.
fn explained_paths(parsed: &Parsed, action: &str, dir: Option<&Path>, complaints: &mut Vec<Complaint>) -> Vec<String> {
    let Some(dir) = dir.filter(|_| action == "explain") else { return Vec::new() };
    let mut paths = Vec::new();
    for operand in &parsed.operands[1..] {
        let path = Path::new(operand);
        let within = if path.is_absolute() { path.strip_prefix(dir).ok() } else { Some(path) };
        match within.and_then(Path::to_str) {
            Some(within) => paths.push(within.trim_start_matches("./").trim_end_matches('/').to_owned()),
            None => complaints.push(Complaint {
                place: path.display().to_string(),
                message: format!("expected a path below {}, or relative to it", dir.display()),
            }),
        }
    }
    paths
}

async fn explain(mirror: &Mirror, paths: Vec<String>, as_json: bool) -> Result<u8, Failure> {
    let explained = directory::explain(mirror, paths).await?;
    let object = |of: &Explanation| json!({"path": of.path, "decided_by": of.decided_by, "detail": of.detail});
    let value = json!({ "paths": explained.iter().map(object).collect::<Vec<Value>>() });
    Ok(show(as_json, &value, &explained_text(&explained)))
}

fn print_failure(error: &Failure) -> u8 {
    stdio::complain(&format!("trainit: error: {error}"));
    error.code
}

fn query_failure(error: StoreError) -> Failure {
    Failure::asking(&error)
}

/// Prints the object, or the text; 1 if standard output is closed.
fn show(as_json: bool, value: &Value, text: &str) -> u8 {
    let line = if as_json { format!("{value}\n") } else { text.to_owned() };
    u8::from(stdio::print(&line).is_err())
}

async fn pull(mirror: &mut Mirror, restore: Resuming, as_json: bool) -> Result<u8, Failure> {
    mirror.listeners.on_restore(Box::new(|| shown("pulling")));
    let resume = mirror.restore().await?;
    let fetched = mirror.fetched.unwrap_or(0);
    let object = resume.as_ref().map(|r| {
        json!({"from": r.from, "step": r.step, "commit": r.commit.as_ref().map(ToString::to_string), "fetched_bytes": fetched})
    });
    let text = match &resume {
        None if restore == Resuming::None => "nothing was pulled: --restore is none\n".to_owned(),
        None => "there is nothing to pull\n".to_owned(),
        Some(r) => {
            let (place, step) = (printable(&r.from.to_string_lossy()), step_text(r.step));
            match &r.commit {
                None => format!("{place} stays ({step}): there is no newer commit\n"),
                Some(commit) if fetched == 0 => format!("{place} is already in place ({step}, commit {commit})\n"),
                Some(commit) => format!("{place} is in place ({step}, commit {commit}, {fetched} bytes fetched)\n"),
            }
        }
    };
    Ok(show(as_json, &json!({ "resume": object }), &text))
}

/// The commits of the store and the content of the checkpoint directory, each if it was given. A missing directory
/// counts as empty beside a store; alone it is a mistake.
async fn list(mirror: &Mirror, as_json: bool, has_dir: bool) -> Result<u8, Failure> {
    let commits = mirror.listed().await.map_err(query_failure)?;
    let mut value = json!({ "commits": commits.iter().map(object).collect::<Vec<Value>>() });
    let mut table = mirror.config.store.as_ref().map_or(String::new(), |store| commits_table(&commits, store));
    if has_dir {
        let local = directory::survey(mirror).await?;
        if let (Some(error), None) = (&local.absent, mirror.config.store.as_ref()) {
            return Err(Failure::no_directory(&mirror.config.dir, error));
        }
        value["local"] = local.parts.iter().filter(|part| part.state != State::Empty).map(part_object).collect();
        value["excluded"] = local.excluded.iter().map(excluded_object).collect();
        table.push_str(&local_table(&local, &mirror.config.dir));
    }
    Ok(show(as_json, &value, &table))
}

async fn verify(mirror: &Mirror, as_json: bool) -> Result<u8, Failure> {
    let commits = mirror.verified(&*shown("verifying")).await.map_err(query_failure)?;
    let value = json!({ "commits": commits.iter().map(object).collect::<Vec<Value>>() });
    let mut table = mirror.config.store.as_ref().map_or(String::new(), |store| commits_table(&commits, store));
    let whole = commits.iter().filter(|c| c.problems.is_empty()).count();
    if !commits.is_empty() {
        let is = if commits.len() == 1 { "commit is" } else { "commits are" };
        table.push_str(&format!("{whole} of {} {is} complete, every byte was read and checked\n", commits.len()));
    }
    let code = show(as_json, &value, &table);
    Ok(if whole < commits.len() { 1 } else { code })
}

async fn prune(mirror: &Mirror, as_json: bool, dry: bool) -> Result<u8, Failure> {
    let pruned = mirror.prune(dry).await.map_err(query_failure)?;
    let commits: Vec<String> = pruned.commits.iter().map(ToString::to_string).collect();
    let value = json!({"commits": commits, "orphans": pruned.orphans, "half_written": pruned.swept, "kept": pruned.kept, "dry_run": dry});
    Ok(show(as_json, &value, &pruned_text(&pruned, dry)))
}

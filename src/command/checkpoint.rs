//! `trainit checkpoint list|verify|push|pull|prune`: the store by hand, over the same code as `run`.
//!
//! `push` claims an attempt as a run does, so it takes the store over from one that is still going: that run is fenced. The
//! store does not say whether there is one; the runs of this machine do.

mod push;
pub(super) mod shown;

use std::time::Duration;

use serde_json::{Value, json};

use self::push::Asked;
use self::shown::{commits_table, local_object, local_table, object, pruned_text, step_text};
use super::keeping::mirror_config;
use super::{refuse, values};
use crate::cli::Parsed;
use crate::edge::places::Found;
use crate::edge::store::StoreError;
use crate::edge::{blocking, signals, stdio};
use crate::rules::env::Env;
use crate::rules::plain::plain;
use crate::settings::checkpoint::{Checkpoints, Resuming};
use crate::settings::nearest::hint;
use crate::settings::{Complaint, Origin, Reader, Values};
use crate::supervisor::keeper::mirror::{Mirror, MirrorConfig, MirrorError};
use crate::supervisor::keeper::transfer::shown;

/// What is still on its way to a disk at the end is waited for so long.
const LAST_WORD: Duration = Duration::from_millis(500);

const DEEDS: [&str; 5] = ["list", "verify", "push", "pull", "prune"];

/// Does one of [`DEEDS`]. Exit codes: as the help says.
pub fn main(parsed: &Parsed, env: &Env) -> u8 {
    // A server that closes a connection is asked again; it must not end the process.
    signals::ignore_write_signals();
    let deed = parsed.operands.first().and_then(|o| o.to_str()).unwrap_or_default();
    if !DEEDS.contains(&deed) {
        let known = DEEDS.join(", ");
        return refuse(&[format!("checkpoint {deed}: expected one of {known}{}", hint(deed, &DEEDS))]);
    }
    let (layered, complaints) = values(parsed, env);
    let mut reader = Reader::new(&layered, complaints);
    let mut settings = Checkpoints::read(&mut reader);
    settings.model_dir = reader.path("model-dir");
    let is_told = |name: &&str| layered.get(name).is_some_and(|given| given.origin != Origin::Default);
    if deed == "push" && !["keep-last", "keep-every"].iter().any(is_told) {
        // The rule that kept what lies there was given to another command.
        settings.retention.last = u64::MAX;
    }
    let (as_json, dry) = (reader.switch("json"), reader.switch("dry-run"));
    let takes_over = reader.switch("take-over");
    let mut complaints = reader.complaints;
    complaints.extend(lacking(deed, &layered));
    // A variable or a file may hold it for a run; on the command line it was meant for this.
    for (name, other, of) in [("restore-step", "push-step", "push"), ("push-step", "restore-step", "pull")] {
        if deed == of && parsed.flags.contains_key(name) {
            let message = format!("checkpoint {deed} does not heed it; give --{other}");
            complaints.push(Complaint { place: format!("--{name}"), message });
        }
    }
    if !complaints.is_empty() {
        return refuse(&complaints);
    }
    // Before there is a thread.
    let held = (deed == "push").then(|| signals::hold_back(&push::STOPPING));
    let runtime = match blocking::runtime(true) {
        Ok(runtime) => runtime,
        Err(error) => return fail(&MirrorError { message: format!("cannot start: {error}"), code: 1 }),
    };
    let (settle, restore, has_dir) = (settings.settle, settings.restore, settings.dir.is_some());
    let config = |claim| MirrorConfig {
        dry,
        only_sends: claim,
        ..mirror_config(settings.clone(), &Found::default(), 0, claim, env)
    };
    let done = runtime.block_on(async {
        if let Some(held) = held {
            let tmp = env.given("TMPDIR").map(str::to_owned);
            return push::push(config, Asked { settle, as_json, dry, takes_over, tmp }, held).await;
        }
        let mut mirror = Mirror::open(config(false)).await?;
        let done = match deed {
            "pull" => pull(&mut mirror, restore, as_json, dry).await,
            "verify" => verify(&mirror, as_json).await,
            "prune" => prune(&mirror, as_json, dry).await,
            _ => list(&mirror, as_json, has_dir).await,
        };
        tell(&mirror);
        done
    });
    // A disk that hangs holds up no end.
    runtime.shutdown_timeout(LAST_WORD);
    done.unwrap_or_else(|error| fail(&error))
}

/// Complaints about places that were not given.
fn lacking(deed: &str, layered: &Values) -> Vec<Complaint> {
    let is_given = |name: &str| layered.get(name).is_some();
    let copies = matches!(deed, "push" | "pull");
    let needs = [
        ("checkpoint-dir", "TRAINIT_CHECKPOINT_DIR", copies),
        ("checkpoint-store", "TRAINIT_CHECKPOINT_STORE", copies || deed != "list" || !is_given("checkpoint-dir")),
    ];
    let missing = needs.into_iter().filter(|(name, _, needed)| *needed && !is_given(name));
    let complaint = |(name, variable, _)| Complaint {
        place: format!("--{name}"),
        message: match deed {
            "list" => "checkpoint list needs it, or --checkpoint-dir; give a store, a directory or both".to_owned(),
            _ => format!("checkpoint {deed} needs it; give --{name} or {variable}"),
        },
    };
    missing.map(complaint).collect()
}

/// What no result says, for people.
fn tell(mirror: &Mirror) {
    for note in mirror.take_notes() {
        stdio::complain(&format!("trainit: {note}"));
    }
}

fn tell_passed(mirror: &Mirror) {
    for why in mirror.passed() {
        stdio::complain(&format!("trainit: passed over: {why}"));
    }
}

fn fail(error: &MirrorError) -> u8 {
    stdio::complain(&format!("trainit: error: {error}"));
    error.code
}

fn asking(error: StoreError) -> MirrorError {
    MirrorError::asking(&error)
}

/// Prints the object, or the text; 1 when nobody listens.
fn show(as_json: bool, value: &Value, text: &str) -> u8 {
    let line = if as_json { format!("{value}\n") } else { text.to_owned() };
    u8::from(stdio::print(&line).is_err())
}

async fn pull(mirror: &mut Mirror, restore: Resuming, as_json: bool, dry: bool) -> Result<u8, MirrorError> {
    mirror.hear_restore(Box::new(|| shown("pulling")));
    let resume = mirror.restore().await?;
    let brought = mirror.brought();
    let object = resume.as_ref().map(|r| {
        let fetched = brought.map(|b| b.fetched);
        json!({"from": r.from, "step": r.step, "commit": r.commit.as_ref().map(ToString::to_string), "fetched_bytes": fetched})
    });
    let text = match (&resume, brought) {
        (None, _) if restore == Resuming::None => "nothing was pulled: --restore is none\n".to_owned(),
        (None, _) => "there is nothing to pull\n".to_owned(),
        (Some(r), brought) => {
            let (place, step) = (plain(&r.from.to_string_lossy()), step_text(r.step));
            let commit = r.commit.as_ref().map(ToString::to_string).unwrap_or_default();
            match brought {
                None => format!("{place} stays ({step}): no newer one is committed\n"),
                Some(b) if b.was_there => format!("{place} is in place already ({step}, commit {commit})\n"),
                Some(b) if dry => {
                    format!("would pull {place} ({step}, commit {commit}, {} bytes to fetch)\n", b.fetched)
                }
                Some(b) => format!("{place} is in place ({step}, commit {commit}, {} bytes fetched)\n", b.fetched),
            }
        }
    };
    let key = if dry { "would_pull" } else { "resume" };
    Ok(show(as_json, &json!({ key: object }), &text))
}

/// The commits of the store, and what lies in the checkpoint directory, each where it was given. A directory that is not
/// there holds nothing yet beside a store; alone it is a mistake.
async fn list(mirror: &Mirror, as_json: bool, has_dir: bool) -> Result<u8, MirrorError> {
    let commits = mirror.listed().await.map_err(asking)?;
    let mut value = json!({ "commits": commits.iter().map(object).collect::<Vec<Value>>() });
    let mut table = mirror.place().map_or(String::new(), |store| commits_table(&commits, store));
    if has_dir {
        let local = mirror.survey().await?;
        if let (Some(error), None) = (&local.absent, mirror.place()) {
            return Err(mirror.no_directory(error));
        }
        value["local"] = local.units.iter().map(local_object).collect();
        table.push_str(&local_table(&local, mirror.directory()));
    }
    Ok(show(as_json, &value, &table))
}

async fn verify(mirror: &Mirror, as_json: bool) -> Result<u8, MirrorError> {
    let commits = mirror.verified(&*shown("verifying")).await.map_err(asking)?;
    let value = json!({ "commits": commits.iter().map(object).collect::<Vec<Value>>() });
    let mut table = mirror.place().map_or(String::new(), |store| commits_table(&commits, store));
    let whole = commits.iter().filter(|c| c.problems.is_empty()).count();
    if !commits.is_empty() {
        let is = if commits.len() == 1 { "commit is" } else { "commits are" };
        table.push_str(&format!("{whole} of {} {is} whole, every byte read and summed\n", commits.len()));
    }
    let code = show(as_json, &value, &table);
    Ok(if whole < commits.len() { 1 } else { code })
}

async fn prune(mirror: &Mirror, as_json: bool, dry: bool) -> Result<u8, MirrorError> {
    let pruned = mirror.prune(dry).await.map_err(asking)?;
    let commits: Vec<String> = pruned.commits.iter().map(ToString::to_string).collect();
    let value = json!({"commits": commits, "orphans": pruned.orphans, "half_written": pruned.swept, "kept": pruned.kept, "dry_run": dry});
    Ok(show(as_json, &value, &pruned_text(&pruned, dry)))
}

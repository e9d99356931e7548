//! `trainit checkpoint push`: commits the local checkpoints, and undoes an incomplete push that a signal stops.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use serde_json::json;

use super::shown::step_text;
use super::{log_left_out, print_failure, show};
use crate::edge::clock::Clock;
use crate::edge::io::stdio;
use crate::edge::process::signals::HeldBack;
use crate::edge::store::StoreError;
use crate::rules::checkpoint::Plan;
use crate::rules::process::exit;
use crate::rules::process::signal::Signal;
use crate::rules::store::manifest::Manifest;
use crate::rules::store::names::Stamp;
use crate::rules::text::safe_text::printable;
use crate::supervisor::checkpoints::commit::outcome::{Ask, Outcome, name_of_part};
use crate::supervisor::checkpoints::config::{Config, Role};
use crate::supervisor::checkpoints::directory::look::How;
use crate::supervisor::checkpoints::failure::Failure;
use crate::supervisor::checkpoints::mirror::Mirror;
use crate::supervisor::checkpoints::progress::shown;
use crate::supervisor::checkpoints::store::commits::{commits, judge};
use crate::supervisor::keep::sibling::committer;

/// The signals that stop a push.
pub(super) const STOPPING: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];
/// The limit for undoing it.
const UNDO_LIMIT: Duration = Duration::from_millis(1500);
/// A push waits at most this many times the settle time until the files are unchanged.
const SETTLE_TIMES: u32 = 4;
/// The interval for checking whether a signal has arrived.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The options.
pub(super) struct PushOptions {
    pub(super) settle: Duration,
    pub(super) as_json: bool,
    /// The user's TMPDIR, one of the places where runs are found.
    pub(super) tmp: Option<String>,
}

/// Commits the content of the directory. Errors: as [`Mirror::open`].
pub(super) async fn push(config: impl Fn(Role) -> Config, options: PushOptions, held: HeldBack) -> Result<u8, Failure> {
    let PushOptions { settle, as_json, tmp } = options;
    let mut pushing = None;
    let action = async {
        let mut looking = Mirror::open_to_look(config(Role::Looks)).await?;
        let how = if settle.is_zero() { How::AT_REST } else { How::running(settle) };
        let plan = match planned(&mut looking, how).await? {
            Ok(plan) => plan,
            Err(why) => return Ok(nothing_pushed(&why)),
        };
        if let Some(newest) = newest_if_same(&looking, &plan).await.map_err(|error| Failure::asking(&error))? {
            log_left_out(&looking);
            let parts: Vec<String> = plan.parts.iter().map(|part| name_of_part(&part.record)).collect();
            let value = json!({"up_to_date": {"parts": parts, "step": plan.step, "commit": newest.to_string()}});
            let (parts, step) = (printable(&parts.join(", ")), step_text(plan.step));
            let text = format!("nothing to push: the newest commit, {newest}, is already {parts} ({step})\n");
            return Ok(show(as_json, &value, &text));
        }
        if let Config { store: Some(store), dir, .. } = config(Role::Looks)
            && let Some(pid) = committer(&store, dir, tmp).await
        {
            return Ok(nothing_pushed(&refused_beside_run(pid)));
        }
        let mirror = pushing.insert(Mirror::open(config(Role::Pushes)).await?);
        // It knows already how long the files have been unchanged.
        mirror.watcher = looking.watcher.clone();
        let outcome = mirror.commit(&Ask { how, limit: None }, &*shown("pushing")).await;
        mirror.retire(Duration::MAX, true).await;
        Ok(pushed(mirror, outcome, as_json))
    };
    let stop = async {
        loop {
            match held.arrived() {
                Some(signal) => return signal,
                None => tokio::time::sleep(CHECK_INTERVAL).await,
            }
        }
    };
    let signal = tokio::select! {
        biased;
        done = action => return done,
        signal = stop => signal,
    };
    stdio::complain(&format!("trainit: error: stopped by {signal}: {}", stopped(pushing.as_ref()).await));
    Ok(exit::End::Signal(signal).code())
}

/// What is to be committed, once it has been unchanged for the settle time; the inner error says why there is nothing.
/// Errors: the directory cannot be read.
async fn planned(mirror: &mut Mirror, how: How) -> Result<Result<Plan, String>, Failure> {
    let unreadable = |error: io::Error| Failure::no_directory(&mirror.config.dir, &error);
    mirror.in_dir(|_| Ok(())).await.map_err(unreadable)?;
    mirror.watcher.begin_once().await.map_err(unreadable)?;
    let (clock, limit) = (Clock::start(), how.settle * SETTLE_TIMES);
    let look = loop {
        let look = mirror.watcher.look(how).await.map_err(unreadable)?;
        match look.again.filter(|_| look.plan.is_none() && clock.now() < limit) {
            Some(again) => tokio::time::sleep(again).await,
            None => break look,
        }
    };
    let passed_over = mirror.watcher.passed_over().await.map_err(unreadable)?;
    mirror.seen.parts = look.parts.into_iter().chain(passed_over).collect();
    let nothing = || format!("there is nothing to commit in {}", mirror.config.dir.display());
    Ok(look.plan.ok_or_else(|| mirror.left_out().into_iter().next().unwrap_or_else(nothing)))
}

/// The newest complete commit, if it has exactly the files of the plan. Only files that look the same by size and time
/// are read.
async fn newest_if_same(mirror: &Mirror, plan: &Plan) -> Result<Option<Stamp>, StoreError> {
    let Some(remote) = &mirror.remote else { return Ok(None) };
    for name in commits(&remote.store).await? {
        let Ok(manifest) = judge(&remote.store, &name).await? else { continue };
        let is_held = seems_same(&manifest, plan) && mirror.holds(&manifest).await;
        return Ok(is_held.then_some(name.stamp));
    }
    Ok(None)
}

fn seems_same(manifest: &Manifest, plan: &Plan) -> bool {
    let committed: HashSet<(&str, u64, i64)> =
        manifest.regular().map(|f| (f.path.as_str(), f.size, f.mtime_ns)).collect();
    let planned = plan.local_files().map(|entry| (entry.path.as_str(), entry.size, entry.mtime_ns));
    planned.collect::<HashSet<_>>() == committed
}

/// The result of a push that was stopped.
async fn stopped(pushing: Option<&Mirror>) -> String {
    let Some(mirror) = pushing else { return "nothing was pushed; push again".to_owned() };
    if let Some((step, stamp)) = mirror.committed() {
        let step = step_text(step);
        return format!("{stamp} is committed ({step}), older ones may be left; trainit checkpoint prune deletes them");
    }
    let why = match tokio::time::timeout(UNDO_LIMIT, mirror.take_back()).await {
        Ok(false) => "nothing was pushed, and the sent parts were deleted; push again",
        Ok(true) => {
            "the commit was being written, and trainit checkpoint list says whether it exists; push again if not"
        }
        Err(_) => "nothing was pushed, but sent parts may be left; push again, trainit checkpoint prune deletes them",
    };
    why.to_owned()
}

/// Why a push is refused while the run with this PID commits to the store.
fn refused_beside_run(pid: i32) -> String {
    let run = if pid > 0 { format!("pid {pid}") } else { "a process of another container".to_owned() };
    format!(
        "{run} on this machine commits to this store, and a push would end that run with 205: stop that run first, or push to another --checkpoint-store"
    )
}

fn nothing_pushed(why: &str) -> u8 {
    stdio::complain(&format!("trainit: error: nothing was pushed: {why}"));
    1
}

fn pushed(mirror: &Mirror, outcome: Outcome, as_json: bool) -> u8 {
    let stamp = mirror.committed().map(|(_, stamp)| stamp.to_string());
    match outcome {
        Outcome::Committed { step, unit, bytes, seconds, .. } => {
            log_left_out(mirror);
            show(
                as_json,
                &json!({"committed": {"unit": unit, "step": step, "bytes": bytes, "seconds": seconds, "commit": stamp}}),
                &format!(
                    "committed {} ({}, {bytes} bytes, {seconds:.2} s) as {}\n",
                    printable(&unit),
                    step_text(step),
                    stamp.unwrap_or_default()
                ),
            )
        }
        Outcome::UpToDate { step } => show(
            as_json,
            &json!({"up_to_date": {"step": step, "commit": stamp}}),
            &format!("the store has it already ({})\n", step_text(step)),
        ),
        Outcome::Waiting { why, .. } => nothing_pushed(&why),
        Outcome::Empty => nothing_pushed("there is nothing to commit"),
        Outcome::Changed { why } => nothing_pushed(&format!("{why}; push again when it no longer changes")),
        Outcome::Fenced { by } => print_failure(&Failure {
            message: format!("a newer run (incarnation {}) has taken over the store; nothing was pushed", by.number),
            code: exit::FENCED,
        }),
        Outcome::Failed { message, .. } => print_failure(&Failure { message, code: exit::STORE }),
        Outcome::OutOfTime { why } => print_failure(&Failure { message: why, code: exit::STORE }),
    }
}

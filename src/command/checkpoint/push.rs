//! `trainit checkpoint push`: commits the local checkpoints, and undoes an incomplete push that a signal stops.

use std::time::Duration;

use serde_json::json;

use super::shown::step_text;
use super::{log_left_out, print_failure, show};
use crate::edge::io::stdio;
use crate::edge::process::signals::HeldBack;
use crate::rules::process::exit;
use crate::rules::process::signal::Signal;
use crate::rules::text::safe_text::{counted, printable};
use crate::supervisor::checkpoints::by_hand::Next;
use crate::supervisor::checkpoints::commit::outcome::Outcome;
use crate::supervisor::checkpoints::config::{Config, Role};
use crate::supervisor::checkpoints::failure::Failure;
use crate::supervisor::checkpoints::mirror::Mirror;
use crate::supervisor::checkpoints::thread::progress::shown;
use crate::supervisor::checkpoints::thread::sibling::committer;

/// The signals that stop a push.
pub(super) const STOPPING: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];
/// The limit for undoing it.
const UNDO_LIMIT: Duration = Duration::from_millis(1500);
/// The interval for checking whether a signal has arrived.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The options.
pub(super) struct PushOptions {
    pub(super) settle: Duration,
    pub(super) as_json: bool,
    /// Only print what would be pushed.
    pub(super) dry: bool,
    /// Take over the store from a live run.
    pub(super) take_over: bool,
    /// The user's TMPDIR, one of the places where runs are found.
    pub(super) tmp: Option<String>,
}

/// Commits what lies in the directory. Errors: as [`Mirror::open`].
pub(super) async fn push(config: impl Fn(Role) -> Config, options: PushOptions, held: HeldBack) -> Result<u8, Failure> {
    let PushOptions { settle, as_json, dry, take_over, tmp } = options;
    let mut pushing = None;
    let action = async {
        let mut looking = Mirror::open_to_look(config(Role::Looks)).await?;
        let next = looking.next(settle).await?;
        if next.as_ref().is_ok_and(|next| next.held.is_none())
            && let Config { store: Some(store), dir, .. } = config(Role::Looks)
            && !take_over
            && let Some(pid) = committer(&store, dir, tmp).await
        {
            return Ok(nothing_pushed(&beside_run(pid)));
        }
        match next {
            Ok(next) if next.held.is_none() && !dry => {
                let mirror = pushing.insert(Mirror::open(config(Role::Pushes)).await?);
                let outcome = mirror.push(settle, &*shown("pushing")).await;
                mirror.retire(Duration::MAX, true).await;
                Ok(pushed(mirror, outcome, as_json))
            }
            next => Ok(would_push(&looking, next, as_json)),
        }
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

/// Prints what would be pushed.
fn would_push(mirror: &Mirror, next: Result<Next, String>, as_json: bool) -> u8 {
    match next {
        Ok(next) => {
            log_left_out(mirror);
            let (parts, step) = (printable(&next.parts.join(", ")), step_text(next.step));
            let value = json!({"parts": next.parts, "step": next.step, "files": next.files, "bytes": next.bytes, "commit": next.held.as_ref().map(ToString::to_string)});
            match next.held {
                Some(held) => {
                    let text = format!("nothing to push: the newest commit, {held}, is already {parts} ({step})\n");
                    show(as_json, &json!({ "up_to_date": value }), &text)
                }
                None => {
                    let files = counted(next.files, "file");
                    let text = format!("would push {parts} ({step}, {files}, {} bytes)\n", next.bytes);
                    show(as_json, &json!({ "would_push": value }), &text)
                }
            }
        }
        Err(why) => nothing_pushed(&why),
    }
}

/// Why a push is refused beside this process.
fn beside_run(pid: i32) -> String {
    let run = if pid > 0 { format!("pid {pid}") } else { "a process of another container".to_owned() };
    format!(
        "{run} on this machine is a run that commits to this store, which a push would end with 205: let that run commit, push after its end, or give --take-over"
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

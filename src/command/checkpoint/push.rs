//! `trainit checkpoint push`: what was found to commit, committed, and taken back where a signal stops that.

use std::time::Duration;

use serde_json::json;

use super::shown::step_text;
use super::{fail, show, tell, tell_passed};
use crate::edge::signals::HeldBack;
use crate::edge::stdio;
use crate::rules::exit;
use crate::rules::plain::{counted, plain};
use crate::rules::signal::Signal;
use crate::supervisor::keeper::commit::Outcome;
use crate::supervisor::keeper::foresight::Next;
use crate::supervisor::keeper::mirror::{Mirror, MirrorConfig, MirrorError};
use crate::supervisor::keeper::sibling::committer;
use crate::supervisor::keeper::transfer::shown;

/// What stops a push.
pub(super) const STOPPING: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];
/// How long what was sent is taken back then.
const TAKING_BACK: Duration = Duration::from_millis(1500);
/// Between two looks whether a signal has come.
const LOOK: Duration = Duration::from_millis(50);

/// How.
pub(super) struct Asked {
    pub(super) settle: Duration,
    pub(super) as_json: bool,
    /// Only to say what would be pushed.
    pub(super) dry: bool,
    /// Even from a run that is alive.
    pub(super) takes_over: bool,
    /// The user's TMPDIR: one of the places where runs are found.
    pub(super) tmp: Option<String>,
}

/// Commits the newest complete checkpoint. Errors: as [`Mirror::open`].
pub(super) async fn push(
    config: impl Fn(bool) -> MirrorConfig,
    asked: Asked,
    held: HeldBack,
) -> Result<u8, MirrorError> {
    let Asked { settle, as_json, dry, takes_over, tmp } = asked;
    let mut pushing = None;
    let deed = async {
        let mut looking = Mirror::open_to_look(config(false)).await?;
        let next = looking.next().await?;
        if next.as_ref().is_ok_and(|next| next.held.is_none())
            && let MirrorConfig { store: Some(store), dir, .. } = config(false)
            && !takes_over
            && let Some(pid) = committer(&store, dir, tmp).await
        {
            return Ok(nothing_pushed(&beside(pid)));
        }
        match next {
            Ok(next) if next.held.is_none() && !dry => {
                let mirror = pushing.insert(Mirror::open(config(true)).await?);
                mirror.go_by(looking);
                // Who says 0 knows that nobody writes.
                let settle = Some(settle).filter(|settle| !settle.is_zero());
                let outcome = mirror.commit_newest(settle, None, &*shown("pushing")).await;
                mirror.retire(Duration::MAX, true).await;
                tell(mirror);
                let code = pushed(mirror, outcome, as_json);
                Ok(owed(mirror, code).await)
            }
            next => {
                let code = would_push(&looking, next, as_json);
                Ok(owed(&looking, code).await)
            }
        }
    };
    let stop = async {
        loop {
            match held.arrived() {
                Some(signal) => return signal,
                None => tokio::time::sleep(LOOK).await,
            }
        }
    };
    let signal = tokio::select! {
        biased;
        done = deed => return done,
        signal = stop => signal,
    };
    stdio::complain(&format!("trainit: error: stopped by {signal}: {}", stopped(pushing.as_ref()).await));
    Ok(exit::End::Signal(signal).code())
}

/// What came of a push that was stopped.
async fn stopped(pushing: Option<&Mirror>) -> String {
    let Some(mirror) = pushing else { return "nothing was pushed; push again".to_owned() };
    tell(mirror);
    if let Some((step, stamp)) = mirror.committed() {
        let step = step_text(step);
        return format!("{stamp} is committed ({step}), older ones may be left; trainit checkpoint prune deletes them");
    }
    let why = match tokio::time::timeout(TAKING_BACK, mirror.take_back()).await {
        Ok(false) => "nothing was pushed, and what was sent of it is taken back; push again",
        Ok(true) => {
            "the commit was being written, and trainit checkpoint list says whether it is there; push again if not"
        }
        Err(_) => {
            "nothing was pushed, and what was sent of it may be left; push again, trainit checkpoint prune deletes it"
        }
    };
    why.to_owned()
}

/// What there is to push where nothing is pushed.
fn would_push(mirror: &Mirror, next: Result<Next, String>, as_json: bool) -> u8 {
    match next {
        Ok(next) => {
            tell_passed(mirror);
            let (unit, step) = (plain(&next.unit), step_text(next.step));
            let value = json!({"unit": next.unit, "step": next.step, "files": next.files, "bytes": next.bytes, "commit": next.held.as_ref().map(ToString::to_string)});
            match next.held {
                Some(held) => {
                    let text = format!("nothing to push: the newest commit, {held}, is {unit} ({step}) already\n");
                    show(as_json, &json!({ "up_to_date": value }), &text)
                }
                None => {
                    let files = counted(next.files, "file");
                    let text = format!("would push {unit} ({step}, {files}, {} bytes)\n", next.bytes);
                    show(as_json, &json!({ "would_push": value }), &text)
                }
            }
        }
        Err(why) => nothing_pushed(&why),
    }
}

/// The exit code where a newer one was owed, that cannot be read: it is no older one that was asked for.
async fn owed(mirror: &Mirror, code: u8) -> u8 {
    match mirror.denied().await.filter(|_| code == 0) {
        Some((what, way_out)) => fail(&MirrorError { message: format!("{what}; {way_out}"), code: exit::STORE }),
        None => code,
    }
}

/// Why there is no push beside this process.
fn beside(pid: i32) -> String {
    let who = if pid > 0 { format!("pid {pid}") } else { "a process of another container".to_owned() };
    format!(
        "{who} on this machine is a run that commits to this store, which a push would end with 205: leave the committing to it, push when it has ended, or give --take-over"
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
            tell_passed(mirror);
            show(
                as_json,
                &json!({"committed": {"unit": unit, "step": step, "bytes": bytes, "seconds": seconds, "commit": stamp}}),
                &format!(
                    "committed {} ({}, {bytes} bytes, {seconds:.2} s) as {}\n",
                    plain(&unit),
                    step_text(step),
                    stamp.unwrap_or_default()
                ),
            )
        }
        Outcome::UpToDate { step } => show(
            as_json,
            &json!({"up_to_date": {"step": step, "commit": stamp}}),
            &format!("the store holds it already ({})\n", step_text(step)),
        ),
        Outcome::NothingComplete { why } => nothing_pushed(&why),
        Outcome::Changed { why } => nothing_pushed(&format!("{why}; push again when it lies still")),
        Outcome::Fenced { by } => fail(&MirrorError {
            message: format!("a newer run (incarnation {}) has taken over the store; nothing was pushed", by.number),
            code: exit::FENCED,
        }),
        Outcome::Failed { message, code, .. } => fail(&MirrorError { message, code }),
        Outcome::OutOfTime { why } => fail(&MirrorError { message: why, code: exit::STORE }),
    }
}

//! What the keeper tells of its work: the supervisor events, the log lines.

use std::cell::Cell;
use std::time::Duration;

use super::commit::Outcome;
use super::mirror::{self, Mirror, MirrorError};
use super::model::LeftModel;
use super::transfer::log_lines;
use super::{Keeper, PROGRESS_PAUSE, SAID_AGAIN, STALE_LOOKS};
use crate::edge::clock::Clock;
use crate::rules::checkpoint::names::Attempt;
use crate::rules::exit;
use crate::rules::job::{Event, Flushed, Mirrored, Resume};

impl Keeper {
    /// Hears of a transfer: the supervisor is told that it moves, the log how far it is.
    pub(super) fn progress(&self, what: &'static str) -> impl Fn(u64, u64) + use<> {
        let (clock, said_at, teller, lines) =
            (Clock::start(), Cell::new(Duration::ZERO), self.teller.clone(), log_lines(what));
        move |done, all| {
            lines(done, all);
            let now = clock.now();
            if now.saturating_sub(said_at.get()) >= PROGRESS_PAUSE {
                said_at.set(now);
                teller.tell(Event::Transferring);
            }
        }
    }

    /// Hears how far the store is behind: the supervisor is told when that changes.
    pub(super) fn behind(&self) -> Box<dyn Fn(Option<u64>)> {
        let (teller, said) = (self.teller.clone(), Cell::new(None));
        Box::new(move |steps| {
            if said.replace(Some(steps)) != Some(steps) {
                teller.tell(Event::Mirrored(Mirrored::Behind(steps)));
            }
        })
    }

    /// That there is a commit; and, for who counts, that there is none.
    pub(super) fn tell_outcome(&self, outcome: &Outcome) {
        let news = match *outcome {
            Outcome::Committed { bytes, seconds, ref unit, step, lag } => {
                let (took, lag) = (Duration::from_secs_f64(seconds), Duration::from_secs_f64(lag));
                self.teller.tell(Event::Committed { unit: unit.clone(), step, took, lag });
                Mirrored::Committed { bytes, took }
            }
            Outcome::Failed { cause, .. } => Mirrored::Failed(cause),
            Outcome::OutOfTime { .. } => Mirrored::Failed("out_of_time"),
            Outcome::Fenced { .. } => Mirrored::Failed("fenced"),
            Outcome::UpToDate { .. } | Outcome::NothingComplete { .. } | Outcome::Changed { .. } => return,
        };
        self.teller.tell(Event::Mirrored(news));
    }

    pub(super) fn complain(&mut self, message: String) {
        self.complain_of("commit_failed", message);
    }

    fn complain_of(&mut self, code: &'static str, message: String) {
        let (steps, lag) = self.mirror.as_ref().and_then(Mirror::behind).unwrap_or_default();
        let is_worse = lag >= SAID_AGAIN && lag >= self.said.1 * 2;
        // Each try has a number of its own, and names it.
        let gist: String = message.chars().filter(|c| !c.is_ascii_digit()).collect();
        if self.said.0 != gist || is_worse {
            let lag_seconds = lag.as_secs();
            tracing::warn!(code, lag_steps = steps, lag_seconds, "{message}");
            self.said = (gist, lag);
        }
    }

    /// What the checkpoints are taken for, once; and why the newest is not taken, once, when it is no save under way any
    /// more.
    pub(super) fn tell_look(&mut self, at_rest: bool) {
        let Some((name, evidence)) = self.mirror.as_ref().and_then(Mirror::taken_for) else { return };
        let Some(mirror) = &self.mirror else { return };
        if name != self.taken_for {
            self.taken_for = name;
            tracing::info!("checkpoints in {} are recognised as {name}: {evidence}", mirror.directory().display());
        }
        let why = mirror.passed().first().cloned().unwrap_or_default();
        let looks = if self.passed.0 == why { self.passed.1.saturating_add(1) } else { 1 };
        let is_due = looks == STALE_LOOKS || at_rest && looks < STALE_LOOKS;
        if !why.is_empty() && is_due {
            let committed_step = mirror.committed().and_then(|(step, _)| step);
            tracing::warn!(code = "checkpoint_passed_over", committed_step, "{why}; it is not committed");
        }
        self.passed = (why, if at_rest { STALE_LOOKS } else { looks });
    }

    /// That the newest does not lie still, where saves come too fast for it or one takes very long.
    pub(super) fn tell_restless(&mut self) {
        let Some(mirror) = &self.mirror else { return };
        let (restless, lag) = (&mirror.restless, mirror.behind().unwrap_or_default().1);
        if self.haste.is_over() || restless.looks < STALE_LOOKS && lag < SAID_AGAIN {
            return;
        }
        let message = format!(
            "{} is complete and is not committed: it never lies still for the {:?} of --settle and until it is copied; \
             {}; let the trainer keep more than one checkpoint, each under a name of its own, or save less often, or give a \
             shorter --settle",
            restless.unit,
            self.settle,
            mirror.what_stands()
        );
        self.complain_of("checkpoint_passed_over", message);
    }

    pub(super) fn tell_notes(&mut self) {
        for note in self.mirror.as_ref().map(Mirror::take_notes).unwrap_or_default() {
            tracing::warn!(code = "checkpoint", "{note}");
        }
    }

    pub(super) fn tell_restored(&self, resume: Option<mirror::Resume>) {
        let committed = self.mirror.as_ref().and_then(|m| m.committed()).and_then(|(step, _)| step);
        let resume = resume.map(|r| Resume {
            from: r.from.to_string_lossy().into_owned(),
            step: r.step,
            written_ns: r.written_ns,
        });
        let older = self.mirror.as_ref().is_some_and(|mirror| mirror.has_older);
        self.teller.tell(Event::Restored { resume, committed, older });
    }

    pub(super) fn tell_fenced(&self, by: &str) {
        self.teller.tell(Event::Fenced {
            detail: format!(
                "a newer run of this job (incarnation {by}) has taken over the store; this one stops so that the two do not mix, code {}",
                exit::FENCED
            ),
        });
    }

    pub(super) fn tell_found(&mut self, restored: Result<Option<mirror::Resume>, MirrorError>) {
        self.tell_notes();
        match restored {
            Ok(resume) => self.tell_restored(resume),
            Err(MirrorError { message, code }) => self.teller.tell(Event::NotRestored { code, detail: message }),
        }
    }

    /// `None`: it was cut off.
    pub(super) fn tell_published(&self, published: Option<Result<Flushed, Attempt>>) {
        let late = || Ok(Flushed::OutOfTime(self.model.as_ref().map_or(String::new(), LeftModel::cut_off)));
        self.tell_flushed(published.unwrap_or_else(late));
    }

    /// Errors: a newer run has taken over.
    pub(super) fn tell_flushed(&self, flushed: Result<Flushed, Attempt>) {
        match flushed {
            Ok(flushed) => self.teller.tell(Event::Flushed(flushed)),
            Err(by) => self.tell_fenced(&by.to_string()),
        }
    }
}

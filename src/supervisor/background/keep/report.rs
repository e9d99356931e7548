//! Reports of the work: events for the supervisor, lines for the log.

use std::cell::Cell;
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::rules::job::{self, Event, Flushed, Mirrored};
use crate::rules::process::exit;
use crate::rules::store::names::Attempt;
use crate::rules::text::quoted::shown;
use crate::supervisor::background::orders::EventSender;
use crate::supervisor::checkpoints::commit::outcome::Outcome;
use crate::supervisor::checkpoints::config::Restore;
use crate::supervisor::checkpoints::failure::Failure;
use crate::supervisor::checkpoints::mirror::{Mirror, Resume};
use crate::supervisor::checkpoints::progress::{OnProgress, log_lines};

/// The pause between two reports of progress to the supervisor.
const PROGRESS_PAUSE: Duration = Duration::from_millis(500);
/// A complaint is repeated when the store is twice as far behind as at the last one, and at least this far.
const SAID_AGAIN: Duration = Duration::from_secs(120);

/// Reports to the supervisor and the log.
pub(super) struct Report {
    events: EventSender,
    /// The last complaint, and how far behind the store was then. So an outage of the store is logged now and then, and
    /// not at each interval.
    said: (String, Duration),
}

/// Logs the progress of a transfer, and reports it as the event that `word` makes.
fn on_progress(events: EventSender, what: &'static str, word: fn(u64, u64) -> Event) -> OnProgress {
    let (clock, said_at, lines) = (Clock::start(), Cell::new(Duration::ZERO), log_lines(what));
    Box::new(move |done, all| {
        lines(done, all);
        let now = clock.now();
        if now.saturating_sub(said_at.get()) >= PROGRESS_PAUSE {
            said_at.set(now);
            events.send(word(done, all));
        }
    })
}

/// Logs where training starts.
fn log_start(mirror: &mut Mirror, resume: Option<&Resume>) {
    let fetched = mirror.fetched.take();
    let chiefs = mirror.config.chiefs_store.as_ref().filter(|_| mirror.in_gang.follows_chief);
    let (dir, store) = (mirror.config.dir.to_string_lossy(), chiefs.or(mirror.config.store.as_ref()));
    let dir = shown(&dir);
    let Some(resume) = resume else {
        let why = match store {
            _ if mirror.config.restoring.what == Restore::Never => "--restore is none".to_owned(),
            Some(store) if mirror.committed().is_none() => format!("{store} has no commit"),
            Some(store) => format!("nothing in {dir} and {store} can be resumed from"),
            None => match mirror.left_out().first() {
                Some(why) => format!("nothing in {dir} can be resumed from: {why}"),
                None => format!("{dir} has no checkpoint"),
            },
        };
        tracing::info!("starts from the beginning: {why}");
        return;
    };
    let origin = match (fetched, store) {
        (Some(bytes), Some(store)) if bytes > 0 => format!("(from {store})"),
        _ => "(local)".to_owned(),
    };
    let checkpoint = resume.from.display();
    match resume.step {
        Some(step) => tracing::info!(step, "resumes from step {step} {origin}: {checkpoint}"),
        None => tracing::info!("resumes from {checkpoint} {origin}"),
    }
}

impl Report {
    pub(super) fn new(events: EventSender) -> Report {
        Report { events, said: Default::default() }
    }

    pub(super) fn send(&self, event: Event) {
        self.events.send(event);
    }

    pub(super) fn incarnation(&self, number: u64) {
        self.events.incarnation(number);
    }

    /// For a transfer: reports to the supervisor that bytes move, and logs the progress.
    pub(super) fn progress(&self, what: &'static str) -> OnProgress {
        on_progress(self.events.clone(), what, |_, _| Event::Transferring)
    }

    /// For each restore: reports and logs its progress.
    pub(super) fn restores(&self) -> Box<dyn Fn() -> OnProgress> {
        let events = self.events.clone();
        let word = |done, all| Event::Mirrored(Mirrored::Restoring { done, all });
        Box::new(move || on_progress(events.clone(), "restoring the checkpoint", word))
    }

    /// For events: reports how far the store is behind only if that has changed.
    pub(super) fn listener(&self) -> Box<dyn Fn(Event)> {
        let (events, behind) = (self.events.clone(), Cell::new(None));
        Box::new(move |event| {
            if let Event::Mirrored(Mirrored::Behind(steps)) = &event
                && behind.replace(Some(*steps)) == Some(*steps)
            {
                return;
            }
            events.send(event);
        })
    }

    /// Reports a commit, or, for the counters, a failed one.
    pub(super) fn outcome(&mut self, outcome: &Outcome) {
        let news = match *outcome {
            Outcome::Committed { bytes, seconds, ref unit, step, lag, is_progress } => {
                let (took, lag) = (Duration::from_secs_f64(seconds), Duration::from_secs_f64(lag));
                self.said = Default::default();
                self.send(Event::Committed { unit: unit.clone(), step, took, lag, is_progress });
                Mirrored::Committed { bytes, took }
            }
            Outcome::Failed { cause, .. } => Mirrored::Failed(cause),
            Outcome::OutOfTime { .. } => Mirrored::Failed("out_of_time"),
            Outcome::Fenced { .. } => Mirrored::Failed("fenced"),
            Outcome::UpToDate { .. } | Outcome::Empty | Outcome::Waiting { .. } | Outcome::Changed { .. } => return,
        };
        self.send(Event::Mirrored(news));
    }

    /// A commit failed. A repeated complaint is not logged again.
    pub(super) fn complain(&mut self, mirror: Option<&Mirror>, message: String) {
        let (steps, lag) = mirror.and_then(Mirror::behind).unwrap_or_default();
        let is_worse = lag >= SAID_AGAIN && lag >= self.said.1 * 2;
        // Numbers differ between tries, so they are ignored.
        let gist: String = message.chars().filter(|c| !c.is_ascii_digit()).collect();
        if self.said.0 != gist || is_worse {
            let lag_seconds = lag.as_secs();
            tracing::warn!(code = "commit_failed", lag_steps = steps, lag_seconds, "{message}");
            self.said = (gist, lag);
        }
    }

    /// Warns about each new file that is not in the store at the end.
    pub(super) fn left_out(&self, mirror: &Mirror, left_out: &[String]) {
        for why in left_out {
            tracing::warn!(
                code = "checkpoint_passed_over",
                committed_step = mirror.committed().and_then(|(step, _)| step),
                "NOT in the store: {why}; {}; trainit checkpoint explain says which rule decides about a path",
                mirror.last_commit_clause()
            );
        }
    }

    /// There was nothing to commit at the end. If the store has nothing of this run either, this is a warning: a job
    /// that saved elsewhere loses its work, and exit code 0 would hide that.
    pub(super) fn warn_nothing_committed(&self, mirror: &Mirror) {
        if mirror.committed().is_none() {
            tracing::warn!(
                code = "nothing_committed",
                "nothing to commit in {}: the store has nothing of this run, so the next run on another machine starts without its training; let the trainer save in TRAINIT_CHECKPOINT_DIR, and check with trainit checkpoint list",
                &mirror.config.dir.display()
            );
        }
    }

    pub(super) fn restored(&self, mirror: Option<&mut Mirror>, resume: Option<Resume>) {
        if let Some(bytes) = mirror.as_ref().and_then(|mirror| mirror.fetched) {
            self.send(Event::Mirrored(Mirrored::Restored { bytes }));
        }
        let (committed, older, is_further) = mirror.map_or((None, false, false), |mirror| {
            log_start(mirror, resume.as_ref());
            let step = mirror.committed().and_then(|(step, _)| step);
            (step, mirror.has_older(), std::mem::take(&mut mirror.history.is_further))
        });
        let resume = resume.map(|r| job::Resume { from: r.from.to_string_lossy().into_owned(), step: r.step });
        self.send(Event::Restored { resume, committed, older, is_further });
    }

    pub(super) fn not_restored(&self, Failure { message, code }: Failure) {
        self.send(Event::NotRestored { code, detail: message });
    }

    pub(super) fn fenced(&self, by: &Attempt) {
        self.send(Event::Fenced {
            detail: format!(
                "a newer run of this job (incarnation {by}) has taken over the store; this one stops so that the two do not mix, code {}",
                exit::FENCED
            ),
        });
    }

    /// Errors: a newer run has taken over.
    pub(super) fn flushed(&self, flushed: Result<Flushed, Attempt>) {
        match flushed {
            Ok(flushed) => self.send(Event::Flushed(flushed)),
            Err(by) => self.fenced(&by),
        }
    }
}

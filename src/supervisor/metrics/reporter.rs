//! The only writer of a run's metrics file: takes measurements from every collector, writes those of an instant as one
//! batch, and keeps the last value of each tag for the verdict.
//!
//! It has its own thread, because a wait for the file's lock must not delay the trainer's output. Deliberately absent:
//! an unbounded queue. If the file has a limit, only the lines that it would keep are queued; if not, a full queue
//! blocks the collectors.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::edge::clock;
use crate::edge::fs::metrics_file::MetricsFile;
use crate::edge::process::signals;
use crate::rules::metric::foreign_text::number;
use crate::rules::metric::ledger::{Ledger, Measured};
use crate::rules::metric::output::pattern::Found;
use crate::rules::metric::sources::Sources;
use crate::supervisor::status::history::History;

/// The pause between two writes. Measurements that arrive during the pause are written together.
const PAUSE: Duration = Duration::from_millis(50);
/// The pause after a failed write.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The number of measurements entered under one lock.
const BATCH: usize = 256;
/// The longest queue if the file has no limit.
const LONGEST_QUEUE: usize = 10_000;

/// How long a full queue waits for the file. A longer write hangs: the trainer must not wait for it.
const HANGS_AFTER: Duration = Duration::from_secs(2);

/// Passes measurements to the writer; one for each collector, with the place where it finds them.
#[derive(Debug, Clone)]
pub(in crate::supervisor) struct Sink(Arc<Shared>, &'static str);

/// The place of a collector that searches the output.
const OUTPUT: &str = "the output";

/// The writer.
#[derive(Debug)]
pub(in crate::supervisor) struct Reporter {
    shared: Arc<Shared>,
    /// Disconnects when the thread has ended.
    gone: mpsc::Receiver<()>,
}

#[derive(Debug)]
struct Shared {
    file: MetricsFile,
    trial: String,
    history: History,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ledger: Ledger,
    /// With the time of the measurement, in seconds since 1970.
    waiting: VecDeque<(Measured, f64)>,
    /// The last write failed.
    failing: bool,
    /// A write takes so long that nothing waits for it.
    hangs: bool,
    closed: bool,
}

impl Reporter {
    /// Starts the writer. Errors: as pthread_create(3).
    pub(in crate::supervisor) fn start(
        file: MetricsFile,
        trial: String,
        ledger: Ledger,
        history: History,
    ) -> io::Result<Reporter> {
        let state = Mutex::new(State { ledger, ..State::default() });
        let shared = Arc::new(Shared { file, trial, history, state, changed: Condvar::new() });
        let (going, gone) = mpsc::channel();
        let own = Arc::clone(&shared);
        signals::thread_without_signals("metrics", move || {
            own.write_until_closed();
            drop(going);
        })?;
        Ok(Reporter { shared, gone })
    }

    /// A sink for one more collector, which searches the output.
    pub(in crate::supervisor) fn sink(&self) -> Sink {
        Sink(Arc::clone(&self.shared), OUTPUT)
    }

    /// The last reported value of each tag so far.
    pub(in crate::supervisor) fn last_values(&self) -> BTreeMap<String, String> {
        self.shared.state().ledger.last_values()
    }

    /// Writes the queue, within the limit, and returns the ledger.
    pub(in crate::supervisor) fn finish(self, limit: Duration) -> Ledger {
        self.shared.state().closed = true;
        self.shared.changed.notify_all();
        if self.gone.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the last metrics could not be written to {} in time", self.shared.file.path.display());
        }
        let state = self.shared.state();
        if !state.waiting.is_empty() {
            tracing::warn!(
                "never written to {}: {} of this run's metrics, the newest among them; a tuning service misses \
                 them, and may call the trial INFEASIBLE",
                self.shared.file.path.display(),
                state.waiting.len()
            );
        }
        state.ledger.clone()
    }
}

impl Sink {
    /// The same for measurements that are found elsewhere.
    pub(in crate::supervisor) fn of(&self, origin: &'static str) -> Sink {
        Sink(Arc::clone(&self.0), origin)
    }

    /// Updates the record of the sources searched.
    pub(in crate::supervisor) fn note(&self, note: impl FnOnce(&mut Sources)) {
        note(&mut self.0.state().ledger.sources);
    }

    /// Takes measurements of one instant, in order. The lock is released between batches, because the event loop takes
    /// it to read the last values.
    pub(in crate::supervisor) fn take<'a>(&self, measurements: impl Iterator<Item = (Option<&'a str>, Found)>) {
        let now = number::timestamp(clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default());
        let mut measurements = measurements.peekable();
        while measurements.peek().is_some() {
            self.take_batch(now, measurements.by_ref().take(BATCH));
        }
    }

    fn take_batch<'a>(&self, now: f64, measurements: impl Iterator<Item = (Option<&'a str>, Found)>) {
        let shared = &self.0;
        let mut state = shared.state();
        for (tag, mut found) in measurements {
            let time = found.time.unwrap_or(now);
            let in_line = found.tag.take();
            let Some(tag) = in_line.as_deref().or(tag) else { continue };
            let (measured, warning) = state.ledger.record(tag, found);
            let mixed = state.ledger.note_origin(tag, self.1);
            for warning in warning.into_iter().chain(mixed) {
                tracing::warn!("{warning}");
            }
            let Some(measured) = measured else { continue };
            shared.history.measured(&measured, time);
            while state.waiting.len() >= shared.room() {
                if shared.file.keep > 0 || state.failing || state.hangs || state.closed {
                    state.waiting.pop_front();
                } else {
                    // Wakes the writer, which may sleep if all of these came within one call.
                    shared.changed.notify_all();
                    let waited = shared.changed.wait_timeout(state, HANGS_AFTER);
                    let (again, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                    state = again;
                    state.hangs = waited.timed_out();
                    if state.hangs {
                        shared.log_hang();
                    }
                }
            }
            state.waiting.push_back((measured, time));
        }
        shared.changed.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_hang(&self) {
        tracing::warn!(
            "the metrics file {} has taken nothing for {}: the oldest metrics that wait for it are dropped, and training \
             continues; check whether its file system hangs",
            self.file.path.display(),
            humantime::format_duration(HANGS_AFTER)
        );
    }

    fn write_until_closed(&self) {
        let mut logged: Vec<String> = Vec::new();
        loop {
            let nothing_to_do = |state: &mut State| state.waiting.is_empty() && !state.closed;
            let guard = self.changed.wait_while(self.state(), nothing_to_do);
            let mut state = guard.unwrap_or_else(PoisonError::into_inner);
            let batch = std::mem::take(&mut state.waiting);
            state.hangs = false;
            let last = state.closed;
            drop(state);
            self.changed.notify_all();
            let written = self.write(&batch, &mut logged);
            let pause = self.settle(batch, written);
            if last {
                return;
            }
            drop(self.changed.wait_timeout_while(self.state(), pause, |state| !state.closed));
        }
    }

    /// Logs each kind of error once; training continues.
    fn write(&self, batch: &VecDeque<(Measured, f64)>, logged: &mut Vec<String>) -> bool {
        if batch.is_empty() {
            return true;
        }
        let mut lines = Vec::with_capacity(128 * batch.len());
        let mut troubles = Vec::new();
        for (measured, timestamp) in batch {
            match measured.report() {
                Ok(report) => report.write(*timestamp, &self.trial, &mut lines),
                // The trainer may give a name that is not allowed in a report.
                Err(wrong) => troubles.push((wrong.to_string(), format!("not reported: {wrong}"))),
            }
        }
        let result = if lines.is_empty() { Ok(Vec::new()) } else { self.file.append(&lines) };
        let path = self.file.path.display();
        match &result {
            Ok(notes) => troubles.extend(notes.iter().map(|note| (note.to_string(), format!("{path}: {note}")))),
            Err(error) => troubles.push((
                // Not the text: it contains the free space in bytes, which differs each time.
                format!("{} {:?}", error.operation(), error.kind()),
                format!("{error}; training continues, and the write is tried again"),
            )),
        }
        for (kind, trouble) in troubles {
            if !logged.contains(&kind) {
                tracing::warn!("{trouble}");
                logged.push(kind);
            }
        }
        result.is_ok()
    }

    /// Keeps unwritten measurements for the next try, up to the limit; returns the pause before it.
    fn settle(&self, batch: VecDeque<(Measured, f64)>, written: bool) -> Duration {
        let mut state = self.state();
        state.failing = !written;
        if written {
            return PAUSE;
        }
        let newer = std::mem::take(&mut state.waiting);
        let too_many = (batch.len() + newer.len()).saturating_sub(self.room());
        state.waiting = batch.into_iter().chain(newer).skip(too_many).collect();
        PAUSE_AFTER_FAILURE
    }

    fn room(&self) -> usize {
        if self.file.keep > 0 { self.file.keep } else { LONGEST_QUEUE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    use crate::edge::clock::Clock;

    use crate::supervisor::output::LOCK_TIMEOUT;
    use crate::supervisor::output::drain::TIMEOUT;

    #[test]
    fn more_lines_than_the_queue_holds_are_all_written_to_an_unlimited_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("m");
        let file = MetricsFile::new(path.clone(), 0, false, Duration::from_secs(5));
        let reporter = Reporter::start(file, "0".into(), Ledger::default(), History::new(Clock::start(), false))
            .expect("a thread");
        let sink = reporter.sink();
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            let found = |value: usize| Found { tag: None, value: value as f64, step: None, time: None };
            sink.take((0..3 * LONGEST_QUEUE).map(|value| (Some("loss"), found(value))));
            let _ = done.send(());
        });
        is_done.recv_timeout(Duration::from_secs(60)).expect("the collector is not blocked forever");
        reporter.finish(Duration::from_secs(60));
        let written = std::fs::read_to_string(path).expect("the file");
        assert_eq!(written.lines().count(), 3 * LONGEST_QUEUE);
    }

    #[test]
    fn a_kind_of_error_is_logged_once_whatever_its_text() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut logged = Vec::new();
        let mut write = |name: &str| {
            let file = MetricsFile::new(dir.path().join(name), 0, false, LOCK_TIMEOUT);
            let history = History::new(Clock::start(), false);
            let shared =
                Shared { file, trial: String::new(), history, state: Mutex::default(), changed: Condvar::new() };
            let found = Found { tag: None, value: 0.5, step: None, time: None };
            let measured = Ledger::default().record("loss", found).0.expect("it is reported");
            let is_written = shared.write(&VecDeque::from([(measured, 0.0)]), &mut logged);
            (is_written, logged.len())
        };
        std::fs::create_dir_all(dir.path().join("one")).expect("a folder");
        std::fs::create_dir_all(dir.path().join("another")).expect("a folder");
        assert_eq!([write("one"), write("another"), write("one")], [(false, 1); 3]);
        assert_eq!([write("file"), write("file/below")], [(true, 1), (false, 2)]);
    }

    #[test]
    fn the_last_metrics_are_written_even_if_the_lock_is_held_forever() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("m");
        let holder = std::fs::File::create(&path).expect("the file");
        holder.lock().expect("the lock");
        let file = MetricsFile::new(path.clone(), 100, false, LOCK_TIMEOUT);
        let reporter = Reporter::start(file, "0".into(), Ledger::default(), History::new(Clock::start(), false))
            .expect("a thread");
        let found = |value| std::iter::once((Some("loss"), Found { tag: None, value, step: None, time: None }));
        reporter.sink().take(found(0.5));
        // The writer is waiting for the lock with the first measurement.
        while !reporter.shared.state().waiting.is_empty() {
            thread::yield_now();
        }
        reporter.sink().take(found(0.25));
        reporter.finish(TIMEOUT);
        let written = std::fs::read_to_string(path).expect("the file");
        assert_eq!(written.lines().count(), 2, "{written}");
    }
}

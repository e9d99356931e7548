//! Passes on the trainer's output unchanged and in order, and searches it for metrics.
//!
//! Each captured stream has a thread. It reads the trainer's output, writes it to trainit's stream, then searches it. A slow
//! reader of that stream slows the trainer down, as with a direct pipe. If it has no reader any more, the trainer's next
//! write fails (or SIGPIPE ends it), as without trainit.
//! Deliberately absent: any of this if neither metrics nor hangs are watched for (the trainer then inherits trainit's
//! descriptors).

pub(super) mod drain;
pub(super) mod ranks;
pub(super) mod writer;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::edge::fs::metrics_file::MetricsFile;
use crate::edge::io::eventfd::{self, EventFd};
use crate::edge::io::pipe::{self, Reader};
use crate::edge::io::stdio;
use crate::rules::metric::files::names::Choice;
use crate::rules::metric::ledger::Ledger;
use crate::rules::metric::output::pattern::Pattern;
use crate::rules::metric::output::scrape::{Hit, LastStep, Scraper};
use crate::rules::metric::output::searched::Searched;
use crate::rules::metric::sources::Output;
use crate::supervisor::metrics::files::{Files, Follower};
use crate::supervisor::metrics::reporter::{Reporter, Sink};
use crate::supervisor::output::drain::OutputThreads;
use crate::supervisor::output::ranks::Search;
use crate::supervisor::output::writer::OutputWriter;
use crate::supervisor::status::history::History;

/// The size of one read.
const CHUNK_BYTES: usize = 128 * 1024;

/// How long a write waits for the lock of the metrics file. At the end of a run one write may be in progress and one
/// more may follow.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The metrics to search for, and where to report them.
#[derive(Debug)]
pub struct Metrics {
    /// Patterns to search for in the output. Without patterns it is not captured for metrics.
    pub patterns: Vec<Pattern>,
    /// Files to read metrics from.
    pub files: Files,
    /// The name of the step in a line, for patterns without a group for it.
    pub step: Option<String>,
    /// The ranks to search.
    pub searched: Searched,
    /// The tags to report; empty for all.
    pub report: Vec<String>,
    /// The file for reports.
    pub file: MetricsFile,
    /// The trial of each report.
    pub trial: String,
}

impl Metrics {
    /// The tags that will be reported; empty if they depend on the content.
    pub fn tags(&self) -> Vec<&str> {
        if !self.report.is_empty() {
            return self.report.iter().map(String::as_str).collect();
        }
        let choices = self.files.events.as_ref().map(|(_, choices)| choices.as_slice());
        if self.files.records.is_some() || choices.is_some_and(<[Choice]>::is_empty) {
            return Vec::new();
        }
        let choices = choices.unwrap_or_default().iter().map(Choice::tag);
        self.patterns.iter().map(Pattern::tag).chain(choices).collect::<Option<_>>().unwrap_or_default()
    }
}

/// The trainer's ends of the captured streams.
#[derive(Debug, Default)]
pub struct ChildEnds {
    /// Standard output, unless it is inherited.
    pub stdout: Option<OwnedFd>,
    /// Standard error, unless it is inherited.
    pub stderr: Option<OwnedFd>,
}

/// All collectors of metrics of a run.
#[derive(Debug, Default)]
pub struct Collectors {
    patterns: Arc<[Pattern]>,
    searched: Searched,
    files: Files,
    /// Present from the first attempt on, if there are files to follow.
    follower: Option<Follower>,
    reporter: Option<Reporter>,
    /// The number of bytes passed on. If they are counted, the output is captured even without patterns.
    passed_on: Option<Arc<AtomicU64>>,
}

impl Collectors {
    /// Starts the writer of the metrics file; `None` if there is nothing to search for and nothing to `count`. Errors:
    /// as pthread_create(3).
    pub(in crate::supervisor) fn start(
        metrics: Option<Metrics>,
        count: bool,
        history: &History,
    ) -> io::Result<Option<Collectors>> {
        let passed_on = count.then(Arc::default);
        let Some(metrics) = metrics.filter(|metrics| !metrics.patterns.is_empty() || metrics.files.any()) else {
            return Ok(passed_on.map(|passed_on| Collectors { passed_on: Some(passed_on), ..Collectors::default() }));
        };
        let ledger = Ledger::with_selected(metrics.report);
        let reporter = Some(Reporter::start(metrics.file, metrics.trial, ledger, history.clone())?);
        let Metrics { patterns, files, step, searched, .. } = metrics;
        // Its pattern is first, so that the step of a line is found before the metrics.
        let step = step.filter(|_| !patterns.is_empty()).and_then(|name| Pattern::step(&name, true).ok());
        let (patterns, follower) = (step.into_iter().chain(patterns).collect(), None);
        Ok(Some(Collectors { patterns, searched, files, follower, reporter, passed_on }))
    }

    /// The counter of the bytes passed on.
    pub fn passed_on(&self) -> Arc<AtomicU64> {
        self.passed_on.clone().unwrap_or_default()
    }

    /// Captures the streams of an attempt that is about to start. Errors: as pipe2(2) and pthread_create(3).
    pub(in crate::supervisor) fn capture(&self, output_threads: &mut OutputThreads) -> io::Result<ChildEnds> {
        if self.patterns.is_empty() && self.passed_on.is_none() {
            return Ok(ChildEnds::default());
        }
        let (stdout, stderr) = stdio::outputs();
        let step = Arc::default();
        let out = self.pump(stdout, &step, output_threads)?;
        // One pipe if both lead to the same place: two would not keep the order.
        let err = match pipe::is_same_file(stdout, stderr) {
            true => out.try_clone()?,
            false => self.pump(stderr, &step, output_threads)?,
        };
        Ok(ChildEnds { stdout: Some(out), stderr: Some(err) })
    }

    fn pump(
        &self,
        to: BorrowedFd<'static>,
        step: &Arc<Mutex<LastStep>>,
        output_threads: &mut OutputThreads,
    ) -> io::Result<OwnedFd> {
        let (from, child_end) = pipe::pair()?;
        let (patterns, step) = (Arc::clone(&self.patterns), Arc::clone(step));
        let (sink, passed_on) = (self.reporter.as_ref().map(Reporter::sink), self.passed_on());
        output_threads
            .start(to, move |over, writer| Flow { from, writer, over, patterns, step, sink, passed_on }.run())?;
        Ok(child_end)
    }

    /// The search and the counter for another thread that passes the output on.
    pub(in crate::supervisor) fn search(&self) -> Search {
        let patterns = Arc::clone(&self.patterns);
        let sink = self.reporter.as_ref().filter(|_| !patterns.is_empty()).map(Reporter::sink);
        Search { patterns, sink, searched: self.searched, passed_on: self.passed_on() }
    }

    /// Before an attempt. The first time, if there are files to follow, the returned eventfd is notified when their
    /// existing content has been recorded.
    pub(in crate::supervisor) fn begin(&mut self) -> Option<EventFd> {
        let reporter = self.reporter.as_ref().filter(|_| self.follower.is_none() && self.files.any())?;
        let follower = Follower::start(self.files.clone(), reporter.sink());
        let look = follower.and_then(|follower| self.follower.insert(follower).look());
        look.inspect_err(|error| {
            tracing::warn!(
                "the trainer's files are not searched for metrics, because a thread could not be started: {error}"
            );
        })
        .ok()
    }

    /// The attempt's process tree is gone: requests a read of its files. The eventfd is notified when that is done.
    pub(in crate::supervisor) fn read_on(&self) -> Option<EventFd> {
        self.follower.as_ref()?.look().ok()
    }

    /// The last value of each tag so far.
    pub fn last_values(&self) -> BTreeMap<String, String> {
        self.reporter.as_ref().map(Reporter::last_values).unwrap_or_default()
    }

    /// The run is over: writes the last metrics, within the limit, and returns the ledger.
    pub fn finish(self, limit: Duration) -> Ledger {
        self.reporter.map(|reporter| reporter.finish(limit)).unwrap_or_default()
    }
}

/// The state of the thread of a stream.
struct Flow {
    from: Reader,
    writer: OutputWriter,
    over: EventFd,
    patterns: Arc<[Pattern]>,
    /// Shared with the other stream.
    step: Arc<Mutex<LastStep>>,
    sink: Option<Sink>,
    passed_on: Arc<AtomicU64>,
}

impl Flow {
    fn run(mut self) {
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut scraper = Scraper::default();
        let mut hits = Vec::new();
        let mut is_over = false;
        loop {
            match self.from.read(&mut buffer) {
                Ok(Some(0)) => break,
                Ok(Some(count)) => {
                    self.passed_on.fetch_add(count as u64, Ordering::Relaxed);
                    let is_read = self.writer.pass_on(&buffer[..count]);
                    scraper.feed(&self.patterns, &buffer[..count], &mut hits);
                    self.report(&mut scraper, &mut hits);
                    if !is_read {
                        break;
                    }
                }
                Ok(None) if is_over => break,
                Ok(None) => {
                    eventfd::wait_readable(&[self.from.as_raw_fd(), self.over.as_raw_fd()], None);
                    is_over = self.over.is_notified();
                }
                Err(error) => {
                    tracing::warn!(
                        "the trainer's output can no longer be read: {error}; its further output and metrics are lost"
                    );
                    break;
                }
            }
        }
        scraper.finish(&self.patterns, &mut hits);
        self.report(&mut scraper, &mut hits);
        if let Some(sink) = self.sink.as_ref().filter(|_| !self.patterns.is_empty()) {
            note(sink, scraper.lines(), None);
        }
    }

    fn report(&self, scraper: &mut Scraper, hits: &mut Vec<Hit>) {
        if let Some(sink) = &self.sink {
            pass_to(sink, &self.patterns, &self.step, scraper, hits);
        }
    }
}

/// Passes what a scraper found to the sink, with the last step of the process.
pub(in crate::supervisor) fn pass_to(
    sink: &Sink,
    patterns: &[Pattern],
    step: &Mutex<LastStep>,
    scraper: &mut Scraper,
    hits: &mut Vec<Hit>,
) {
    while let Some(complaint) = scraper.complaint() {
        tracing::warn!("{complaint}");
    }
    if !hits.is_empty() {
        step.lock().unwrap_or_else(PoisonError::into_inner).add(patterns, hits);
        sink.take(hits.drain(..).map(|(which, found)| (patterns[which].tag(), found)));
    }
}

/// Adds to the count of searched lines. `of`: which of several processes were searched.
pub(in crate::supervisor) fn note(sink: &Sink, lines: u64, of: Option<(Searched, u32)>) {
    sink.note(|sources| {
        let before = sources.output.map_or(0, |output| output.lines);
        sources.output = Some(Output { lines: before + lines, of });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::thread;

    use crate::edge::clock::Clock;
    use crate::supervisor::output::drain::{TIMEOUT, Waits};

    /// An output thread: its input, its output, and the collected metrics.
    struct Fixture {
        collectors: Collectors,
        output_threads: OutputThreads,
        child_end: File,
        reader: Reader,
        _dir: tempfile::TempDir,
    }

    fn rig() -> Fixture {
        let dir = tempfile::tempdir().expect("a folder");
        let file = MetricsFile::new(dir.path().join("m"), 0, false, TIMEOUT);
        let patterns = Pattern::parse_all("loss=loss: ([0-9.]+)").expect("a pattern");
        let metrics = Metrics {
            patterns,
            files: Files::default(),
            step: None,
            searched: Searched::First,
            report: Vec::new(),
            file,
            trial: "0".into(),
        };
        let collectors = Collectors::start(Some(metrics), false, &History::new(Clock::start(), false))
            .expect("a thread")
            .expect("a pattern");
        let (reader, to) = pipe::pair().expect("a pipe");
        // The thread borrows its stream for ever; here it is a pipe that is never closed.
        let to: &'static OwnedFd = Box::leak(Box::new(to));
        let mut output_threads = OutputThreads::default();
        let child_end = File::from(collectors.pump(to.as_fd(), &Arc::default(), &mut output_threads).expect("a pump"));
        Fixture { collectors, output_threads, child_end, reader, _dir: dir }
    }

    fn all(reader: &mut Reader) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(Some(count)) = reader.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..count]);
        }
        bytes
    }

    fn pass_on_all(output_threads: &mut OutputThreads) {
        let (clock, far) = (Clock::start(), Waits::End(Duration::MAX));
        output_threads.end(clock.now(), None);
        while !output_threads.are_through(clock.now(), far) {
            eventfd::wait_readable(
                &output_threads.fds(far),
                output_threads.due(far).map(|at| at.saturating_sub(clock.now())),
            );
        }
    }

    #[test]
    fn output_in_the_pipe_is_passed_on_even_if_another_process_holds_it_open() {
        let mut rig = rig();
        rig.child_end.write_all(b"loss: 0.5\nloss: 0.25").expect("room");
        pass_on_all(&mut rig.output_threads);
        assert_eq!(all(&mut rig.reader), b"loss: 0.5\nloss: 0.25");
        assert_eq!(rig.collectors.finish(TIMEOUT).last_values()["loss"], "0.25");
        drop(rig.child_end);
    }

    #[test]
    fn bytes_and_lines_survive_any_cut() {
        let mut rig = rig();
        let text: String = (0..20_000).map(|i| format!("step {i} loss: 0.{i:05}\r")).collect();
        let mut reader = rig.reader;
        let mut child_end = rig.child_end;
        let copy = text.clone();
        let writer = thread::spawn(move || {
            for chunk in copy.as_bytes().chunks(1237) {
                child_end.write_all(chunk).expect("a reader");
            }
        });
        let mut seen = Vec::new();
        while seen.len() < text.len() {
            eventfd::wait_readable(&[reader.as_raw_fd()], None);
            seen.extend(all(&mut reader));
        }
        writer.join().expect("wrote");
        pass_on_all(&mut rig.output_threads);
        assert!(seen == text.as_bytes());
        let path = rig._dir.path().join("m");
        assert_eq!(rig.collectors.finish(TIMEOUT).last_values()["loss"], "0.19999");
        let mut written = String::new();
        File::open(path).and_then(|mut file| file.read_to_string(&mut written)).expect("the file");
        assert_eq!(written.lines().count(), 20_000);
    }
}

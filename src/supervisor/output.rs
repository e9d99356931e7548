//! The trainer's output, passed on untouched and in order, and searched for metrics on the way.
//!
//! Each captured stream has a thread: it reads what the trainer wrote, writes it to our own stream, then searches it. A slow
//! reader of ours slows the trainer down, as a pipe would, and where nobody reads our stream any more, the trainer's next
//! write fails (or SIGPIPE ends it), as it would without us.
//! Deliberately absent: any of this where no metric is looked for and no hang (the trainer then inherits our descriptors).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::follow::{Files, Follower};
use super::outlet::Outlet;
use super::pumps::{PATIENCE, Pumps};
use super::ranks::Search;
use super::reporter::{Reporter, Sink};
use crate::edge::metrics_file::MetricsFile;
use crate::edge::pipe::{self, Reader};
use crate::edge::stdio;
use crate::edge::wake::{self, Bell};
use crate::rules::metric::ledger::Ledger;
use crate::rules::metric::names::Choice;
use crate::rules::metric::pattern::Pattern;
use crate::rules::metric::scrape::{Hit, Scraper};

/// What is read at once.
const CHUNK_BYTES: usize = 128 * 1024;

/// How long a write waits for the metrics file's lock. At the end of a run there may be one under way and one more.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// What is looked for and where it goes.
#[derive(Debug)]
pub struct Metrics {
    /// What to look for in the output; nothing is captured where there is nothing to look for.
    pub patterns: Vec<Pattern>,
    /// Files to look into.
    pub files: Files,
    /// On standard output.
    pub stdout: bool,
    /// On standard error.
    pub stderr: bool,
    /// The tags that are reported; none named: all.
    pub report: Vec<String>,
    /// Where it is reported.
    pub file: MetricsFile,
    /// The trial in each report.
    pub trial: String,
}

impl Metrics {
    /// What will be reported; empty where that depends on what is found.
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
    /// Its standard output, if not ours.
    pub stdout: Option<OwnedFd>,
    /// Its standard error, if not ours.
    pub stderr: Option<OwnedFd>,
}

/// Everything that collects metrics during a run.
#[derive(Debug, Default)]
pub struct Collectors {
    patterns: Arc<[Pattern]>,
    stdout: bool,
    stderr: bool,
    files: Files,
    /// From the first attempt on, if there are files to follow.
    follower: Option<Follower>,
    reporter: Option<Reporter>,
    /// Bytes that were passed on; where they are counted, both streams are captured.
    heard: Option<Arc<AtomicU64>>,
}

impl Collectors {
    /// Starts the writer of the metrics file; `None` where there is nothing to look for nor to `count`. Errors: as
    /// pthread_create(3).
    pub fn start(metrics: Option<Metrics>, count: bool) -> io::Result<Option<Collectors>> {
        let heard = count.then(Arc::default);
        let Some(metrics) = metrics.filter(|metrics| !metrics.patterns.is_empty() || metrics.files.any()) else {
            return Ok(heard.map(|heard| Collectors { heard: Some(heard), ..Collectors::default() }));
        };
        let reporter = Some(Reporter::start(metrics.file, metrics.trial, Ledger::reporting(metrics.report))?);
        let Metrics { patterns, files, stdout, stderr, .. } = metrics;
        let (stdout, stderr) = (stdout && !patterns.is_empty(), stderr && !patterns.is_empty());
        let (patterns, follower) = (patterns.into(), None);
        Ok(Some(Collectors { patterns, files, follower, stdout, stderr, reporter, heard }))
    }

    /// Counts the bytes that were passed on.
    pub fn heard(&self) -> Arc<AtomicU64> {
        self.heard.clone().unwrap_or_default()
    }

    /// Captures the streams of an attempt that is about to start. Errors: as pipe2(2) and pthread_create(3).
    pub(super) fn capture(&self, pumps: &mut Pumps) -> io::Result<ChildEnds> {
        let (stdout, stderr) = stdio::outputs();
        let mut ends = ChildEnds::default();
        let count = self.heard.is_some();
        if self.stdout || count {
            ends.stdout = Some(self.pump(stdout, self.stdout, pumps)?);
        }
        if self.stderr || count {
            // One pipe where both lead to one place: two would not keep the order.
            ends.stderr = Some(match &ends.stdout {
                Some(end) if pipe::is_same_file(stdout, stderr) => end.try_clone()?,
                _ => self.pump(stderr, self.stderr, pumps)?,
            });
        }
        Ok(ends)
    }

    fn pump(&self, to: BorrowedFd<'static>, searched: bool, pumps: &mut Pumps) -> io::Result<OwnedFd> {
        let (from, child_end) = pipe::pair()?;
        let patterns = if searched { Arc::clone(&self.patterns) } else { Arc::default() };
        let (sink, heard) = (self.reporter.as_ref().map(Reporter::sink), self.heard());
        pumps.start(to, move |over, outlet| Flow { from, outlet, over, patterns, sink, heard }.run())?;
        Ok(child_end)
    }

    /// What to look for and to count, where somebody else passes the output on.
    pub(super) fn search(&self) -> Search {
        let (patterns, sink) = (Arc::clone(&self.patterns), self.reporter.as_ref().map(Reporter::sink));
        Search { patterns, sink, stdout: self.stdout, stderr: self.stderr, heard: self.heard() }
    }

    /// An attempt is about to start. The first time, where there are files to follow, this rings when it is known what was in
    /// them before.
    pub(super) fn begin(&mut self) -> Option<Bell> {
        let reporter = self.reporter.as_ref().filter(|_| self.follower.is_none() && self.files.any())?;
        let follower = Follower::start(self.files.clone(), reporter.sink());
        let look = follower.and_then(|follower| self.follower.insert(follower).look());
        look.inspect_err(|error| {
            tracing::warn!("the trainer's files may not be searched for metrics, there is no thread for it: {error}");
        })
        .ok()
    }

    /// The attempt's process tree is gone: takes what it left in files, and rings when that is done.
    pub(super) fn read_on(&self) -> Option<Bell> {
        self.follower.as_ref()?.look().ok()
    }

    /// The last value of each tag so far.
    pub fn last_values(&self) -> BTreeMap<String, String> {
        self.reporter.as_ref().map(Reporter::last_values).unwrap_or_default()
    }

    /// The run is over: writes the last metrics and gives what was measured.
    pub fn finish(self) -> Ledger {
        self.reporter.map(|reporter| reporter.finish(PATIENCE)).unwrap_or_default()
    }
}

/// What the thread of a stream knows.
struct Flow {
    from: Reader,
    outlet: Outlet,
    over: Bell,
    patterns: Arc<[Pattern]>,
    sink: Option<Sink>,
    heard: Arc<AtomicU64>,
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
                    self.heard.fetch_add(count as u64, Ordering::Relaxed);
                    let is_read = self.outlet.pass_on(&buffer[..count]);
                    scraper.feed(&self.patterns, &buffer[..count], &mut hits);
                    self.report(&mut scraper, &mut hits);
                    if !is_read {
                        break;
                    }
                }
                Ok(None) if is_over => break,
                Ok(None) => {
                    wake::wait_readable(&[self.from.as_raw_fd(), self.over.as_raw_fd()], None);
                    is_over = self.over.is_rung();
                }
                Err(error) => {
                    tracing::warn!(
                        "the trainer's output cannot be read any more: {error}; what it still writes is lost, its metrics too"
                    );
                    break;
                }
            }
        }
        scraper.finish(&self.patterns, &mut hits);
        self.report(&mut scraper, &mut hits);
    }

    fn report(&self, scraper: &mut Scraper, hits: &mut Vec<Hit>) {
        while let Some(complaint) = scraper.complaint(&self.patterns) {
            tracing::warn!("{complaint}");
        }
        if !hits.is_empty()
            && let Some(sink) = &self.sink
        {
            sink.take(hits.drain(..).map(|(which, found)| (self.patterns[which].tag(), found)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::thread;

    use crate::edge::clock::Clock;
    use crate::supervisor::pumps::Waits;

    /// A pump into a pipe: what the trainer writes to, what comes out, and what is known at the end.
    struct Rig {
        collectors: Collectors,
        pumps: Pumps,
        child_end: File,
        ours: Reader,
        _dir: tempfile::TempDir,
    }

    fn rig() -> Rig {
        let dir = tempfile::tempdir().expect("a folder");
        let file = MetricsFile::new(dir.path().join("m"), 0, false, PATIENCE);
        let patterns = vec![Pattern::parse("loss=loss: ([0-9.]+)").expect("a pattern")];
        let metrics = Metrics {
            patterns,
            files: Files::default(),
            report: Vec::new(),
            stdout: true,
            stderr: true,
            file,
            trial: "0".into(),
        };
        let collectors = Collectors::start(Some(metrics), false).expect("a thread").expect("a pattern");
        let (ours, to) = pipe::pair().expect("a pipe");
        // The pump borrows our own stream for good; here it is a pipe that is never closed by us.
        let to: &'static OwnedFd = Box::leak(Box::new(to));
        let mut pumps = Pumps::default();
        let child_end = File::from(collectors.pump(to.as_fd(), true, &mut pumps).expect("a pump"));
        Rig { collectors, pumps, child_end, ours, _dir: dir }
    }

    fn all(reader: &mut Reader) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(Some(count)) = reader.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..count]);
        }
        bytes
    }

    fn pass_on_all(pumps: &mut Pumps) {
        let (clock, far) = (Clock::start(), Waits::End(Duration::MAX));
        pumps.end(clock.now(), None);
        while !pumps.are_through(clock.now(), far) {
            wake::wait_readable(&pumps.fds(far), pumps.due(far).map(|at| at.saturating_sub(clock.now())));
        }
    }

    #[test]
    fn what_is_in_the_pipe_comes_through_even_if_a_stranger_holds_it_open() {
        let mut rig = rig();
        rig.child_end.write_all(b"loss: 0.5\nloss: 0.25").expect("room");
        pass_on_all(&mut rig.pumps);
        assert_eq!(all(&mut rig.ours), b"loss: 0.5\nloss: 0.25");
        assert_eq!(rig.collectors.finish().last_values()["loss"], "0.25");
        drop(rig.child_end);
    }

    #[test]
    fn bytes_and_lines_survive_any_cut() {
        let mut rig = rig();
        let text: String = (0..20_000).map(|i| format!("step {i} loss: 0.{i:05}\r")).collect();
        let mut reader = rig.ours;
        let mut child_end = rig.child_end;
        let copy = text.clone();
        let writer = thread::spawn(move || {
            for chunk in copy.as_bytes().chunks(1237) {
                child_end.write_all(chunk).expect("a reader");
            }
        });
        let mut seen = Vec::new();
        while seen.len() < text.len() {
            wake::wait_readable(&[reader.as_raw_fd()], None);
            seen.extend(all(&mut reader));
        }
        writer.join().expect("wrote");
        pass_on_all(&mut rig.pumps);
        assert!(seen == text.as_bytes());
        let path = rig._dir.path().join("m");
        assert_eq!(rig.collectors.finish().last_values()["loss"], "0.19999");
        let mut written = String::new();
        File::open(path).and_then(|mut file| file.read_to_string(&mut written)).expect("the file");
        assert_eq!(written.lines().count(), 20_000);
    }
}

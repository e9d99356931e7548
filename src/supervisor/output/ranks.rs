//! Merges the output of several ranks into trainit's two streams: whole lines, each prefixed with its rank. The output of the
//! chosen ranks is searched for metrics.
//!
//! Each stream has a thread, which polls that stream of every rank. A slow reader slows the ranks down, as with a direct pipe.
//! Deliberately absent: any of this for a single process.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::edge::io::eventfd::{self, EventFd};
use crate::edge::io::pipe::{self, Reader};
use crate::edge::io::stdio;
use crate::rules::metric::output::pattern::Pattern;
use crate::rules::metric::output::scrape::{LastStep, Scraper};
use crate::rules::metric::output::searched::Searched;
use crate::rules::text::lines::Lines;
use crate::supervisor::metrics::reporter::Sink;
use crate::supervisor::output::drain::OutputThreads;
use crate::supervisor::output::writer::OutputWriter;
use crate::supervisor::output::{ChildEnds, note, pass_to};

/// The size of one read of a rank, before the next rank is read.
const CHUNK_BYTES: usize = 64 * 1024;
/// A write of this size to a pipe is atomic (PIPE_BUF), so that lines of trainit's log never split a line.
const PIECE_BYTES: usize = 4096;

/// The patterns, the ranks to search, the sink of the metrics, and the counter.
#[derive(Debug, Clone, Default)]
pub(in crate::supervisor) struct Search {
    pub(in crate::supervisor) patterns: Arc<[Pattern]>,
    pub(in crate::supervisor) sink: Option<Sink>,
    pub(in crate::supervisor) searched: Searched,
    /// The number of bytes passed on, of all ranks.
    pub(in crate::supervisor) passed_on: Arc<AtomicU64>,
}

/// Captures the output of the ranks.
#[derive(Debug)]
pub(in crate::supervisor) struct Ranks {
    /// The prefix of each rank's lines.
    names: Vec<String>,
}

impl Ranks {
    pub(in crate::supervisor) fn new(names: Vec<String>) -> Ranks {
        Ranks { names }
    }

    /// Captures the streams of an attempt that is about to start: one pair for each rank. Errors: as pipe2(2) and
    /// pthread_create(3).
    pub(in crate::supervisor) fn capture(
        &self,
        search: &Search,
        output_threads: &mut OutputThreads,
    ) -> io::Result<Vec<ChildEnds>> {
        let (stdout, stderr) = stdio::outputs();
        // One pipe per rank if both streams lead to the same place: two would not keep the order.
        let both = pipe::is_same_file(stdout, stderr);
        let steps: Arc<[Mutex<LastStep>]> = self.names.iter().map(|_| Mutex::default()).collect();
        let out = self.merge(stdout, search, &steps, output_threads)?;
        let err = match both {
            true => out.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?,
            false => self.merge(stderr, search, &steps, output_threads)?,
        };
        let ends = out.into_iter().zip(err);
        Ok(ends.map(|(out, err)| ChildEnds { stdout: Some(out), stderr: Some(err) }).collect())
    }

    /// Starts the thread for one of trainit's streams; returns the ranks' ends of the pipes.
    fn merge(
        &self,
        to: BorrowedFd<'static>,
        search: &Search,
        steps: &Arc<[Mutex<LastStep>]>,
        output_threads: &mut OutputThreads,
    ) -> io::Result<Vec<OwnedFd>> {
        let pairs = self.names.iter().map(|_| pipe::pair()).collect::<io::Result<Vec<_>>>()?;
        let (readers, ends): (Vec<Reader>, Vec<OwnedFd>) = pairs.into_iter().unzip();
        let (lines, search, steps) = (Lines::of(self.names.iter().cloned()), search.clone(), Arc::clone(steps));
        output_threads.start(to, move |over, writer| {
            Merge { readers: readers.into_iter().map(Some).collect(), lines, writer, search, steps }.run(&over);
        })?;
        Ok(ends)
    }
}

/// The state of the thread of a stream.
struct Merge {
    /// By local rank; `None` at the end of its output.
    readers: Vec<Option<Reader>>,
    lines: Lines,
    writer: OutputWriter,
    search: Search,
    /// By local rank, shared with the other stream.
    steps: Arc<[Mutex<LastStep>]>,
}

impl Merge {
    fn run(mut self, over: &EventFd) {
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut out = Vec::new();
        let count = u32::try_from(self.readers.len()).unwrap_or(u32::MAX);
        let is_searched = |which: usize| self.search.searched.includes(u32::try_from(which).unwrap_or(u32::MAX), count);
        let mut scrapers: Vec<Option<Scraper>> =
            (0..self.readers.len()).map(|which| is_searched(which).then(Scraper::default)).collect();
        loop {
            // Before the reads, so that all output written before the end is read.
            let is_over = over.is_notified();
            let mut quiet = true;
            for (which, scraper) in scrapers.iter_mut().enumerate() {
                let Some(reader) = &mut self.readers[which] else { continue };
                let read = match reader.read(&mut buffer) {
                    Ok(None) if !is_over => continue,
                    Ok(count) => count.unwrap_or(0),
                    Err(error) => {
                        tracing::warn!(
                            "the output of local rank {which} can no longer be read: {error}; its further output \
                             is lost"
                        );
                        0
                    }
                };
                if read == 0 {
                    self.readers[which] = None;
                    self.lines.finish(which, &mut out);
                } else {
                    quiet = false;
                    self.search.passed_on.fetch_add(read as u64, Ordering::Relaxed);
                    self.lines.feed(which, &buffer[..read], &mut out);
                }
                let is_read = self.pass_on(&mut out);
                if let Some(scraper) = scraper {
                    self.look(which, scraper, &buffer[..read], count);
                }
                if !is_read {
                    // The pipes close with the readers: the ranks get EPIPE, as without trainit.
                    return;
                }
            }
            if self.readers.iter().all(Option::is_none) {
                return;
            }
            if quiet {
                let open = self.readers.iter().flatten().map(AsRawFd::as_raw_fd);
                let eventfd = (!is_over).then(|| over.as_raw_fd());
                eventfd::wait_readable(&open.chain(eventfd).collect::<Vec<_>>(), None);
            }
        }
    }

    /// Writes whole lines per piece if they fit. Returns whether there may still be a reader.
    fn pass_on(&mut self, out: &mut Vec<u8>) -> bool {
        let mut rest = out.as_slice();
        let mut is_read = true;
        while rest.len() > PIECE_BYTES {
            let fits = rest[..PIECE_BYTES].iter().rposition(|b| *b == b'\n');
            let end = fits.or_else(|| rest.iter().position(|b| *b == b'\n')).map_or(rest.len(), |at| at + 1);
            is_read &= self.writer.pass_on(&rest[..end]);
            rest = &rest[end..];
        }
        if !rest.is_empty() {
            is_read &= self.writer.pass_on(rest);
        }
        out.clear();
        is_read
    }

    /// Searches the output of a rank; empty bytes mean its end.
    fn look(&mut self, which: usize, scraper: &mut Scraper, bytes: &[u8], count: u32) {
        let Search { patterns, sink: Some(sink), .. } = &self.search else { return };
        let mut hits = Vec::new();
        match bytes.is_empty() {
            true => scraper.finish(patterns, &mut hits),
            false => scraper.feed(patterns, bytes, &mut hits),
        }
        pass_to(sink, patterns, &self.steps[which], scraper, &mut hits);
        if bytes.is_empty() {
            note(sink, scraper.lines(), Some((self.search.searched, count)));
        }
    }
}

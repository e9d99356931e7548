//! The output of several ranks into our own two streams: whole lines, each with its rank before it, and rank 0's searched
//! for metrics (all would report the same).
//!
//! Each of our streams has a thread, which polls that stream of every rank. A slow reader of ours slows the ranks down, as
//! a pipe would. Deliberately absent: any of this where there is one process.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::outlet::Outlet;
use super::output::ChildEnds;
use super::pumps::Pumps;
use super::reporter::Sink;
use crate::edge::pipe::{self, Reader};
use crate::edge::stdio;
use crate::edge::wake::{self, Bell};
use crate::rules::lines::Lines;
use crate::rules::metric::pattern::Pattern;
use crate::rules::metric::scrape::Scraper;

/// What is read of one rank before it is another's turn.
const CHUNK_BYTES: usize = 64 * 1024;
/// A pipe takes this much in one piece (PIPE_BUF), so that our own log's lines fall between lines.
const PIECE_BYTES: usize = 4096;

/// What to look for in the first rank's output and where it goes, and what to count.
#[derive(Debug, Clone, Default)]
pub(super) struct Search {
    pub(super) patterns: Arc<[Pattern]>,
    pub(super) sink: Option<Sink>,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    /// Bytes of all ranks that were passed on.
    pub(super) heard: Arc<AtomicU64>,
}

/// The ranks' output of one run.
#[derive(Debug)]
pub(super) struct Ranks {
    /// What stands before each rank's lines.
    names: Vec<String>,
}

impl Ranks {
    pub(super) fn new(names: Vec<String>) -> Ranks {
        Ranks { names }
    }

    /// Captures the streams of an attempt that is about to start; one pair for each rank. Errors: as pipe2(2) and
    /// pthread_create(3).
    pub(super) fn capture(&self, search: &Search, pumps: &mut Pumps) -> io::Result<Vec<ChildEnds>> {
        let (stdout, stderr) = stdio::outputs();
        // One pipe a rank where both lead to one place: two would not keep the order.
        let both = pipe::is_same_file(stdout, stderr);
        let out = self.merge(stdout, search, search.stdout || (both && search.stderr), pumps)?;
        let err = match both {
            true => out.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?,
            false => self.merge(stderr, search, search.stderr, pumps)?,
        };
        let ends = out.into_iter().zip(err);
        Ok(ends.map(|(out, err)| ChildEnds { stdout: Some(out), stderr: Some(err) }).collect())
    }

    /// A thread for one of our streams; what each rank writes to.
    fn merge(
        &self,
        to: BorrowedFd<'static>,
        search: &Search,
        searched: bool,
        pumps: &mut Pumps,
    ) -> io::Result<Vec<OwnedFd>> {
        let pairs = self.names.iter().map(|_| pipe::pair()).collect::<io::Result<Vec<_>>>()?;
        let (readers, ends): (Vec<Reader>, Vec<OwnedFd>) = pairs.into_iter().unzip();
        let (lines, mut search) = (Lines::of(self.names.iter().cloned()), search.clone());
        search.sink = search.sink.filter(|_| searched);
        pumps.start(to, move |over, outlet| {
            Merge { readers: readers.into_iter().map(Some).collect(), lines, outlet, search }.run(&over);
        })?;
        Ok(ends)
    }
}

/// What the thread of a stream knows.
struct Merge {
    /// By local rank; `None` when it is at its end.
    readers: Vec<Option<Reader>>,
    lines: Lines,
    outlet: Outlet,
    search: Search,
}

impl Merge {
    fn run(mut self, over: &Bell) {
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut out = Vec::new();
        let mut scraper = Scraper::default();
        loop {
            // Asked before reading: what was written until then is read.
            let is_over = over.is_rung();
            let mut quiet = true;
            for which in 0..self.readers.len() {
                let Some(reader) = &mut self.readers[which] else { continue };
                let read = match reader.read(&mut buffer) {
                    Ok(None) if !is_over => continue,
                    Ok(count) => count.unwrap_or(0),
                    Err(error) => {
                        tracing::warn!(
                            "the output of local rank {which} cannot be read any more: {error}; what it still writes is lost"
                        );
                        0
                    }
                };
                if read == 0 {
                    self.readers[which] = None;
                    self.lines.finish(which, &mut out);
                } else {
                    quiet = false;
                    self.search.heard.fetch_add(read as u64, Ordering::Relaxed);
                    self.lines.feed(which, &buffer[..read], &mut out);
                }
                let is_read = self.pass_on(&mut out);
                if which == 0 {
                    self.look(&mut scraper, &buffer[..read]);
                }
                if !is_read {
                    // The pipes close with the readers: the ranks find them broken, as without us.
                    return;
                }
            }
            if self.readers.iter().all(Option::is_none) {
                return;
            }
            if quiet {
                let open = self.readers.iter().flatten().map(AsRawFd::as_raw_fd);
                let bell = (!is_over).then(|| over.as_raw_fd());
                wake::wait_readable(&open.chain(bell).collect::<Vec<_>>(), None);
            }
        }
    }

    /// In pieces that end with a line, as far as lines allow. Whether somebody may still read it.
    fn pass_on(&mut self, out: &mut Vec<u8>) -> bool {
        let mut rest = out.as_slice();
        let mut is_read = true;
        while rest.len() > PIECE_BYTES {
            let fits = rest[..PIECE_BYTES].iter().rposition(|b| *b == b'\n');
            let end = fits.or_else(|| rest.iter().position(|b| *b == b'\n')).map_or(rest.len(), |at| at + 1);
            is_read &= self.outlet.pass_on(&rest[..end]);
            rest = &rest[end..];
        }
        if !rest.is_empty() {
            is_read &= self.outlet.pass_on(rest);
        }
        out.clear();
        is_read
    }

    /// Rank 0's output, or (empty) its end.
    fn look(&mut self, scraper: &mut Scraper, bytes: &[u8]) {
        let Search { patterns, sink: Some(sink), .. } = &self.search else { return };
        let mut hits = Vec::new();
        match bytes.is_empty() {
            true => scraper.finish(patterns, &mut hits),
            false => scraper.feed(patterns, bytes, &mut hits),
        }
        while let Some(complaint) = scraper.complaint(patterns) {
            tracing::warn!("{complaint}");
        }
        if !hits.is_empty() {
            sink.take(hits.drain(..).map(|(which, found)| (patterns[which].tag(), found)));
        }
    }
}

//! Runs of files on their way out: read, summed, and held in memory only where they are short or the store wants it so.

use std::fs::File;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::budget::{Budget, STREAM, UNIT};
use super::mirror::blocking;
use super::sums::Sums;
use crate::edge::beneath::{forget, read_into};
use crate::edge::limits;
use crate::edge::pool::Pool;
use crate::edge::store::{Content, Source};
use crate::rules::checkpoint::archive::LONGEST;

/// Bytes of a large buffer; divides [`CHUNK`](crate::rules::checkpoint::manifest::CHUNK).
const BLOCK: u64 = 4 << 20;
/// Bytes of what is sent of a file while more is read.
const WINDOW: u64 = 1 << 20;
/// A file of so many bytes has a smaller one.
const SMALL: u64 = 256 << 10;
/// An archive counts as so many, so that only some are at once: more of them keep no store busier.
const TIMES: u64 = 3;

/// Files that are summed at once: one for every two processors, eight at most.
fn summing() -> usize {
    limits::cpus().map_or(1, |count| (count / 2).clamp(1, 8))
}

/// Reads what one transfer sends.
pub(super) struct Pieces {
    /// Of memory.
    budget: Budget,
    /// Whether the store takes what is not in memory.
    streams: bool,
    pools: Pools,
    /// Files are summed one after the other, where there are few processors: the sooner the first is on its way.
    summing: Semaphore,
}

#[derive(Clone)]
struct Pools {
    small: Pool,
    blocks: Pool,
    windows: Pool,
    archives: Pool,
}

impl Pools {
    fn new() -> Pools {
        Pools {
            small: Pool::new(SMALL),
            blocks: Pool::new(BLOCK),
            windows: Pool::new(WINDOW),
            archives: Pool::new(LONGEST),
        }
    }

    fn of(&self, bytes: u64) -> &Pool {
        if bytes <= SMALL { &self.small } else { &self.blocks }
    }
}

impl Pieces {
    pub(super) fn new(budget: Budget, streams: bool) -> Pieces {
        Pieces { budget, streams, pools: Pools::new(), summing: Semaphore::new(summing()) }
    }

    /// Waits until a run of so many bytes may be read and sent.
    pub(super) async fn hold(&self, length: u64) -> Option<SemaphorePermit<'_>> {
        self.budget.hold(if self.is_streamed(length) { STREAM / UNIT } else { units_of(length) }).await
    }

    /// Waits until a stretch may be summed.
    pub(super) async fn hold_one(&self) -> Option<SemaphorePermit<'_>> {
        self.budget.hold(units_of(BLOCK)).await
    }

    /// Waits until an archive may be read and sent.
    pub(super) async fn hold_archive(&self) -> Option<SemaphorePermit<'_>> {
        self.budget.hold(TIMES * units_of(LONGEST)).await
    }

    /// Buffers for those.
    pub(super) fn archives(&self) -> Pool {
        self.pools.archives.clone()
    }

    /// A run of a file, and its sums with those before. `is_last`: nothing of it will be read again. Errors: as pread(2);
    /// [`io::ErrorKind::UnexpectedEof`] where the file is shorter.
    pub(super) async fn read(
        &self,
        open: impl FnOnce() -> io::Result<File> + Send + 'static,
        from: u64,
        length: u64,
        mut sums: Sums,
        is_last: bool,
    ) -> io::Result<(Content, Sums)> {
        let pools = self.pools.clone();
        let _turn = if self.is_streamed(length) {
            self.summing.acquire().await.ok()
        } else {
            let read = blocking(move || read_blocks(&pools, &open()?, from, length, sums, is_last));
            return read.await.map(|(blocks, sums)| (blocks.into(), sums));
        };
        let read = blocking(move || {
            let source = Source::new(open()?, from, length, is_last, &pools.windows, |bytes| sums.add(bytes))?;
            Ok((Content::File(Arc::new(source)), sums))
        });
        read.await
    }

    /// The sums of a stretch of a file, as far as there is one, with those before.
    pub(super) async fn sum(&self, file: File, from: u64, until: u64, sums: Sums) -> io::Result<Sums> {
        let pools = self.pools.clone();
        blocking(move || add_stretch(&pools, &file, from, until, sums)).await
    }

    fn is_streamed(&self, length: u64) -> bool {
        is_streamed(self.streams, length)
    }
}

/// Whether a run of so many bytes stays in its file.
pub(super) fn is_streamed(streams: bool, length: u64) -> bool {
    streams && length > BLOCK
}

/// What [`read_blocks`] takes for so many bytes, in [`UNIT`]s; a small buffer counts as one.
fn units_of(bytes: u64) -> u64 {
    if bytes <= SMALL { 1 } else { bytes.next_multiple_of(BLOCK) / UNIT }
}

/// Reads a run of a file, summed, in blocks that are given back one by one.
fn read_blocks(
    pools: &Pools,
    file: &File,
    from: u64,
    length: u64,
    mut sums: Sums,
    is_last: bool,
) -> io::Result<(Vec<Bytes>, Sums)> {
    let mut blocks = Vec::new();
    let mut at = from;
    while at < from + length {
        let wanted = BLOCK.min(from + length - at);
        let mut block = pools.of(wanted).take()?;
        block.fill(wanted, |room| read_into(file, at, room, |bytes| sums.add(bytes)))?;
        if (block.as_ref().len() as u64) < wanted {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at += wanted;
        blocks.push(Bytes::from_owner(block));
    }
    if is_last {
        forget(file);
    }
    Ok((blocks, sums))
}

fn add_stretch(pools: &Pools, file: &File, mut at: u64, until: u64, mut sums: Sums) -> io::Result<Sums> {
    let mut block = pools.blocks.take()?;
    while at < until {
        block.fill(until - at, |room| read_into(file, at, room, |bytes| sums.add(bytes)))?;
        if block.as_ref().is_empty() {
            break;
        }
        at += block.as_ref().len() as u64;
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_take_no_more_than_was_counted_for_them() {
        let file = tempfile::tempfile().expect("makes a file");
        for bytes in [1, SMALL, SMALL + 1, UNIT, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + SMALL] {
            file.set_len(bytes).expect("grows");
            let pools = Pools::new();
            let (blocks, _) = read_blocks(&pools, &file, 0, bytes, Sums::default(), false).expect("reads");
            let taken: u64 = blocks.iter().map(|b| pools.of(b.len() as u64).length as u64).sum();
            assert!(taken <= units_of(bytes) * UNIT, "{taken} bytes of buffers for {bytes} bytes");
        }
    }

    #[tokio::test]
    async fn a_run_that_is_not_there_to_its_end_is_an_error_however_it_is_sent() {
        for streams in [false, true] {
            let (pieces, file) = (Pieces::new(Budget::now(), streams), tempfile::tempfile().expect("makes a file"));
            file.set_len(3 * BLOCK).expect("grows");
            for length in [BLOCK, 3 * BLOCK, 3 * BLOCK + 1] {
                let reader = file.try_clone().expect("duplicates");
                let read = pieces.read(move || Ok(reader), 0, length, Sums::default(), true).await;
                let is_file = read.as_ref().is_ok_and(|(content, _)| content.source().is_some());
                assert_eq!(is_file, streams && length == 3 * BLOCK);
                let fault = read.map(|(content, _)| content.length()).map_err(|error| error.kind());
                assert_eq!(fault, if length > 3 * BLOCK { Err(io::ErrorKind::UnexpectedEof) } else { Ok(length) });
            }
        }
    }
}

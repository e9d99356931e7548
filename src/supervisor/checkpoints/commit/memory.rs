//! The buffers of a transfer and their limit. They share the trainer's memory limit: beyond it the kernel kills the trainer.

use std::fs::File;
use std::io;

use bytes::Bytes;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::edge::fs::rooted_dir::{forget, read_into};
use crate::edge::host::limits::memory_room;
use crate::edge::store::PartSizes;
use crate::edge::transfer::blocking::blocking;
use crate::edge::transfer::buffer_pool::Pool;
use crate::rules::store::archive::LONGEST;
use crate::supervisor::checkpoints::directory::sums::Sums;

/// Three of the largest whole objects, or six parts. With more, mapping fresh pages takes longer than the store.
const MOST: u64 = 192 << 20;
/// One part; servers require at least 5 MiB.
const LEAST: u64 = 8 << 20;
/// A transfer uses this fraction (1/4) of the free memory: the trainer may need some, and the kernel buffers what is sent.
const SHARE: u64 = 4;
const UNIT: u64 = 1 << 20;
/// Bytes of a large buffer; divides [`CHUNK`](crate::rules::store::manifest::CHUNK).
const BLOCK: u64 = 4 << 20;
const SMALL: u64 = 256 << 10;
/// An archive counts as this many, because more archives at once do not speed up a store.
const ARCHIVE_WEIGHT: u64 = 3;

/// Buffers of one transfer, with a limit on the bytes in use.
pub(crate) struct Memory {
    turns: Semaphore,
    units: u64,
    small: Pool,
    blocks: Pool,
    pub(crate) archives: Pool,
}

impl Memory {
    pub(crate) fn now() -> Memory {
        Memory::of(memory_room())
    }

    fn of(room: Option<u64>) -> Memory {
        let units = room.map_or(MOST, |room| (room / SHARE).clamp(LEAST, MOST)) / UNIT;
        let (small, blocks, archives) = (Pool::new(SMALL), Pool::new(BLOCK), Pool::new(LONGEST));
        Memory { turns: Semaphore::new(units as usize), units, small, blocks, archives }
    }

    /// The store's piece sizes, reduced to fit this memory.
    pub(crate) fn fit(&self, sizes: PartSizes) -> PartSizes {
        let bytes = self.units * UNIT;
        PartSizes {
            whole: sizes.whole.min((bytes / 3).max(LEAST)),
            part: sizes.part.min((bytes / 4).max(LEAST)),
            at_once: (sizes.at_once as u64 * bytes / MOST).max(1) as usize,
            ..sizes
        }
    }

    /// Waits until `length` bytes of a file may be read and sent.
    pub(crate) async fn hold(&self, length: u64) -> Option<SemaphorePermit<'_>> {
        self.hold_units(units_of(length)).await
    }

    pub(crate) async fn hold_archive(&self) -> Option<SemaphorePermit<'_>> {
        self.hold_units(ARCHIVE_WEIGHT * units_of(LONGEST)).await
    }

    /// Waits for this many [`UNIT`]s, at most all.
    async fn hold_units(&self, units: u64) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.turns.acquire_many(units.min(self.units) as u32).await.ok()
    }

    /// Reads a range of a file into blocks and adds it to the sums. `is_last`: drops the file from the page cache. Errors:
    /// as pread(2); [`io::ErrorKind::UnexpectedEof`] if the file is shorter.
    pub(crate) async fn read(
        &self,
        open: impl FnOnce() -> io::Result<File> + Send + 'static,
        from: u64,
        length: u64,
        mut sums: Sums,
        is_last: bool,
    ) -> io::Result<(Vec<Bytes>, Sums)> {
        let (small, blocks) = (self.small.clone(), self.blocks.clone());
        blocking(move || {
            let (file, mut read, mut at) = (open()?, Vec::new(), from);
            while at < from + length {
                let wanted = BLOCK.min(from + length - at);
                let mut block = if wanted <= SMALL { small.take()? } else { blocks.take()? };
                block.fill(wanted, |room| read_into(&file, at, room, |bytes| sums.add(bytes)))?;
                if (block.as_ref().len() as u64) < wanted {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                at += wanted;
                read.push(Bytes::from_owner(block));
            }
            if is_last {
                forget(&file);
            }
            Ok((read, sums))
        })
        .await
    }
}

/// The buffers for this many bytes in [`UNIT`]s; a small buffer counts as one.
fn units_of(bytes: u64) -> u64 {
    if bytes <= SMALL { 1 } else { bytes.next_multiple_of(BLOCK) / UNIT }
}

//! The checksums of a file for its manifest.

use crate::rules::store::manifest::{CHUNK, Chunks, Item, hex, joined};

/// Running checksums of a file that is read in order.
#[derive(Default)]
pub(crate) struct Sums {
    /// Of the complete chunks.
    before: u32,
    chunk: u32,
    chunks: Vec<String>,
    seen: u64,
}

impl Sums {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min((CHUNK - self.seen % CHUNK) as usize));
            self.chunk = crc32c::crc32c_append(self.chunk, now);
            self.seen += now.len() as u64;
            if self.seen.is_multiple_of(CHUNK) {
                self.before = joined(self.before, self.chunk, CHUNK);
                self.chunks.push(hex(std::mem::take(&mut self.chunk)));
            }
            rest = later;
        }
    }

    pub(crate) fn whole(&self) -> u32 {
        joined(self.before, self.chunk, self.seen % CHUNK)
    }

    /// Whether the checksum is the item's.
    pub(crate) fn are_of(&self, item: &Item) -> bool {
        hex(self.whole()) == item.crc32c
    }

    pub(crate) fn chunks(mut self) -> Chunks {
        if !self.seen.is_multiple_of(CHUNK) {
            self.chunks.push(hex(self.chunk));
        }
        Chunks { size: CHUNK, crc32c: self.chunks }
    }
}

//! The checksums of a file, as its manifest has them.

use crate::rules::checkpoint::manifest::{CHUNK, Chunks, hex};

/// Checksums of a file as it goes by, in order.
#[derive(Default)]
pub(super) struct Sums {
    /// Of the chunks that are through.
    before: u32,
    chunk: u32,
    chunks: Vec<String>,
    seen: u64,
    /// Only where it is wanted: it costs twice as much as all the rest.
    strong: Option<Box<blake3::Hasher>>,
}

impl Sums {
    pub(super) fn new(strong: bool) -> Sums {
        Sums { strong: strong.then(Box::default), ..Sums::default() }
    }

    pub(super) fn strong(&self) -> Option<blake3::Hash> {
        self.strong.as_ref().map(|hasher| hasher.finalize())
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        if let Some(hasher) = &mut self.strong {
            hasher.update(bytes);
        }
        self.chunk = crc32c::crc32c_append(self.chunk, bytes);
        self.seen += bytes.len() as u64;
        if !bytes.is_empty() && self.seen.is_multiple_of(CHUNK) {
            self.before = crc32c::crc32c_combine(self.before, self.chunk, CHUNK as usize);
            self.chunks.push(hex(self.chunk));
            self.chunk = 0;
        }
    }

    pub(super) fn whole(&self) -> u32 {
        crc32c::crc32c_combine(self.before, self.chunk, (self.seen % CHUNK) as usize)
    }

    pub(super) fn finish(mut self) -> (String, Option<Chunks>) {
        let whole = hex(self.whole());
        if !self.seen.is_multiple_of(CHUNK) {
            self.chunks.push(hex(self.chunk));
        }
        (whole, Some(Chunks { size: CHUNK, crc32c: self.chunks }))
    }
}

//! The checksums of a file, as its manifest has them.

use crate::rules::checkpoint::manifest::{CHUNK, Chunks, Item, hex, joined};

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
            self.before = joined(self.before, self.chunk, CHUNK);
            self.chunks.push(hex(self.chunk));
            self.chunk = 0;
        }
    }

    pub(super) fn whole(&self) -> u32 {
        joined(self.before, self.chunk, self.seen % CHUNK)
    }

    pub(super) fn finish(mut self) -> (String, Option<Chunks>) {
        let whole = hex(self.whole());
        if !self.seen.is_multiple_of(CHUNK) {
            self.chunks.push(hex(self.chunk));
        }
        (whole, Some(Chunks { size: CHUNK, crc32c: self.chunks }))
    }
}

/// Checksums of what is to be compared with an item of a manifest, as it goes by in pieces of any length.
pub(super) struct Compared {
    crc: u32,
    strong: Option<Box<blake3::Hasher>>,
}

/// What there is to compare; a strong hash where the item has one.
pub(super) struct Found {
    pub(super) crc32c: String,
    pub(super) blake3: Option<String>,
}

impl Found {
    pub(super) fn is_of(&self, item: &Item) -> bool {
        self.crc32c == item.crc32c && self.blake3 == item.blake3
    }
}

impl Compared {
    pub(super) fn with(item: &Item) -> Compared {
        Compared { crc: 0, strong: item.blake3.as_ref().map(|_| Box::default()) }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        if let Some(hasher) = &mut self.strong {
            hasher.update(bytes);
        }
    }

    pub(super) fn found(self) -> Found {
        let blake3 = self.strong.map(|hasher| hasher.finalize().to_hex().to_string());
        Found { crc32c: hex(self.crc), blake3 }
    }
}

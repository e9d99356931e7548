//! In which pieces a store takes its data, and how many at once.

/// How a store takes its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartSizes {
    /// Objects up to this many bytes are sent whole.
    pub whole: u64,
    /// Bytes of a part of a larger one.
    pub part: u64,
    /// Small objects sent or fetched at once.
    pub at_once: usize,
    /// Whether many small files are sent together as one object: each request takes time, and is often paid for.
    pub gathers: bool,
}

/// Bytes asked of a directory at a time.
pub(super) const BLOCK: u64 = 8 << 20;
/// Parts of large objects that are under way at once, at most.
const PARTS_AT_ONCE: usize = 16;
/// Servers take at most this many parts of one object.
const MOST_PARTS: u64 = 9_000;

pub(super) const OF_A_DIRECTORY: PartSizes = PartSizes { whole: BLOCK, part: BLOCK, at_once: 4, gathers: false };
pub(super) const OF_A_BUCKET: PartSizes = PartSizes { whole: 64 << 20, part: 32 << 20, at_once: 128, gathers: true };

impl PartSizes {
    /// In small steps, for a commit that must not be noticed.
    pub fn gently(self) -> PartSizes {
        PartSizes { whole: self.whole.min(BLOCK), part: self.part.min(BLOCK), at_once: self.at_once.min(4), ..self }
    }

    /// How many small objects a part of a large one stands for.
    pub fn small_for_a_part(self) -> u32 {
        u32::try_from(self.at_once / PARTS_AT_ONCE).unwrap_or(1).max(1)
    }

    /// Requests that an object of so many bytes takes.
    pub fn puts_of(&self, size: u64) -> u64 {
        if size <= self.whole { 1 } else { size.div_ceil(self.part_of(size)) }
    }

    /// Bytes of each part of an object of so many, but the last.
    pub fn part_of(&self, size: u64) -> u64 {
        self.part.max(size.div_ceil(MOST_PARTS).next_multiple_of(1 << 20))
    }
}

//! The sizes of the pieces in which data is sent to a store, and how many at once.

/// Sizes of objects and parts.
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

/// Bytes read from a directory at a time.
pub(super) const BLOCK: u64 = 8 << 20;
/// The maximum of parts of large objects in transfer at once.
const PARTS_AT_ONCE: usize = 16;
/// Servers accept at most this many parts of one object.
const MOST_PARTS: u64 = 9_000;

pub(super) const OF_A_DIRECTORY: PartSizes = PartSizes { whole: BLOCK, part: BLOCK, at_once: 4, gathers: false };
pub(super) const OF_A_BUCKET: PartSizes = PartSizes { whole: 64 << 20, part: 32 << 20, at_once: 128, gathers: true };

impl PartSizes {
    /// Smaller pieces, for a commit that must not disturb the trainer.
    pub fn for_background(self) -> PartSizes {
        PartSizes { whole: self.whole.min(BLOCK), part: self.part.min(BLOCK), at_once: self.at_once.min(4), ..self }
    }

    /// How many small objects count as one part of a large one.
    pub fn small_for_a_part(self) -> u32 {
        u32::try_from(self.at_once / PARTS_AT_ONCE).unwrap_or(1).max(1)
    }

    /// Requests for an object of `size` bytes.
    pub fn puts_of(&self, size: u64) -> u64 {
        if size <= self.whole { 1 } else { size.div_ceil(self.part_of(size)) }
    }

    /// Bytes of each part but the last, for an object of `size` bytes.
    pub fn part_of(&self, size: u64) -> u64 {
        self.part.max(size.div_ceil(MOST_PARTS).next_multiple_of(1 << 20))
    }
}

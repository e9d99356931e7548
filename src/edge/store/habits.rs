//! In which pieces a store likes its data, and how many at once.

/// How a store likes its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Habits {
    /// Objects up to this many bytes are best sent whole.
    pub whole: u64,
    /// Bytes of a part of a larger one.
    pub part: u64,
    /// Small objects best sent or fetched at once.
    pub at_once: usize,
    /// Whether many small files are best sent together, as few objects: each is asked for by itself, and often paid for.
    pub gathers: bool,
    /// Whether it takes a [`Source`](super::Source).
    pub streams: bool,
}

/// Bytes asked of a directory at a time.
pub(super) const BLOCK: u64 = 8 << 20;
/// Parts of large objects that are under way at once, at most.
const PARTS_AT_ONCE: usize = 16;
/// Servers take at most this many parts of one object.
const MOST_PARTS: u64 = 9_000;

pub(super) const OF_A_DIRECTORY: Habits =
    Habits { whole: BLOCK, part: BLOCK, at_once: 4, gathers: false, streams: false };

pub(super) fn of_a_bucket(streams: bool) -> Habits {
    Habits { whole: 64 << 20, part: 32 << 20, at_once: 128, gathers: true, streams }
}

impl Habits {
    /// In small steps, for a commit that must not be noticed.
    pub fn gently(self) -> Habits {
        Habits { whole: self.whole.min(BLOCK), part: self.part.min(BLOCK), at_once: self.at_once.min(4), ..self }
    }

    /// How many small objects a part of a large one stands for.
    pub fn small_for_a_part(self) -> u32 {
        u32::try_from(self.at_once / PARTS_AT_ONCE).unwrap_or(1).max(1)
    }

    /// Puts that an object of so many bytes takes.
    pub fn puts_of(&self, size: u64) -> u64 {
        if size <= self.whole { 1 } else { size.div_ceil(self.part_of(size)) }
    }

    /// Bytes of each part of an object of so many, but the last.
    pub fn part_of(&self, size: u64) -> u64 {
        let least = size.div_ceil(MOST_PARTS).div_ceil(1 << 20) << 20;
        self.part.max(least)
    }
}

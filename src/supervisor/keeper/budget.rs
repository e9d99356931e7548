//! How much memory a transfer may take: it shares the trainer's, and what the kernel kills for it is the trainer.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::edge::limits::memory_room;
use crate::edge::store::Habits;

/// Bytes at most: three whole objects of the largest, six parts. Of more, more time goes into fresh pages than a store is
/// kept busy with.
const MOST: u64 = 192 << 20;
/// One part, which servers want to be of 5 MiB at least.
const LEAST: u64 = 8 << 20;
/// Of what is free a transfer takes one part in so many: the trainer may want some meanwhile, and the kernel has buffers
/// for what is sent.
const SHARE: u64 = 4;
/// What is sent out of a file counts as this much, so that only some are at once.
pub(super) const STREAM: u64 = MOST / 16;
/// It is counted in these.
pub(super) const UNIT: u64 = 1 << 20;

/// Bytes of buffers that may be in use at once.
pub(super) struct Budget {
    turns: Semaphore,
    units: u64,
}

impl Budget {
    /// By what is free now.
    pub(super) fn now() -> Budget {
        Budget::of(memory_room())
    }

    fn of(room: Option<u64>) -> Budget {
        let units = room.map_or(MOST, |room| (room / SHARE).clamp(LEAST, MOST)) / UNIT;
        Budget { turns: Semaphore::new(units as usize), units }
    }

    /// How a store's data are sent and fetched within it: as it likes them, or in smaller pieces, where those are held in
    /// memory, and fewer at once.
    pub(super) fn fit(&self, habits: Habits) -> Habits {
        let bytes = self.units * UNIT;
        let at_once = habits.at_once as u64 * bytes / MOST;
        let habits = Habits { at_once: at_once.max(1) as usize, ..habits };
        if habits.streams {
            return habits;
        }
        Habits {
            whole: habits.whole.min((bytes / 3).max(LEAST)),
            part: habits.part.min((bytes / 4).max(LEAST)),
            ..habits
        }
    }

    /// Waits until so many [`UNIT`]s may be in use, or all of it.
    pub(super) async fn hold(&self, units: u64) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.turns.acquire_many(units.min(self.units) as u32).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKET: Habits = Habits { whole: 64 << 20, part: 32 << 20, at_once: 128, gathers: true, streams: false };
    const STREAMED: Habits = Habits { streams: true, ..BUCKET };
    const DIRECTORY: Habits = Habits { whole: 8 << 20, part: 8 << 20, at_once: 4, gathers: false, streams: false };

    #[test]
    fn where_there_is_memory_a_store_gets_its_data_as_it_likes_them() {
        for room in [None, Some(MOST * SHARE), Some(u64::MAX)] {
            let budget = Budget::of(room);
            assert_eq!(budget.units * UNIT, MOST);
            for habits in [BUCKET, STREAMED, DIRECTORY] {
                assert_eq!(budget.fit(habits), habits);
            }
        }
    }

    #[tokio::test]
    async fn where_there_is_little_no_piece_is_larger_than_a_quarter_of_what_is_free_or_one_part() {
        for room in [0, 1 << 20, 40 << 20, 100 << 20, 400 << 20] {
            let (budget, most) = (Budget::of(Some(room)), (room / SHARE).max(LEAST));
            let (bucket, directory) = (budget.fit(BUCKET), budget.fit(DIRECTORY));
            assert!(bucket.whole.max(bucket.part).max(directory.part) <= most, "{room}");
            assert_eq!(budget.fit(STREAMED), Habits { at_once: bucket.at_once, ..STREAMED });
            assert!(bucket.at_once as u64 * UNIT <= most && directory.at_once >= 1, "{room}");
            assert!(budget.hold(u64::MAX).await.is_some(), "what is larger than all of it takes all of it");
        }
    }
}

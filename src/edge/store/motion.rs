//! Whether anything moves between us and a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What has moved on a store's connections, and what it owes.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter(Arc<(AtomicU64, AtomicU32)>);

impl Meter {
    /// So many bytes have come or gone.
    pub(super) fn moved(&self, bytes: usize) {
        self.0.0.fetch_add(bytes as u64, Relaxed);
    }

    /// An answer is owed from now on, until what comes back is dropped.
    pub(super) fn owed(&self) -> Owed {
        self.0.1.fetch_add(1, Relaxed);
        Owed(self.clone())
    }

    /// How it stands now.
    pub(super) fn read(&self) -> Motion {
        Motion { bytes: self.0.0.load(Relaxed), owed: self.0.1.load(Relaxed) }
    }
}

/// An answer that is waited for.
pub(super) struct Owed(Meter);

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.0.1.fetch_sub(1, Relaxed);
    }
}

/// How it stood between us and a store at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Motion {
    /// That have come and gone on all its connections.
    bytes: u64,
    /// Answers that were waited for.
    owed: u32,
}

impl Motion {
    /// Whether anything has moved in between.
    pub fn has_moved_since(self, then: Motion) -> bool {
        self.bytes != then.bytes
    }

    /// Whether answers were owed then and are now, and nothing has moved in between.
    pub fn is_stuck_since(&self, then: Motion) -> bool {
        then.owed > 0 && self.owed > 0 && !self.has_moved_since(then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_stuck_that_owes_an_answer_while_nothing_moves() {
        let meter = Meter::default();
        let idle = meter.read();
        assert!(!meter.read().is_stuck_since(idle), "nobody has asked anything");
        let owed = meter.owed();
        let asked = meter.read();
        assert!(!asked.is_stuck_since(idle), "only now is it asked");
        assert!(meter.read().is_stuck_since(asked));
        meter.moved(1);
        let moved = meter.read();
        assert!(!moved.is_stuck_since(asked));
        drop(owed);
        assert!(!meter.read().is_stuck_since(moved), "it has answered");
    }
}

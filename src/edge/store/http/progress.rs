//! Whether bytes move between this process and a store. The one rule for waiting: an operation fails when none of its bytes
//! has moved for the store's time-out (`--store-timeout`).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::task_local;
use tokio::time::timeout;

use crate::edge::clock::Clock;

task_local! {
    /// The progress of the operation that this task runs.
    static CURRENT: Progress;
}

#[derive(Debug, Clone, Default)]
pub(in crate::edge::store) struct Meter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    clock: Clock,
    bytes: AtomicU64,
    running: AtomicU32,
    /// Milliseconds on the clock when a byte last moved, or the first operation began.
    moved_at: AtomicU64,
    /// Whether the last answer was "later".
    is_throttled: AtomicBool,
}

impl Meter {
    /// Runs the work while bytes move. `None`: none of its bytes moved for `limit`.
    pub(in crate::edge::store) async fn watch<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let operation = self.begin();
        let mut work = pin!(CURRENT.scope(operation.0.clone(), work));
        loop {
            let left = limit.saturating_sub(self.since(&operation.0.moved_at));
            match timeout(left, &mut work).await {
                Ok(done) => return Some(done),
                Err(_) if left.is_zero() => return None,
                Err(_) => {}
            }
        }
    }

    /// Where the work of [`Meter::watch`] reports its bytes.
    pub(in crate::edge::store) fn current(&self) -> Progress {
        CURRENT.try_with(Progress::clone).unwrap_or_else(|_| self.begin().0.clone())
    }

    /// Begins an operation, which runs until it is dropped.
    fn begin(&self) -> Operation {
        if self.0.running.fetch_add(1, Relaxed) == 0 && !self.is_throttled() {
            self.0.moved_at.store(self.now(), Relaxed);
        }
        Operation(Progress { meter: self.clone(), moved_at: Arc::new(AtomicU64::new(self.now())) })
    }

    pub(in crate::edge::store) fn bytes(&self) -> u64 {
        self.0.bytes.load(Relaxed)
    }

    /// How long the running operations have moved no byte or the store has answered "later" to all of them. Zero while
    /// none runs.
    pub(in crate::edge::store) fn silence(&self) -> Duration {
        let waits = self.0.running.load(Relaxed) > 0 || self.is_throttled();
        if waits { self.since(&self.0.moved_at) } else { Duration::ZERO }
    }

    pub(in crate::edge::store) fn is_throttled(&self) -> bool {
        self.0.is_throttled.load(Relaxed)
    }

    fn now(&self) -> u64 {
        self.0.clock.now().as_millis() as u64
    }

    fn since(&self, then: &AtomicU64) -> Duration {
        Duration::from_millis(self.now().saturating_sub(then.load(Relaxed)))
    }
}

struct Operation(Progress);

/// Where an operation reports its bytes. It may outlive the operation.
#[derive(Debug, Clone)]
pub(in crate::edge::store) struct Progress {
    meter: Meter,
    moved_at: Arc<AtomicU64>,
}

impl Progress {
    /// Reports bytes that were transferred, or 0 for a step without bytes.
    pub(in crate::edge::store) fn moved(&self, bytes: usize) {
        self.meter.0.moved_at.store(self.meter.now(), Relaxed);
        self.meter.0.bytes.fetch_add(bytes as u64, Relaxed);
        self.keep_alive();
    }

    /// Reports bytes that are no progress of the store: of a request that it may still refuse, or of a refusal.
    pub(in crate::edge::store) fn keep_alive(&self) {
        self.moved_at.store(self.meter.now(), Relaxed);
    }

    /// Reports a response, and whether that is "later".
    pub(in crate::edge::store) fn answered(&self, is_later: bool) {
        self.meter.0.is_throttled.store(is_later, Relaxed);
        if is_later { self.keep_alive() } else { self.moved(1) }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.0.meter.0.running.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn an_operation_is_waited_for_as_long_as_its_own_bytes_move() {
        let meter = Meter::default();
        let moves = async {
            for _ in 0..10 {
                sleep(LIMIT / 8).await;
                meter.current().moved(1);
            }
        };
        let (moved, hung) = tokio::join!(meter.watch(LIMIT, moves), meter.watch(LIMIT, pending::<()>()));
        assert_eq!((moved, hung, meter.bytes()), (Some(()), None, 10));
    }
}

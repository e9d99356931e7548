//! Threads of their own for transfers. What comes from elsewhere and is written here each receives, sums and writes in one
//! go, while a piece is still at hand to the processor: the threads of [`blocking`](super::blocking) would each have it
//! brought to them, and keep a processor from who sends. What goes out is more than one thread can make requests of, or
//! encrypt, where there are many processors.

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::blocking::{keep_a_thread, runtime};
use super::{limits, signals};

/// However many processors there are: each is two threads.
const MOST: usize = 4;
/// So many deeds are as soon done by one.
const FEW: usize = 4;

/// One for every two processors, no more than [`MOST`].
fn wanted() -> usize {
    for_processors(limits::cpus())
}

fn for_processors(count: Option<usize>) -> usize {
    count.map_or(1, |count| (count / 2).clamp(1, MOST))
}

/// Of so many that are wanted, those that are sooner through with these deeds than one.
fn several(wanted: usize, deeds: usize) -> usize {
    let count = wanted.min(deeds / FEW);
    if count > 1 { count } else { 0 }
}

/// Some of them, as long as they are wanted.
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    next: AtomicUsize,
}

struct Lane {
    handle: Handle,
    /// The thread ends when this does.
    wanted: oneshot::Sender<()>,
    /// Ends with the thread.
    lasts: oneshot::Receiver<Infallible>,
}

impl Lanes {
    /// As many as are [`wanted`], no more than there are deeds; fewer, or none, where the system has no threads to give.
    pub(crate) async fn open(deeds: usize) -> Lanes {
        let mut lanes = Vec::new();
        while lanes.len() < wanted().min(deeds)
            && let Some(lane) = Lane::open().await
        {
            lanes.push(lane);
        }
        Lanes { lanes, next: AtomicUsize::new(0) }
    }

    /// For what one alone would do no sooner than whoever asks.
    pub(crate) async fn open_several(deeds: usize) -> Lanes {
        Lanes::open(several(wanted(), deeds)).await
    }

    /// Does it on the next of them, where it is told `true`: it may wait for a file there, which keeps its like alone. Where
    /// there is none it is done here, and told `false`. Dropped before its end, it ends where it next waits for something
    /// else. Errors: its own.
    pub(crate) async fn carry<T, F>(&self, deed: impl FnOnce(bool) -> F) -> io::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = io::Result<T>> + Send + 'static,
    {
        let number = self.next.fetch_add(1, Relaxed);
        let Some(lane) = self.lanes.get(number % self.lanes.len().max(1)) else { return deed(false).await };
        let mut one = JoinSet::new();
        one.spawn_on(deed(true), &lane.handle);
        one.join_next().await.ok_or(io::ErrorKind::Other)?.map_err(io::Error::other)?
    }

    /// Ends them, and returns when they have: no connection of theirs is there for others to use. All must be done.
    pub(crate) async fn close(self) {
        for Lane { wanted, lasts, .. } in self.lanes {
            drop(wanted);
            let _ = lasts.await;
        }
    }
}

impl Lane {
    async fn open() -> Option<Lane> {
        let (told, hears) = oneshot::channel();
        let (wanted, over) = oneshot::channel();
        let (ends, lasts) = oneshot::channel();
        let started = signals::deaf_thread("transfer", move || {
            let Ok(runtime) = runtime(true) else { return };
            let _ = told.send(runtime.handle().clone());
            runtime.block_on(async {
                tokio::select! {
                    _ = over => {}
                    never = keep_a_thread() => match never {},
                }
            });
            // Whoever still waits for a file is not waited for.
            runtime.shutdown_background();
            drop(ends);
        });
        started.ok()?;
        Some(Lane { handle: hears.await.ok()?, wanted, lasts })
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread::{self, ThreadId};

    use super::*;

    fn own() -> ThreadId {
        thread::current().id()
    }

    #[test]
    fn there_are_several_only_where_there_are_processors_and_deeds_for_them() {
        assert_eq!([None, Some(1), Some(2), Some(8), Some(64)].map(for_processors), [1, 1, 1, 4, MOST]);
        for (deeds, expected) in [(0, 0), (2 * FEW - 1, 0), (2 * FEW, 2), (1000, 4)] {
            assert_eq!((several(1, deeds), several(4, deeds)), (0, expected), "{deeds}");
        }
    }

    #[tokio::test]
    async fn who_waits_for_a_file_keeps_nobody_else() {
        let lanes = Lanes::open(1).await;
        let (release, is_released) = channel();
        let waits = lanes.carry(|may_wait| async move {
            is_released.recv().map_err(io::Error::other)?;
            Ok((may_wait, own()))
        });
        let releases = async { release.send(()).expect("it is waited for") };
        let (waited, ()) = tokio::join!(waits, releases);
        let (may_wait, there) = waited.expect("is released");
        assert!(may_wait && there != own());
        lanes.close().await;
    }

    #[tokio::test]
    async fn what_is_dropped_ends_and_so_does_its_thread() {
        let lanes = Lanes::open(1).await;
        let held = Arc::new(());
        let holds = Arc::clone(&held);
        let never = lanes.carry(|_| async move {
            let _holds = holds;
            pending::<io::Result<()>>().await
        });
        assert!(futures_util::FutureExt::now_or_never(never).is_none());
        lanes.close().await;
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn where_there_is_no_thread_it_is_done_here_and_must_not_wait() {
        let none = Lanes { lanes: Vec::new(), next: AtomicUsize::new(0) };
        let done = none.carry(async |may_wait| Ok((may_wait, own()))).await;
        assert_eq!(done.expect("is done"), (false, own()));
    }

    #[tokio::test]
    async fn its_own_error_comes_back() {
        let lanes = Lanes::open(1).await;
        let failed = lanes.carry(async |_| Err::<(), _>(io::ErrorKind::StorageFull.into())).await;
        assert_eq!(failed.expect_err("fails").kind(), io::ErrorKind::StorageFull);
        lanes.close().await;
    }
}

//! Dedicated threads for transfers. Each thread for a download receives, hashes and writes a piece in one pass, while
//! it is still in the processor's cache. With the threads of [`blocking`](crate::edge::transfer::blocking) each piece
//! would move to another processor's cache. Uploads use several threads because one cannot build or encrypt enough
//! requests on a machine with many processors.

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::edge::host::limits;
use crate::edge::process::signals;
use crate::edge::transfer::blocking::{keep_a_thread, runtime};

/// The maximum, on any number of processors. Each transfer thread has a second thread for file work.
const MOST: usize = 4;
/// Fewer tasks per transfer thread than this finish no sooner than on one thread.
const FEW: usize = 4;

/// One transfer thread for every two processors, at most [`MOST`].
fn threads_here() -> usize {
    for_processors(limits::cpus())
}

fn for_processors(count: Option<usize>) -> usize {
    count.map_or(1, |count| (count / 2).clamp(1, MOST))
}

/// The number of transfer threads for this number of tasks; 0 if the caller's thread finishes as soon.
fn several(limit: usize, tasks: usize) -> usize {
    let count = limit.min(tasks / FEW);
    if count > 1 { count } else { 0 }
}

/// A set of running threads.
pub(crate) struct TransferThreads {
    threads: Vec<TransferThread>,
    next: AtomicUsize,
}

struct TransferThread {
    handle: Handle,
    /// Dropped to end the thread.
    stop: oneshot::Sender<()>,
    /// Closed when the thread has ended.
    ended: oneshot::Receiver<Infallible>,
}

impl TransferThreads {
    /// Starts at most one thread for each task, and at most [`threads_here`]; fewer, or none, if the system refuses threads.
    pub(crate) async fn open(tasks: usize) -> TransferThreads {
        let mut threads = Vec::new();
        while threads.len() < threads_here().min(tasks)
            && let Some(thread) = TransferThread::open().await
        {
            threads.push(thread);
        }
        TransferThreads { threads, next: AtomicUsize::new(0) }
    }

    /// Starts threads only if several finish sooner than the caller's own thread.
    pub(crate) async fn open_several(tasks: usize) -> TransferThreads {
        TransferThreads::open(several(threads_here(), tasks)).await
    }

    /// Runs the task on the next thread with `true`: there it may wait for a file, which delays only tasks of the same
    /// thread. Without threads it runs on the caller's thread with `false`. If the future is dropped, the task ends at its
    /// next await. Errors: those of the task.
    pub(crate) async fn run<T, F>(&self, work: impl FnOnce(bool) -> F) -> io::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = io::Result<T>> + Send + 'static,
    {
        let number = self.next.fetch_add(1, Relaxed);
        let Some(thread) = self.threads.get(number % self.threads.len().max(1)) else { return work(false).await };
        let mut one = JoinSet::new();
        one.spawn_on(work(true), &thread.handle);
        one.join_next().await.ok_or(io::ErrorKind::Other)?.map_err(io::Error::other)?
    }

    /// Stops the threads and waits for their end, because connections of their runtimes cannot be used elsewhere. All
    /// tasks must be done.
    pub(crate) async fn close(self) {
        for TransferThread { stop, ended, .. } in self.threads {
            drop(stop);
            let _ = ended.await;
        }
    }
}

impl TransferThread {
    async fn open() -> Option<TransferThread> {
        let (handle_sender, handle) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let started = signals::thread_without_signals("transfer", move || {
            let Ok(runtime) = runtime(true) else { return };
            let _ = handle_sender.send(runtime.handle().clone());
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    never = keep_a_thread() => match never {},
                }
            });
            // A thread that still waits for a file is left behind.
            runtime.shutdown_background();
            drop(end);
        });
        started.ok()?;
        Some(TransferThread { handle: handle.await.ok()?, stop, ended })
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
    fn there_are_several_lanes_only_with_enough_processors_and_tasks() {
        assert_eq!([None, Some(1), Some(2), Some(8), Some(64)].map(for_processors), [1, 1, 1, 4, MOST]);
        for (tasks, expected) in [(0, 0), (2 * FEW - 1, 0), (2 * FEW, 2), (1000, 4)] {
            assert_eq!((several(1, tasks), several(4, tasks)), (0, expected), "{tasks}");
        }
    }

    #[tokio::test]
    async fn a_task_that_waits_for_a_file_does_not_delay_the_caller() {
        let threads = TransferThreads::open(1).await;
        let (release, is_released) = channel();
        let waits = threads.run(|may_wait| async move {
            is_released.recv().map_err(io::Error::other)?;
            Ok((may_wait, own()))
        });
        let releases = async { release.send(()).expect("it is waited for") };
        let (waited, ()) = tokio::join!(waits, releases);
        let (may_wait, thread) = waited.expect("is released");
        assert!(may_wait && thread != own());
        threads.close().await;
    }

    #[tokio::test]
    async fn a_dropped_task_ends_and_its_thread_too() {
        let threads = TransferThreads::open(1).await;
        let held = Arc::new(());
        let holds = Arc::clone(&held);
        let never = threads.run(|_| async move {
            let _holds = holds;
            pending::<io::Result<()>>().await
        });
        assert!(futures_util::FutureExt::now_or_never(never).is_none());
        threads.close().await;
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn without_a_lane_the_task_runs_on_the_callers_thread_and_must_not_wait() {
        let none = TransferThreads { threads: Vec::new(), next: AtomicUsize::new(0) };
        let done = none.run(async |may_wait| Ok((may_wait, own()))).await;
        assert_eq!(done.expect("is done"), (false, own()));
    }

    #[tokio::test]
    async fn the_error_of_a_task_is_returned() {
        let threads = TransferThreads::open(1).await;
        let failed = threads.run(async |_| Err::<(), _>(io::ErrorKind::StorageFull.into())).await;
        assert_eq!(failed.expect_err("fails").kind(), io::ErrorKind::StorageFull);
        threads.close().await;
    }
}

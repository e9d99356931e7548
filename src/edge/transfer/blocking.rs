//! Runs file work outside the single thread of the background runtime, because a file system may be slow or hang.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::edge::clock::Clock;
use crate::edge::process::{signals, spawn};

/// The time after which an idle thread ends. The runtime panics if it has no thread and the system refuses a new one,
/// so one is kept alive: it gets work twice as often.
const LINGER: Duration = Duration::from_secs(120);
const BEAT: Duration = Duration::from_secs(60);
/// A thread that the system has granted starts at once.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Runs `work` on another thread. If the future is dropped, the work continues there.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let done = Arc::new(Mutex::new(None));
    let result = Arc::clone(&done);
    // Boxed, so that the runtime's part is compiled once instead of for each of a hundred callers.
    let work: Box<dyn FnOnce() + Send> = Box::new(move || {
        let outcome = work();
        *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    });
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?;
    let outcome = done.lock().unwrap_or_else(PoisonError::into_inner).take();
    outcome.unwrap_or_else(|| Err(io::ErrorKind::Other.into()))
}

/// Keeps a thread alive for [`blocking`], so that later limits on threads do not matter.
pub async fn keep_a_thread() -> Infallible {
    loop {
        let _ = blocking(|| Ok(())).await;
        tokio::time::sleep(BEAT).await;
    }
}

/// A runtime for this thread. `files`: with a thread for [`blocking`], which must not be called otherwise. Errors: as
/// epoll_create(2) and pthread_create(3).
pub fn runtime(files: bool) -> io::Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    let builder = builder.enable_all().thread_keep_alive(LINGER).on_thread_start(|| {
        signals::block_all();
    });
    let runtime = builder.build()?;
    if files {
        check_two_threads()?;
        runtime.block_on(blocking(|| Ok(())))?;
    }
    Ok(runtime)
}

/// Checks that the system grants two threads: one for the runtime, and one that another process may take meanwhile.
/// Waits for the end of the test threads, because they count towards the limit until then.
fn check_two_threads() -> io::Result<()> {
    let mask = signals::block_all();
    let tried = signals::in_time("files", TIMEOUT, || {
        let other = signals::in_time("files", TIMEOUT, || Ok(spawn::own_thread()))?;
        Ok([spawn::own_thread(), other])
    });
    mask.restore();
    let (tried, since) = (tried?, Clock::start());
    while tried.iter().any(|thread| spawn::has_thread(*thread)) {
        if since.now() > TIMEOUT {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

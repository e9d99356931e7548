//! File work off the one thread of the background runtime: a file system may take its time, or hang.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::clock::Clock;
use super::{process, signals};

/// A thread without work ends after this long. The runtime panics where it has none and the system gives it none, so one
/// is always there: it has something to do twice as often.
const LINGER: Duration = Duration::from_secs(120);
const BEAT: Duration = Duration::from_secs(60);
/// A thread that was given begins at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// Does it on a thread of its own. Dropped before its end, it goes on there.
pub async fn blocking<T: Send + 'static>(deed: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let done = Arc::new(Mutex::new(None));
    let told = Arc::clone(&done);
    // Boxed: the runtime's part is compiled once, not for each of a hundred deeds.
    let deed: Box<dyn FnOnce() + Send> = Box::new(move || {
        let outcome = deed();
        *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    });
    tokio::task::spawn_blocking(deed).await.map_err(io::Error::other)?;
    let outcome = done.lock().unwrap_or_else(PoisonError::into_inner).take();
    outcome.unwrap_or_else(|| Err(io::ErrorKind::Other.into()))
}

/// Sees to it that there is always a thread for [`blocking`], whatever becomes of the limits.
pub async fn keep_a_thread() -> Infallible {
    loop {
        let _ = blocking(|| Ok(())).await;
        tokio::time::sleep(BEAT).await;
    }
}

/// A runtime for this thread; `files`: with a thread for [`blocking`], or else nobody may call that. Errors: as
/// epoll_create(2) and pthread_create(3).
pub fn runtime(files: bool) -> io::Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    let builder = builder.enable_all().thread_keep_alive(LINGER).on_thread_start(|| {
        signals::block_all();
    });
    let runtime = builder.build()?;
    if files {
        two_at_once()?;
        runtime.block_on(blocking(|| Ok(())))?;
    }
    Ok(runtime)
}

/// Whether the system gives us two threads: the runtime is to have one, and another process may take one meanwhile. Those that
/// tried it out are waited for, as they count until they are gone.
fn two_at_once() -> io::Result<()> {
    let mask = signals::block_all();
    let tried = signals::in_time("files", PATIENCE, || {
        let other = signals::in_time("files", PATIENCE, || Ok(process::own_thread()))?;
        Ok([process::own_thread(), other])
    });
    mask.restore();
    let (tried, since) = (tried?, Clock::start());
    while tried.iter().any(|thread| process::has_thread(*thread)) {
        if since.now() > PATIENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

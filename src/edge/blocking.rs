//! File work off the one thread of the background runtime: a file system may take its time, or hang.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::signals;

/// A thread without work ends after this long. The runtime panics where it has none and the system gives it none, so one
/// is always there: it has something to do twice as often.
pub const LINGER: Duration = Duration::from_secs(120);
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

/// Whether the system gives us a thread now. Errors: as pthread_create(3).
pub fn has_a_thread() -> io::Result<()> {
    signals::in_time("files", PATIENCE, || Ok(()))
}

//! File work off the one thread of the background runtime: a file system may take its time, or hang.

use std::io;

/// Does it on a thread of its own. Dropped before its end, it goes on there.
pub async fn blocking<T: Send + 'static>(deed: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(deed).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

//! An object that is read from one byte to another.

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use super::{BLOCK, Store, StoreError};

/// Where fewer bytes come at once and more than these are to follow, they are let [`GATHER`]: many small reads cost both
/// sides more than they bring.
const FULL: u64 = 64 << 10;
const GATHER: Duration = Duration::from_millis(2);

/// Bytes of an object on their way in.
pub struct Reading<'a> {
    pub(super) store: &'a Store,
    pub(super) key: String,
    pub(super) at: u64,
    pub(super) end: u64,
    /// Whether the last bytes were fewer than [`FULL`].
    pub(super) came_short: bool,
    /// `None` for a directory, which is asked block by block.
    pub(super) stream: Option<BoxStream<'static, object_store::Result<Bytes>>>,
}

impl fmt::Debug for Reading<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reading").field(&self.key).finish()
    }
}

impl Reading<'_> {
    /// The next bytes; `None` when all have come. Fewer than were asked for is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        if self.at >= self.end {
            return Ok(None);
        }
        let (store, key) = (self.store, &self.key);
        let bytes = match (&mut self.stream, &store.directory) {
            (Some(stream), _) => {
                if self.came_short && self.end - self.at > FULL {
                    tokio::time::sleep(GATHER).await;
                }
                let next = stream.next().await.transpose();
                next.map_err(|error| store.error("read", key, &error))?.unwrap_or_default()
            }
            (None, Some(directory)) => {
                let read = directory.read(store.key(key)?.as_ref(), self.at, BLOCK.min(self.end - self.at)).await;
                read.map_err(|error| store.io_error("read", key, &error))?.into()
            }
            (None, None) => Bytes::new(),
        };
        self.at += bytes.len() as u64;
        self.came_short = (bytes.len() as u64) < FULL;
        if bytes.is_empty() || self.at > self.end {
            return Err(self.store.io_error("read", &self.key, &io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        Ok(Some(bytes))
    }
}

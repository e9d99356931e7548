//! Reads a range of an object.

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use crate::edge::store::error::Failed;
use crate::edge::store::part_sizes::BLOCK;
use crate::edge::store::{Backend, Store, StoreError, Trouble};

/// The metadata of the whole object that a bucket sends with a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Bytes.
    pub size: u64,
    /// Its tag for this version.
    pub tag: Option<String>,
    /// The CRC-32C of all its bytes.
    pub crc32c: Option<u32>,
}

/// A range of an object that is being read.
pub struct Reading<'a> {
    store: &'a Store,
    key: String,
    at: u64,
    end: u64,
    /// The start and the stream of the last request to a bucket. A directory is read in blocks.
    asked: Option<(u64, BoxStream<'static, object_store::Result<Bytes>>)>,
    info: Option<ObjectInfo>,
}

impl Store {
    /// Starts to read a range of an object.
    pub async fn read(&self, key: &str, from: u64, length: u64) -> Result<Reading<'_>, StoreError> {
        let mut reading =
            Reading { store: self, key: key.to_owned(), at: from, end: from + length, asked: None, info: None };
        if length > 0 {
            reading.ask().await?;
        }
        Ok(reading)
    }
}

impl Reading<'_> {
    /// Requests the rest of the range from a bucket.
    async fn ask(&mut self) -> Result<(), StoreError> {
        if let Backend::Bucket(bucket) = &self.store.backend {
            let stream = bucket.stream(&self.key, self.at, self.end).await;
            let (stream, info) = stream.map_err(|failed| self.store.error("read", &self.key, failed))?;
            let before = self.info.as_ref().and_then(|before| before.tag.as_ref());
            if before.zip(info.tag.as_ref()).is_some_and(|(before, now)| before != now) {
                return Err(self.store.useless("read", &self.key, "it changed while it was read"));
            }
            (self.asked, self.info) = (Some((self.at, stream)), Some(info));
        }
        Ok(())
    }

    /// The object's metadata, after the first response of a bucket; `None` for a directory.
    pub fn info(&self) -> Option<&ObjectInfo> {
        self.info.as_ref()
    }

    /// The next bytes; `None` at the end of the range. Fewer bytes than requested are an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        if self.at >= self.end {
            return Ok(None);
        }
        let (store, key) = (self.store, &self.key);
        let bytes = match (&store.backend, &mut self.asked) {
            (Backend::Directory(directory), _) => {
                let read = directory.read(key, self.at, BLOCK.min(self.end - self.at)).await;
                read.map_err(|failed| store.error("read", key, failed))?.into()
            }
            (Backend::Bucket(bucket), Some((asked, stream))) => {
                let next = bucket.wait(stream.next()).await;
                let next = next.and_then(|next| next.transpose().map_err(|error| Failed::from(&error)));
                match next.map_err(|failed| store.error("read", key, failed)) {
                    // The crate retries only for a while after the first response; a slow connection takes longer.
                    Err(error) if error.trouble == Trouble::Unreachable && self.at > *asked => {
                        self.ask().await?;
                        return Box::pin(self.next()).await;
                    }
                    next => next?.unwrap_or_default(),
                }
            }
            (Backend::Bucket(_), None) => Bytes::new(),
        };
        self.at += bytes.len() as u64;
        if bytes.is_empty() || self.at > self.end {
            return Err(self.store.useless("read", &self.key, "it ends too early, or too late"));
        }
        Ok(Some(bytes))
    }
}

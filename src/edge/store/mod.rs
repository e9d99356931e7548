//! A checkpoint store: a directory, or a bucket of a cloud.
//!
//! [`Store`] is the whole interface. Keys are relative to the prefix that was opened, with `/` between their parts.
//! Deliberately absent: what the keys mean, and what to do about an error.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use object_store::PutMode;
use tokio::time::{Instant, timeout};

mod bucket;
mod checksum;
mod clouds;
mod directory;
mod error;
mod http;
mod list;
mod part_sizes;
mod ranged_read;
mod staged;
mod upload;

pub use clouds::access::Access;
pub use error::{StoreError, Trouble};
pub use list::Object;
pub use part_sizes::PartSizes;
pub use ranged_read::ObjectInfo;
pub use upload::Upload;

use crate::rules::store::address::Address;
use bucket::Bucket;
use directory::Directory;
use error::Failed;
use staged::Placing;

/// Tries of a put-if-absent whose response was lost.
const CREATE_TRIES: u32 = 3;
/// Tries of a comparison.
const HOLDS_TRIES: u32 = 2;
/// Small objects of a bucket that are read at once.
const READ_AT_ONCE: usize = 64;
/// Before the next try.
const CONFLICT: Duration = Duration::from_millis(200);

/// Limit for the check whether the response was lost, because the request itself was retried before.
const LOST_RESPONSE: Duration = Duration::from_secs(10);

/// Whether put-if-absent put anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// This process created it, now or by a try whose response was lost.
    Own,
    /// It is another process's object.
    Taken,
}

enum Backend {
    Directory(Arc<Directory>),
    Bucket(Arc<Bucket>),
}

/// An open store.
///
/// Every operation ends with a result, or with an error when none of its bytes has moved for the store's time-out
/// ([`Access::new`]). The caller may drop it earlier. Idempotent requests are retried until the time-out, and once with new
/// credentials if a bucket refuses the old ones.
///
/// A listing is complete or an error. An object is complete or absent.
pub struct Store {
    backend: Backend,
    place: String,
    /// Whether a data object replaces the object under its key.
    replaces: bool,
    access: Access,
    /// Cloned by each upload that is being aborted.
    aborts: Arc<()>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.place).finish()
    }
}

impl Store {
    /// Opens a store; `create` makes an absent directory. A bucket gets no request yet, but credentials must be found.
    /// Errors: as mkdir(2), open(2); no credentials.
    pub async fn open(address: &Address, create: bool, access: &Access) -> Result<Store, StoreError> {
        let place = address.to_string();
        let failed = |failed: Failed| access.error("open", place.clone(), failed);
        let backend = match address {
            Address::Directory(root) => {
                Backend::Directory(Arc::new(Directory::open(root, create, access).await.map_err(failed)?))
            }
            Address::Bucket(bucket) => Backend::Bucket(Arc::new(Bucket::open(bucket, access).await.map_err(failed)?)),
        };
        Ok(Store { backend, place, replaces: false, access: access.clone(), aborts: Arc::default() })
    }

    /// Lets a write replace an existing data object, in one step.
    pub fn replacing(self) -> Store {
        Store { replaces: true, ..self }
    }

    /// The sizes of the pieces in which data is sent.
    pub fn part_sizes(&self) -> PartSizes {
        match self.backend {
            Backend::Directory(_) => part_sizes::OF_A_DIRECTORY,
            Backend::Bucket(_) => part_sizes::OF_A_BUCKET,
        }
    }

    /// Creates an object unless it exists; durable on return. If the response is lost, or the store says that the object
    /// exists, the object is compared: an earlier try may have created it.
    pub async fn create(&self, key: &str, bytes: Vec<u8>) -> Result<Created, StoreError> {
        let (bytes, mut mode) = (Bytes::from(bytes), PutMode::Create);
        let (begun, mut tries) = (Instant::now(), 0);
        loop {
            tries += 1;
            let put = match &self.backend {
                Backend::Directory(directory) => directory.put(key, vec![bytes.clone()], Placing::Durably).await,
                Backend::Bucket(bucket) => bucket.put(key, vec![bytes.clone()], mode.clone(), None).await.map(drop),
            };
            let Err(failed) = put else { return Ok(Created::Own) };
            let says_exists = failed.says_exists;
            let error = self.error("write", key, failed);
            match error.trouble {
                _ if says_exists => {}
                Trouble::Unreachable => {}
                // Treated as a store that ignores the condition.
                Trouble::Unsupported if tries < CREATE_TRIES => {
                    mode = PutMode::Overwrite;
                    continue;
                }
                _ => return Err(error),
            }
            let limit = if says_exists { Duration::MAX } else { LOST_RESPONSE };
            match timeout(limit, self.holds(key, &bytes)).await {
                Ok(Ok(Some(is_own))) => return Ok(if is_own { Created::Own } else { Created::Taken }),
                // It was never created, or was deleted meanwhile.
                Ok(Ok(None)) if tries < CREATE_TRIES && (says_exists || begun.elapsed() < LOST_RESPONSE) => {
                    tokio::time::sleep(CONFLICT * tries).await;
                }
                Ok(Err(unread)) if says_exists => return Err(unread),
                _ => return Err(error),
            }
        }
    }

    /// Whether the object has this content; `None`: it does not exist. A response that says no may be damaged, so the store is
    /// asked again.
    pub async fn holds(&self, key: &str, bytes: &[u8]) -> Result<Option<bool>, StoreError> {
        let mut held = None;
        for _ in 0..HOLDS_TRIES {
            match self.get(key, bytes.len() as u64 + 1).await {
                Ok(found) if found == bytes => return Ok(Some(true)),
                Ok(_) => held = Some(false),
                Err(error) if error.trouble == Trouble::Absent => {}
                Err(error) => return Err(error),
            }
        }
        Ok(held)
    }

    /// Writes a whole data object that no other process writes; not durable before [`Store::make_durable`]. Returns the
    /// store's tag for it.
    pub async fn put(&self, key: &str, blocks: Vec<Bytes>, crc32c: u32) -> Result<Option<String>, StoreError> {
        let put = match &self.backend {
            // In a directory nothing is overwritten by default.
            Backend::Directory(directory) => directory.put(key, blocks, self.placing()).await.map(|()| None),
            // No other process writes this key, and a put that may overwrite can be retried.
            Backend::Bucket(bucket) => bucket.put(key, blocks, PutMode::Overwrite, Some(crc32c)).await,
        };
        put.map_err(|failed| self.error("write", key, failed))
    }

    /// Writes a small object that no other process writes, and replaces it in one step if it exists. With `beside`, a directory
    /// takes it only if that object exists: it may not be mounted any more.
    pub async fn replace(&self, key: &str, bytes: Vec<u8>, beside: Option<&str>) -> Result<(), StoreError> {
        let bytes = Bytes::from(bytes);
        let put = match &self.backend {
            Backend::Directory(directory) => directory.replace(key, bytes, beside).await,
            Backend::Bucket(bucket) => bucket.put(key, vec![bytes], PutMode::Overwrite, None).await.map(drop),
        };
        put.map_err(|failed| self.error("write", key, failed))
    }

    fn placing(&self) -> Placing {
        if self.replaces { Placing::Over } else { Placing::Newly }
    }

    /// Flushes these data objects, `bytes` in all, and their directories to the device. Objects of a bucket are durable.
    pub async fn make_durable(&self, keys: &[String], bytes: u64) -> Result<(), StoreError> {
        let Backend::Directory(directory) = &self.backend else { return Ok(()) };
        directory.make_durable(keys, bytes).await.map_err(|failed| self.error("flush", "", failed))
    }

    /// An object of at most `limit` bytes, or the beginning of a longer one.
    pub async fn get(&self, key: &str, limit: u64) -> Result<Bytes, StoreError> {
        let got = match &self.backend {
            Backend::Directory(directory) => directory.read(key, 0, limit).await.map(Bytes::from),
            Backend::Bucket(bucket) => bucket.get(key, limit).await,
        };
        got.map_err(|failed| self.error("read", key, failed))
    }

    /// Every object under a prefix with at most the first `limit` bytes of its content, sorted by key. An object that cannot be
    /// read is empty. Errors: the prefix cannot be listed.
    pub async fn read_all(&self, prefix: &str, limit: u64) -> Result<Vec<(String, Bytes)>, StoreError> {
        if let Backend::Directory(directory) = &self.backend {
            let read = directory.read_all(prefix, limit).await;
            let mut read = read.map_err(|failed| self.error("list", prefix, failed))?;
            read.sort_by(|a, b| a.0.cmp(&b.0));
            return Ok(read);
        }
        let reads = self.list(prefix).await?.into_iter().map(|object| async move {
            let read = self.get(&object.key, limit).await.unwrap_or_default();
            (object.key, read)
        });
        Ok(stream::iter(reads).buffered(READ_AT_ONCE).collect().await)
    }

    /// The size of an object; `None` if it does not exist.
    pub async fn size(&self, key: &str) -> Result<Option<u64>, StoreError> {
        Ok(self.look(key).await?.map(|object| object.size))
    }

    /// An object as listed; `None` if it does not exist.
    pub async fn look(&self, key: &str) -> Result<Option<Object>, StoreError> {
        let found = match &self.backend {
            Backend::Directory(directory) => directory.look(key).await,
            Backend::Bucket(bucket) => bucket.look(key).await,
        };
        found.map_err(|failed| self.error("read", key, failed))
    }

    /// Every object under a prefix that is empty or ends at a `/`, sorted by key.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Object>, StoreError> {
        let listed = match &self.backend {
            Backend::Directory(directory) => directory.list(prefix).await,
            Backend::Bucket(bucket) => bucket.list(prefix).await,
        };
        let mut objects = listed.map_err(|failed| self.error("list", prefix, failed))?;
        // Servers may send a page twice.
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        objects.dedup_by(|a, b| a.key == b.key);
        Ok(objects)
    }

    /// Deletes an object if it exists.
    pub async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let deleted = match &self.backend {
            Backend::Directory(directory) => directory.delete(key).await,
            Backend::Bucket(bucket) => bucket.delete(key).await,
        };
        match deleted {
            // `NoDirectory`: nothing exists below a file.
            Err(failed) if !matches!(failed.trouble, Trouble::Absent | Trouble::NoDirectory) => {
                Err(self.error("delete", key, failed))
            }
            _ => Ok(()),
        }
    }

    /// The store's time since 1970: that of a new object under this key. `None`: the object cannot be created.
    pub async fn time(&self, key: &str) -> Option<Duration> {
        self.create(key, Vec::new()).await.ok()?;
        let made = self.look(key).await;
        let _ = self.delete(key).await;
        Some(made.ok()??.modified)
    }

    /// Deletes temporary files of interrupted writes, unchanged since `before`, whose keys `is_own` accepts; `dry` only
    /// counts them. Returns how many. Buckets have their own rules for abandoned uploads.
    pub async fn sweep(&self, before: Duration, is_own: fn(&str) -> bool, dry: bool) -> Result<u64, StoreError> {
        let Backend::Directory(directory) = &self.backend else { return Ok(0) };
        directory.sweep(before, is_own, dry).await.map_err(|failed| self.error("clean", "", failed))
    }

    fn error(&self, action: &'static str, key: &str, failed: Failed) -> StoreError {
        self.access.error(action, self.place(key), failed)
    }

    /// The error of a caller that cannot use an object.
    pub fn useless(&self, action: &'static str, key: &str, why: &str) -> StoreError {
        StoreError::new(action, self.place(key), why.to_owned(), Trouble::Other)
    }

    fn place(&self, key: &str) -> String {
        format!("{}/{key}", self.place)
    }
}

//! A checkpoint store: a directory, or a bucket of a cloud.
//!
//! [`Store`] is the whole interface. Keys are relative to the prefix that was opened, with `/` between their parts.
//! Deliberately absent: what the keys mean, and what to do about an error.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::PutMode;

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
pub use ranged_read::{Reading, Seen};
pub use upload::Upload;

use crate::rules::store::address::Address;
use bucket::Bucket;
use directory::Directory;
use error::Failed;
use staged::Placing;

/// Tries of a put-if-absent whose answer was lost.
const CREATE_TRIES: u32 = 2;
/// Before the next of them where it met another's.
const CONFLICT: Duration = Duration::from_millis(200);

/// Whether put-if-absent put anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The object is ours: created now, or by a try of ours whose answer was lost.
    Ours,
    /// Another process's object is there.
    Taken,
}

enum Backend {
    Directory(Arc<Directory>),
    Bucket(Arc<Bucket>),
}

/// An open store.
///
/// Every operation ends: with its result, or with an error once none of its bytes has moved for the store's time-out
/// ([`Access::new`]). The caller may drop it earlier, for a deadline of its own. A request that may be sent twice is sent
/// again for as long as the time-out, and once more with new credentials where a bucket refuses the old ones as stale.
///
/// A listing is whole or an error. An object that was put is whole or absent.
pub struct Store {
    backend: Backend,
    place: String,
    /// Whether a data object replaces the object under its key.
    replaces: bool,
    access: Access,
    /// One of them is with each upload that is being given up.
    given_up: Arc<()>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.place).finish()
    }
}

impl Store {
    /// Opens a store; `create` makes a directory where there is none. A bucket is not asked for anything yet, but there
    /// must be credentials. Errors: as mkdir(2), open(2); no credentials.
    pub async fn open(address: &Address, create: bool, access: &Access) -> Result<Store, StoreError> {
        let place = address.to_string();
        let failed = |failed: Failed| access.error("open", place.clone(), failed);
        let backend = match address {
            Address::Directory(root) => {
                Backend::Directory(Arc::new(Directory::open(root, create, access).await.map_err(failed)?))
            }
            Address::Bucket(bucket) => Backend::Bucket(Arc::new(Bucket::open(bucket, access).await.map_err(failed)?)),
        };
        Ok(Store { backend, place, replaces: false, access: access.clone(), given_up: Arc::default() })
    }

    /// The store as one whose data objects are not written once: each is replaced whole, in one step.
    pub fn replacing(self) -> Store {
        Store { replaces: true, ..self }
    }

    /// In which pieces it takes its data.
    pub fn part_sizes(&self) -> PartSizes {
        match self.backend {
            Backend::Directory(_) => part_sizes::OF_A_DIRECTORY,
            Backend::Bucket(_) => part_sizes::OF_A_BUCKET,
        }
    }

    /// Creates an object unless one is there; durable on return. On "there is one" it is read back and compared, since a
    /// retried request finds its own first try.
    pub async fn create(&self, key: &str, bytes: Vec<u8>) -> Result<Created, StoreError> {
        let bytes = Bytes::from(bytes);
        let mut tries = 0;
        loop {
            tries += 1;
            if !self.refuses(key, bytes.clone()).await? {
                return Ok(Created::Ours);
            }
            match self.get(key, bytes.len() as u64 + 1).await {
                Ok(there) => return Ok(if there == bytes { Created::Ours } else { Created::Taken }),
                // It was deleted meanwhile.
                Err(error) if error.trouble == Trouble::Absent && tries < CREATE_TRIES => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(CONFLICT).await;
        }
    }

    /// Creates an object, durable on return, unless the store says that there is one (`true`): that may be a try of ours
    /// whose answer was lost.
    pub async fn refuses(&self, key: &str, bytes: impl Into<Bytes>) -> Result<bool, StoreError> {
        let bytes = bytes.into();
        let bucket = match &self.backend {
            Backend::Bucket(bucket) => bucket,
            Backend::Directory(directory) => {
                return match directory.put(key, vec![bytes], Placing::Durably).await {
                    Err(failed) if failed.says_there_is => Ok(true),
                    put => put.map(|()| false).map_err(|failed| self.error("write", key, failed)),
                };
            }
        };
        let mut mode = PutMode::Create;
        for tries in 1.. {
            let failed = match bucket.put(key, vec![bytes.clone()], mode.clone(), None).await {
                Ok(_) => return Ok(false),
                Err(failed) => failed,
            };
            let says_there_is = failed.says_there_is;
            let error = self.error("write", key, failed);
            match error.trouble {
                _ if tries == CREATE_TRIES => return Err(error),
                // As good as a store that ignores the condition, and found out as one.
                Trouble::Unsupported => mode = PutMode::Overwrite,
                // It may have been done all the same: the next try finds it.
                Trouble::Unreachable => tokio::time::sleep(CONFLICT * tries).await,
                _ if says_there_is => return Ok(true),
                _ => return Err(error),
            }
        }
        Ok(true)
    }

    /// Writes a whole data object that no other process writes; not durable before [`Store::make_durable`]. Its checksum
    /// goes with it where the store checks it. Returns the store's tag for it.
    pub async fn put(&self, key: &str, blocks: Vec<Bytes>, crc32c: u32) -> Result<Option<String>, StoreError> {
        let put = match &self.backend {
            // In a directory nothing is overwritten unasked, whichever process wrote it.
            Backend::Directory(directory) => directory.put(key, blocks, self.placing()).await.map(|()| None),
            // A bucket's keys are our own, and a put that may overwrite can be sent again when its answer was lost.
            Backend::Bucket(bucket) => bucket.put(key, blocks, PutMode::Overwrite, Some(crc32c)).await,
        };
        put.map_err(|failed| self.error("write", key, failed))
    }

    fn placing(&self) -> Placing {
        if self.replaces { Placing::Over } else { Placing::Newly }
    }

    /// Flushes the data objects of these keys, so many bytes in all, and the directories that name them, to the device. A
    /// bucket's are durable already.
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

    /// The size of an object; `None` when it is not there.
    pub async fn size(&self, key: &str) -> Result<Option<u64>, StoreError> {
        Ok(self.look(key).await?.map(|object| object.size))
    }

    /// An object as a listing has it; `None` when it is not there.
    pub async fn look(&self, key: &str) -> Result<Option<Object>, StoreError> {
        let found = match &self.backend {
            Backend::Directory(directory) => directory.look(key).await,
            Backend::Bucket(bucket) => bucket.look(key).await,
        };
        found.map_err(|failed| self.error("read", key, failed))
    }

    /// Every object under a prefix that is empty or ends at a `/`, once, by key. Failing part-way is a failure.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Object>, StoreError> {
        let listed = match &self.backend {
            Backend::Directory(directory) => directory.list(prefix).await,
            Backend::Bucket(bucket) => bucket.list(prefix).await,
        };
        let mut objects = listed.map_err(|failed| self.error("list", prefix, failed))?;
        // Servers may tell a page twice.
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        objects.dedup_by(|a, b| a.key == b.key);
        Ok(objects)
    }

    /// Deletes an object; one that is not there is fine.
    pub async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let deleted = match &self.backend {
            Backend::Directory(directory) => directory.delete(key).await,
            Backend::Bucket(bucket) => bucket.delete(key).await,
        };
        match deleted {
            // There is nothing below a file.
            Err(failed) if !matches!(failed.trouble, Trouble::Absent | Trouble::NoDirectory) => {
                Err(self.error("delete", key, failed))
            }
            _ => Ok(()),
        }
    }

    /// What time it is, since 1970, by the clock that listings tell times by: that of a new object under this key. `None`:
    /// none can be made.
    pub async fn time(&self, key: &str) -> Option<Duration> {
        self.create(key, Vec::new()).await.ok()?;
        let made = self.look(key).await;
        let _ = self.delete(key).await;
        Some(made.ok()??.modified)
    }

    /// Deletes what writes that were cut short have left and listings do not show, unchanged since `before`, if the key that
    /// was to be written is one of ours; `dry` only counts it. Returns how many. A bucket's own rules for abandoned uploads
    /// see to that.
    pub async fn sweep(&self, before: Duration, is_ours: fn(&str) -> bool, dry: bool) -> Result<u64, StoreError> {
        let Backend::Directory(directory) = &self.backend else { return Ok(0) };
        directory.sweep(before, is_ours, dry).await.map_err(|failed| self.error("clean", "", failed))
    }

    fn error(&self, action: &'static str, key: &str, failed: Failed) -> StoreError {
        self.access.error(action, self.place(key), failed)
    }

    /// An error of a caller that cannot use the object under a key.
    pub fn useless(&self, action: &'static str, key: &str, why: &str) -> StoreError {
        StoreError::new(action, self.place(key), why.to_owned(), Trouble::Other)
    }

    fn place(&self, key: &str) -> String {
        format!("{}/{key}", self.place)
    }
}

//! A checkpoint store through the crate `object_store`: a directory, or a bucket of a cloud.
//!
//! Keys are relative to the prefix that was opened. Deliberately absent: what the keys mean, and what an error is worth.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::list::PaginatedListStore;
use object_store::path::Path as Key;
use object_store::{Extensions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::time::timeout;

mod access;
mod amazon;
mod answers;
mod azure;
mod checksum;
mod connect;
mod directory;
mod error;
mod google;
mod habits;
mod list;
mod motion;
mod page;
mod profile;
mod prompt;
mod reading;
mod sent;
mod signer;
mod source;
mod stand_in;
mod straight;
mod tls;
mod upload;
mod values;
mod watched;

pub use access::Access;
pub use directory::takes_a_file;
pub use error::{StoreError, Trouble};
pub use habits::Habits;
pub use list::{Object, PAGE};
pub use motion::Motion;
pub use reading::Reading;
pub use source::{Content, Source};

pub use upload::Upload;

use crate::edge::clock::Clock;
use crate::rules::checkpoint::address::Address;
use directory::Directory;

/// Tries of a put-if-absent whose answer was lost.
const CREATE_TRIES: u32 = 3;
/// For all of them, but the first takes as long as it does: where the store answers "later", the crate has tried that for
/// half a minute by itself.
const CREATE_PATIENCE: Duration = Duration::from_secs(60);
/// Before the next of them where it met another's.
const CONFLICT: Duration = Duration::from_millis(200);

/// Whether put-if-absent put anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The object is ours: created now, or by a try of ours whose answer was lost.
    Ours,
    /// Somebody else's object is there.
    Taken,
}

/// A bucket, as its cloud's file opens it.
struct Opened {
    objects: Arc<dyn ObjectStore>,
    /// `None`: its pages can only be turned one after the other.
    pages: Option<Arc<dyn PaginatedListStore>>,
    /// Whether nothing is encrypted on the way.
    is_plain: bool,
    /// Whether who signs may get other credentials.
    renews: bool,
}

/// An open store.
pub struct Store {
    /// Every write is durable when it is acknowledged: claims and manifests.
    durable: Arc<dyn ObjectStore>,
    /// Data, made durable by [`Store::make_durable`].
    data: Arc<dyn ObjectStore>,
    pages: Option<Arc<dyn PaginatedListStore>>,
    /// For messages.
    place: String,
    /// What stands before every key; ends in `/` unless empty.
    prefix: String,
    /// `None` for a bucket.
    directory: Option<Directory>,
    /// Whether the store checks a crc32c that comes with an object.
    checks_crc32c: bool,
    /// Whether it takes a [`Source`].
    streams: bool,
    is_plain: bool,
    /// Whether who signs may get other credentials.
    renews: bool,
    /// Whether a data object takes the place of what lies under its key.
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
        match address {
            Address::Directory(root) => {
                let (directory, durable, data) = Directory::open(root, create).await?;
                Ok(Store {
                    durable: Arc::new(durable),
                    data: Arc::new(data),
                    pages: None,
                    place: address.to_string(),
                    prefix: String::new(),
                    directory: Some(directory),
                    checks_crc32c: false,
                    streams: false,
                    is_plain: false,
                    renews: false,
                    replaces: false,
                    access: access.clone(),
                    given_up: Arc::default(),
                })
            }
            Address::Bucket(bucket) => {
                use crate::rules::checkpoint::address::Cloud;
                let opened = match bucket.cloud {
                    Cloud::Google => google::open(bucket, access).await,
                    Cloud::Amazon => amazon::open(bucket, access).await,
                    Cloud::Azure => azure::open(bucket, access).await,
                };
                let opened = opened.map_err(|failed| failed.of("open", address.to_string(), access))?;
                let prefix = if bucket.prefix.is_empty() { String::new() } else { format!("{}/", bucket.prefix) };
                Ok(Store {
                    durable: Arc::clone(&opened.objects),
                    data: opened.objects,
                    pages: opened.pages,
                    place: address.to_string(),
                    prefix,
                    directory: None,
                    checks_crc32c: bucket.cloud == Cloud::Google,
                    streams: bucket.cloud != Cloud::Amazon || amazon::streams(access),
                    is_plain: opened.is_plain,
                    renews: opened.renews,
                    replaces: false,
                    access: access.clone(),
                    given_up: Arc::default(),
                })
            }
        }
    }

    /// Whether nothing is encrypted on the way: the kernel sends a [`Source`] as it is.
    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// The store as one whose data objects are not written once: each is replaced whole, in one step.
    pub fn replacing(self) -> Store {
        Store { replaces: true, ..self }
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.directory.is_some()
    }

    /// How it likes its data.
    pub fn habits(&self) -> Habits {
        match self.directory {
            Some(_) => habits::OF_A_DIRECTORY,
            None => habits::of_a_bucket(self.streams),
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

    /// Creates an object, durable on return, unless the store says that there is one: that may be a try of ours whose
    /// answer was lost.
    pub async fn refuses(&self, key: &str, bytes: impl Into<Bytes>) -> Result<bool, StoreError> {
        let (at, bytes) = (self.key(key)?, bytes.into());
        let (mut tries, mut mode, mut before, clock) = (0, PutMode::Create, None, Clock::start());
        loop {
            tries += 1;
            let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
            let put = self.durable.put_opts(&at, PutPayload::from_bytes(bytes.clone()), options);
            let put = self.counted(bytes.len(), put);
            let put = match before.take() {
                None => put.await,
                Some(error) => timeout(CREATE_PATIENCE.saturating_sub(clock.now()), put).await.map_err(|_| error)?,
            };
            match put {
                Ok(_) => return Ok(false),
                Err(error) => {
                    let says_there_is = matches!(error, object_store::Error::AlreadyExists { .. });
                    let error = self.error("write", key, &error);
                    if says_there_is && error.trouble != Trouble::Unreachable {
                        return Ok(true);
                    }
                    // As good as a store that ignores the condition, and found out as one.
                    if error.trouble == Trouble::Unsupported && tries < CREATE_TRIES {
                        mode = PutMode::Overwrite;
                        continue;
                    }
                    // It may have been done all the same: the next try finds it.
                    if error.trouble != Trouble::Unreachable || tries == CREATE_TRIES {
                        return Err(error);
                    }
                    // Of the other kinds the crate has waited for the end already.
                    if says_there_is {
                        tokio::time::sleep(CONFLICT * tries).await;
                    }
                    before = Some(error);
                }
            }
        }
    }

    /// Writes a whole data object that nobody else writes; not durable before [`Store::make_durable`]. Its checksum goes
    /// with it where the store checks it. Returns the store's tag for it.
    pub async fn put(&self, key: &str, content: impl Into<Content>, crc32c: u32) -> Result<Option<String>, StoreError> {
        // In a directory nothing is overwritten unasked, whoever wrote it; a bucket's keys are our own, and a put that may
        // overwrite can be sent again when its answer was lost.
        let is_new = self.directory.is_some() && !self.replaces;
        let mode = if is_new { PutMode::Create } else { PutMode::Overwrite };
        let mut options = PutOptions { mode, ..PutOptions::default() };
        if self.checks_crc32c {
            options.extensions.insert(checksum::Checksum(crc32c));
        }
        let (at, content) = (self.key(key)?, content.into());
        let size = content.length();
        let payload = self.payload(content).map_err(|error| self.io_error("write", key, &error))?;
        let put = self.counted(size as usize, self.data.put_opts(&at, payload, options)).await;
        let result = put.map_err(|error| self.error("write", key, &error))?;
        self.compare(key, &result.extensions, crc32c)?;
        Ok(result.e_tag)
    }

    /// What the crate is given of it.
    fn payload(&self, content: Content) -> io::Result<PutPayload> {
        match content {
            Content::Blocks(blocks) => Ok(blocks.into_iter().collect()),
            Content::File(source) => self.access.sources().stand_in(&source).map(PutPayload::from_bytes),
        }
    }

    /// Keys of what keeps these from being written. In a bucket nothing does: it has no directories.
    pub async fn in_the_way(&self, keys: Vec<String>) -> Result<BTreeSet<String>, StoreError> {
        let Some(directory) = &self.directory else { return Ok(BTreeSet::new()) };
        directory.in_the_way(keys).await.map_err(|error| self.io_error("look at", "", &error))
    }

    /// Flushes the data objects of these keys, and the directories that name them, to the device. A bucket's are
    /// durable already.
    pub async fn make_durable(&self, keys: &[String]) -> Result<(), StoreError> {
        let Some(directory) = &self.directory else { return Ok(()) };
        directory.make_durable(keys, self.access.meter()).await.map_err(|error| self.io_error("flush", "", &error))
    }

    /// A whole object of at most `limit` bytes.
    pub async fn get(&self, key: &str, limit: u64) -> Result<Bytes, StoreError> {
        if let Some(directory) = &self.directory {
            let read = directory.read(self.key(key)?.as_ref(), 0, limit).await;
            return read.map(Bytes::from).map_err(|error| self.io_error("read", key, &error));
        }
        let failed = |error: object_store::Error| self.error("read", key, &error);
        let found = self.data.get(&self.key(key)?).await.map_err(failed)?;
        let length = found.meta.size.min(limit);
        if length == 0 {
            return Ok(Bytes::new());
        }
        if found.meta.size <= limit {
            return found.bytes().await.map_err(failed);
        }
        self.data.get_range(&self.key(key)?, 0..length).await.map_err(failed)
    }

    /// Bytes of an object, to be taken piece by piece.
    pub async fn read(&self, key: &str, from: u64, length: u64) -> Result<Reading<'_>, StoreError> {
        let mut reading = Reading::new(self, key, from..from + length);
        if self.directory.is_none() && length > 0 {
            reading.ask().await?;
        }
        Ok(reading)
    }

    /// The size of an object; `None` when it is not there.
    pub async fn size(&self, key: &str) -> Result<Option<u64>, StoreError> {
        if let Some(directory) = &self.directory {
            let size = directory.size(self.key(key)?.as_ref()).await;
            return size.map_err(|error| self.io_error("read", key, &error));
        }
        let size = self.data.head(&self.key(key)?).await.map(|meta| meta.size);
        match size.map_err(|error| self.error("read", key, &error)) {
            Ok(size) => Ok(Some(size)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes an object; one that is not there is fine.
    pub async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let deleted = self.data.delete(&self.key(key)?).await;
        match deleted.map_err(|error| self.error("delete", key, &error)) {
            Err(error) if !error.is_absent() => Err(error),
            _ => Ok(()),
        }
    }

    /// What time it is, since 1970, by the clock that listings tell times by: the Date of a bucket's last answer, the time
    /// that a file system gives a new file. `None`: it does not say.
    pub async fn time(&self) -> Option<Duration> {
        match &self.directory {
            Some(directory) => directory.time().await.ok(),
            None => self.access.heard().get(),
        }
    }

    /// How it stands between us and the store. Of a directory it is seen what is written, and never that it stands still.
    pub fn motion(&self) -> Motion {
        self.access.motion()
    }

    /// A write of so many bytes, which in a directory has no connection that would count them. One that fails is told of
    /// by its error.
    async fn counted<T, E>(&self, bytes: usize, write: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        if self.directory.is_none() {
            return write.await;
        }
        let meter = self.access.meter();
        let under_way = meter.writes();
        let written = write.await?;
        meter.moved(bytes);
        under_way.answered(Some(200));
        Ok(written)
    }

    /// Deletes what writes that were cut short have left and listings do not show, older than `age`, if the key that was
    /// to be written is one of ours; `dry` only counts it. Returns how many. A bucket's own rules for abandoned uploads see
    /// to that.
    pub async fn sweep(&self, age: Duration, is_ours: fn(&str) -> bool, dry: bool) -> Result<u64, StoreError> {
        let Some(directory) = &self.directory else { return Ok(0) };
        directory.sweep(age, is_ours, dry).await.map_err(|error| self.io_error("clean", "", &error))
    }

    /// Fails where the store says that it holds other bytes than were sent.
    fn compare(&self, key: &str, found: &Extensions, crc32c: u32) -> Result<(), StoreError> {
        if let Some(checksum::Checksum(theirs)) = found.get::<checksum::Checksum>()
            && self.checks_crc32c
            && *theirs != crc32c
        {
            let detail = format!("the store holds crc32c {theirs:08x}, sent was {crc32c:08x}: damaged on the way");
            return Err(StoreError::new("write", self.place(key), detail, Trouble::Other));
        }
        Ok(())
    }

    fn key(&self, key: &str) -> Result<Key, StoreError> {
        let invalid = |error: object_store::path::Error| self.io_error("name", key, &io::Error::other(error));
        Key::parse(format!("{}{key}", self.prefix)).map_err(invalid)
    }

    fn error(&self, deed: &'static str, key: &str, error: &object_store::Error) -> StoreError {
        let mut failed = error::Failed::from(error);
        if failed.trouble == Trouble::NotBelieved && self.renews {
            failed.trouble = Trouble::Outdated;
        }
        failed.of(deed, self.place(key), &self.access)
    }

    fn io_error(&self, deed: &'static str, key: &str, error: &io::Error) -> StoreError {
        StoreError::new(deed, self.place(key), error.to_string(), error::kind_of(error))
    }

    /// For whoever cannot do a deed because of what lies under a key.
    pub fn useless(&self, deed: &'static str, key: &str, why: &str) -> StoreError {
        StoreError::new(deed, self.place(key), why.to_owned(), Trouble::Other)
    }

    fn place(&self, key: &str) -> String {
        format!("{}/{key}", self.place)
    }
}

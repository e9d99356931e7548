//! A checkpoint store through the `object_store` crate; so far the one over a directory.
//!
//! Keys are relative to the prefix that was opened. Deliberately absent: what the keys mean. A directory's writes are
//! staged under `NAME#k` and linked into place, so its file system must have hard links (gcsfuse has none).

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};

/// Up to this many files are made durable one by one, more by flushing the whole file system at once.
const SYNCED_ONE_BY_ONE: usize = 64;

/// What went wrong, as far as anyone may act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The object is not there.
    Absent,
    /// No space or quota left.
    Full,
    /// It may not be written, or not be read: permissions, or a read-only file system.
    Denied,
    /// Anything else.
    Other,
}

/// A failed operation on a store.
#[derive(Debug, thiserror::Error)]
#[error("cannot {deed} {place}: {detail}")]
pub struct StoreError {
    deed: &'static str,
    place: String,
    detail: String,
    /// Its kind.
    pub trouble: Trouble,
}

/// Whether put-if-absent put anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The object is ours: created now, or by a try of ours whose answer was lost.
    Ours,
    /// Somebody else's object is there.
    Taken,
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Relative to the prefix.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// Time of the last change, since 1970 by the store's clock.
    pub modified: Duration,
}

/// An open store.
pub struct Store {
    /// Every write is flushed to the device before it is acknowledged: claims and manifests.
    durable: LocalFileSystem,
    /// Data, flushed together by [`Store::make_durable`].
    data: LocalFileSystem,
    root: PathBuf,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.root).finish()
    }
}

impl Store {
    /// Opens a directory as a store; `create` makes it where it is not there. Errors: as mkdir(2), open(2).
    pub fn open_directory(root: &Path, create: bool) -> Result<Store, StoreError> {
        let failed = |error: io::Error| StoreError {
            deed: "open",
            place: format!("file://{}", root.display()),
            trouble: kind_of(&error),
            detail: error.to_string(),
        };
        if create {
            fs::create_dir_all(root).map_err(failed)?;
        }
        fs::read_dir(root).map_err(failed)?;
        let open = || LocalFileSystem::new_with_prefix(root).map_err(|e| failed(io::Error::other(e)));
        let data = open()?.with_automatic_cleanup(true);
        Ok(Store { durable: open()?.with_fsync(true), data, root: root.to_owned() })
    }

    /// Creates an object unless one is there; durable on return. On "there is one" it is read back and compared, since a
    /// retried request finds its own first try.
    pub async fn create(&self, key: &str, bytes: Vec<u8>) -> Result<Created, StoreError> {
        let bytes = Bytes::from(bytes);
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let put = self.durable.put_opts(&self.key(key)?, PutPayload::from_bytes(bytes.clone()), options).await;
        match put {
            Ok(_) => Ok(Created::Ours),
            Err(object_store::Error::AlreadyExists { .. }) => {
                let there = self.get(key, bytes.len() as u64 + 1).await?;
                Ok(if there == bytes { Created::Ours } else { Created::Taken })
            }
            Err(error) => Err(self.error("write", key, &error)),
        }
    }

    /// Writes a whole data object that must not be there yet; not durable before [`Store::make_durable`]. Returns the
    /// store's tag for it.
    pub async fn put(&self, key: &str, bytes: Vec<u8>) -> Result<Option<String>, StoreError> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let put = self.data.put_opts(&self.key(key)?, PutPayload::from(bytes), options).await;
        put.map(|result| result.e_tag).map_err(|error| self.error("write", key, &error))
    }

    /// Starts writing a data object part by part.
    pub async fn begin(&self, key: &str) -> Result<Upload<'_>, StoreError> {
        let upload = self.data.put_multipart(&self.key(key)?).await;
        let upload = upload.map_err(|error| self.error("write", key, &error))?;
        Ok(Upload { store: self, key: key.to_owned(), upload })
    }

    /// Flushes the data objects of these keys, and the directories that name them, to the device.
    pub async fn make_durable(&self, keys: &[String]) -> Result<(), StoreError> {
        let root = self.root.clone();
        let paths: Vec<PathBuf> = keys.iter().map(|key| root.join(key)).collect();
        let synced = blocking(move || {
            if paths.len() > SYNCED_ONE_BY_ONE {
                return Ok(nix::unistd::syncfs(File::open(&root)?)?);
            }
            let mut directories = BTreeSet::new();
            for path in &paths {
                File::open(path)?.sync_all()?;
                let above = path.ancestors().skip(1).take_while(|d| d.starts_with(&root));
                directories.extend(above.map(Path::to_owned));
            }
            directories.iter().try_for_each(|d| File::open(d)?.sync_all())
        });
        synced.await.map_err(|error| self.io_error("flush", "", &error))
    }

    /// A whole object of at most `limit` bytes.
    pub async fn get(&self, key: &str, limit: u64) -> Result<Bytes, StoreError> {
        let found = self.data.get(&self.key(key)?).await.map_err(|error| self.error("read", key, &error))?;
        let length = found.meta.size.min(limit);
        if length == 0 {
            return Ok(Bytes::new());
        }
        self.get_range(key, 0, length).await
    }

    /// Bytes of an object; fewer than asked for is an error.
    pub async fn get_range(&self, key: &str, from: u64, length: u64) -> Result<Bytes, StoreError> {
        let got = self.data.get_range(&self.key(key)?, from..from + length).await;
        let bytes = got.map_err(|error| self.error("read", key, &error))?;
        if bytes.len() as u64 == length {
            Ok(bytes)
        } else {
            Err(self.io_error("read", key, &io::Error::from(io::ErrorKind::UnexpectedEof)))
        }
    }

    /// Every object under a prefix that ends at a `/`, in no order. Failing part-way is a failure.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Object>, StoreError> {
        let key = self.key(prefix)?;
        let list = self.data.list(Some(&key)).map_ok(|meta| Object {
            key: meta.location.to_string(),
            size: meta.size,
            modified: Duration::from_millis(meta.last_modified.timestamp_millis().try_into().unwrap_or(0)),
        });
        list.try_collect().await.map_err(|error| self.error("list", prefix, &error))
    }

    /// The size of an object; `None` when it is not there.
    pub async fn size(&self, key: &str) -> Result<Option<u64>, StoreError> {
        match self.data.head(&self.key(key)?).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.error("read", key, &error)),
        }
    }

    /// Deletes an object; one that is not there is fine.
    pub async fn delete(&self, key: &str) -> Result<(), StoreError> {
        match self.data.delete(&self.key(key)?).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.error("delete", key, &error)),
        }
    }

    /// Deletes what writes that were cut short have left and listings do not show (`NAME#k`), older than `age`. Returns
    /// how many.
    pub async fn sweep(&self, age: Duration) -> Result<u64, StoreError> {
        let root = self.root.clone();
        let now = super::clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        let swept = blocking(move || sweep(&root, now.saturating_sub(age)));
        swept.await.map_err(|error| self.io_error("clean", "", &error))
    }

    fn key(&self, key: &str) -> Result<Key, StoreError> {
        let invalid = |error: object_store::path::Error| self.io_error("name", key, &io::Error::other(error));
        Key::parse(key).map_err(invalid)
    }

    fn error(&self, deed: &'static str, key: &str, error: &object_store::Error) -> StoreError {
        let mut cause: &dyn Error = error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        let absent = matches!(error, object_store::Error::NotFound { .. });
        let trouble = match cause.downcast_ref::<io::Error>() {
            _ if absent => Trouble::Absent,
            Some(io) => kind_of(io),
            None => Trouble::Other,
        };
        StoreError { deed, place: self.place(key), detail: cause.to_string(), trouble }
    }

    fn io_error(&self, deed: &'static str, key: &str, error: &io::Error) -> StoreError {
        StoreError { deed, place: self.place(key), detail: error.to_string(), trouble: kind_of(error) }
    }

    fn place(&self, key: &str) -> String {
        format!("file://{}", self.root.join(key).display())
    }
}

/// A data object being written.
pub struct Upload<'a> {
    store: &'a Store,
    key: String,
    upload: Box<dyn MultipartUpload>,
}

impl fmt::Debug for Upload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Upload").field(&self.key).finish()
    }
}

impl Upload<'_> {
    /// Appends.
    pub async fn part(&mut self, bytes: Vec<u8>) -> Result<(), StoreError> {
        let put = self.upload.put_part(PutPayload::from(bytes)).await;
        put.map_err(|error| self.store.error("write", &self.key, &error))
    }

    /// The object appears, whole. Returns the store's tag for it.
    pub async fn finish(mut self) -> Result<Option<String>, StoreError> {
        let done = self.upload.complete().await;
        done.map(|result| result.e_tag).map_err(|error| self.store.error("write", &self.key, &error))
    }

    /// Nothing appears.
    pub async fn abort(mut self) {
        let _ = self.upload.abort().await;
    }
}

async fn blocking<T: Send + 'static>(deed: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(deed).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn kind_of(error: &io::Error) -> Trouble {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Trouble::Full,
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => Trouble::Denied,
        Some(libc::ENOENT) => Trouble::Absent,
        _ => Trouble::Other,
    }
}

fn sweep(directory: &Path, before: Duration) -> io::Result<u64> {
    let mut count = 0;
    for entry in fs::read_dir(directory)?.flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let name = entry.file_name();
        let staged = name.to_str().and_then(|n| n.rsplit_once('#'));
        let is_staged = staged.is_some_and(|(_, k)| !k.is_empty() && k.bytes().all(|b| b.is_ascii_digit()));
        if metadata.is_dir() {
            count += sweep(&entry.path(), before)?;
        } else if is_staged && metadata.is_file() {
            let modified = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
            if modified <= before && fs::remove_file(entry.path()).is_ok() {
                count += 1;
            }
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_store(deed: impl AsyncFnOnce(&Path, Store)) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        let store = Store::open_directory(&dir.path().join("s"), true).expect("opens");
        runtime.block_on(deed(&dir.path().join("s"), store));
    }

    #[test]
    fn an_object_is_created_once_and_its_own_retry_is_no_conflict() {
        with_store(async |_, store| {
            assert_eq!(store.create("a/x.json", b"one".to_vec()).await.expect("writes"), Created::Ours);
            assert_eq!(store.create("a/x.json", b"one".to_vec()).await.expect("reads back"), Created::Ours);
            assert_eq!(store.create("a/x.json", b"two".to_vec()).await.expect("reads back"), Created::Taken);
            assert_eq!(store.create("a/x.json", b"onetwo".to_vec()).await.expect("reads back"), Created::Taken);
            assert_eq!(store.get("a/x.json", 10).await.expect("reads"), "one");
        });
    }

    #[test]
    fn names_that_stores_find_hard_survive_when_encoded() {
        with_store(async |root, store| {
            let key = "u nit/0000000001-000001/a b%0A%231 \u{fc}%5C?*";
            store.put(key, b"x".to_vec()).await.expect("writes");
            store.make_durable(&[key.to_owned()]).await.expect("flushes");
            let listed = store.list("u nit").await.expect("lists");
            assert_eq!(listed.iter().map(|o| (o.key.as_str(), o.size)).collect::<Vec<_>>(), [(key, 1)]);
            assert!(root.join(key).exists());
        });
    }

    #[test]
    fn a_part_wise_object_appears_only_when_finished() {
        with_store(async |_, store| {
            let mut upload = store.begin("u/x").await.expect("begins");
            upload.part(vec![1; 10]).await.expect("writes");
            assert_eq!(store.size("u/x").await.expect("looks"), None);
            upload.part(vec![2; 5]).await.expect("writes");
            upload.finish().await.expect("finishes");
            assert_eq!(store.size("u/x").await.expect("looks"), Some(15));
            assert_eq!(store.get_range("u/x", 8, 4).await.expect("reads"), [1, 1, 2, 2].as_slice());
            assert!(store.get_range("u/x", 10, 6).await.is_err());
            assert_eq!(store.list("nothing/here").await.expect("lists"), []);
        });
    }

    #[test]
    fn what_a_kill_left_half_written_is_swept_and_nothing_else() {
        with_store(async |root, store| {
            store.put("u/x", b"1".to_vec()).await.expect("writes");
            fs::write(root.join("u/y#1"), "half").expect("writes");
            assert_eq!(store.sweep(Duration::from_secs(3600)).await.expect("sweeps"), 0, "it is young");
            assert_eq!(store.sweep(Duration::ZERO).await.expect("sweeps"), 1);
            assert_eq!(fs::read_dir(root.join("u")).expect("reads").count(), 1);
        });
    }
}

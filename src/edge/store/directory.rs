//! A store that is a directory. Writes are staged as `NAME#k` and linked into place, so its file system must have hard links
//! (gcsfuse has none). Each operation has its own thread, so a file system that hangs blocks nothing else.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nix::fcntl::OFlag;
use tokio::sync::Semaphore;

use super::error::{Failed, not_answered};
use super::list::{self, Object, is_file, modified, object, of_file, staged_for, visit};
use super::staged::{Placing, STEP, Staged, above, is_absent, make_directory, sync_directory};
use crate::edge::fs::trusted_open;
use crate::edge::store::clouds::access::Access;
use crate::edge::store::http::progress::{Meter, Progress};
use crate::edge::transfer::blocking::blocking;

/// The maximum of operations at once. One that hangs keeps its permit, which limits the number of hanging threads.
const AT_ONCE: usize = 16;
/// The lowest rate at which a disk flushes, bytes a second.
const SLOWEST: u64 = 4 << 20;
/// Up to this many files are made durable one by one, more by flushing the whole file system at once.
const SYNCED_ONE_BY_ONE: usize = 64;

#[derive(Debug)]
pub(super) struct Directory {
    root: Arc<Path>,
    turns: Arc<Semaphore>,
    meter: Meter,
    timeout: Duration,
}

impl Directory {
    /// Opens the directory; `create` makes it if it does not exist. Errors: as mkdir(2), open(2).
    pub(super) async fn open(root: &Path, create: bool, access: &Access) -> Result<Directory, Failed> {
        let (turns, meter) = (Arc::new(Semaphore::new(AT_ONCE)), access.meter().clone());
        let directory = Directory { root: root.into(), turns, meter, timeout: access.timeout };
        let opened = directory.run(move |root, _| {
            if create {
                make_directory(root)?;
            }
            trusted_open::reach(root, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map(drop)
        });
        opened.await?;
        Ok(directory)
    }

    /// Runs the work on its own thread. Errors: those of the work; no progress for the store's time-out.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path, &Progress) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Failed> {
        self.run_for(self.timeout, work).await
    }

    async fn run_for<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce(&Path, &Progress) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Failed> {
        let (root, turn) = (Arc::clone(&self.root), Arc::clone(&self.turns).acquire_owned());
        let Ok(turn) = tokio::time::timeout(self.timeout, turn).await else {
            return Err(Failed::from(&not_answered(self.timeout)));
        };
        let done = async {
            let progress = self.meter.current();
            let work = move || {
                let _turn = turn;
                work(&root, &progress)
            };
            blocking(work).await
        };
        let done = self.meter.watch(limit, done).await.unwrap_or_else(|| Err(not_answered(limit)));
        done.map_err(|error| Failed::from(&error))
    }

    pub(super) async fn put(&self, key: &str, blocks: Vec<Bytes>, how: Placing) -> Result<(), Failed> {
        let key = key.to_owned();
        self.run(move |root, progress| {
            let staged = Staged::new(root, &key)?;
            staged.write(0, &blocks, progress)?;
            staged.place(root, how)
        })
        .await
    }

    /// Replaces an object. With `beside`, only if that object exists: the store may not be mounted any more.
    pub(super) async fn replace(&self, key: &str, bytes: Bytes, beside: Option<&str>) -> Result<(), Failed> {
        let (key, beside) = (key.to_owned(), beside.map(str::to_owned));
        self.run(move |root, progress| {
            if let Some(beside) = beside {
                trusted_open::reach(&root.join(beside), OFlag::O_PATH)?;
            }
            let staged = Staged::new(root, &key)?;
            staged.write(0, std::slice::from_ref(&bytes), progress)?;
            staged.place(root, Placing::Over)
        })
        .await
    }

    pub(super) async fn begin(&self, key: &str) -> Result<Arc<Staged>, Failed> {
        let key = key.to_owned();
        self.run(move |root, _| Ok(Arc::new(Staged::new(root, &key)?))).await
    }

    pub(super) async fn part(&self, to: Arc<Staged>, from: u64, blocks: Vec<Bytes>) -> Result<(), Failed> {
        self.run(move |_, progress| to.write(from, &blocks, progress)).await
    }

    /// Puts the file in place. All its parts must be written.
    pub(super) async fn finish(&self, staged: Arc<Staged>, how: Placing) -> Result<(), Failed> {
        self.run(move |root, _| staged.place(root, how)).await
    }

    pub(super) async fn abort(&self, staged: Arc<Staged>) {
        let removes = move |_: &Path, _: &Progress| {
            // A write that is still running keeps the value alive.
            staged.remove();
            Ok(())
        };
        let _ = self.run(removes).await;
    }

    /// Deletes a file, and the directories that become empty.
    pub(super) async fn delete(&self, key: &str) -> Result<(), Failed> {
        let key = key.to_owned();
        self.run(move |root, _| {
            let path = root.join(key);
            trusted_open::remove_file(&path)?;
            let emptied = above(root, &path).take_while(|directory| *directory != root);
            let _ = emptied.into_iter().try_for_each(trusted_open::remove_directory);
            Ok(())
        })
        .await
    }

    pub(super) async fn make_durable(&self, keys: &[String], bytes: u64) -> Result<(), Failed> {
        let keys = keys.to_vec();
        self.run_for(self.timeout + Duration::from_secs(bytes / SLOWEST), move |root, progress| {
            if keys.len() > SYNCED_ONE_BY_ONE {
                return Ok(nix::unistd::syncfs(trusted_open::reach(root, OFlag::O_RDONLY)?)?);
            }
            let paths: Vec<PathBuf> = keys.iter().map(|key| root.join(key)).collect();
            for path in &paths {
                open_file(path)?.sync_all()?;
                progress.moved(0);
            }
            let directories: BTreeSet<&Path> = paths.iter().flat_map(|path| above(root, path)).collect();
            directories.into_iter().try_for_each(sync_directory)
        })
        .await
    }

    pub(super) async fn look(&self, key: &str) -> Result<Option<Object>, Failed> {
        let key = key.to_owned();
        self.run(move |root, _| match list::look(&root.join(&key)) {
            Ok(found) => Ok(is_file(&found).then(|| of_file(key, &found))),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        })
        .await
    }

    /// At most `length` bytes of a file. Errors: as open(2), read(2); it is not a regular file.
    pub(super) async fn read(&self, key: &str, from: u64, length: u64) -> Result<Vec<u8>, Failed> {
        let key = key.to_owned();
        self.run(move |root, progress| {
            let mut file = open_file(&root.join(key))?;
            let available = file.metadata()?.len().saturating_sub(from);
            let mut bytes = Vec::with_capacity(usize::try_from(available.min(length)).unwrap_or(0));
            file.seek(SeekFrom::Start(from))?;
            let mut rest = file.take(length);
            while rest.by_ref().take(STEP as u64).read_to_end(&mut bytes)? > 0 {
                progress.moved(STEP);
            }
            Ok(bytes)
        })
        .await
    }

    /// Every file under a prefix with the first `limit` bytes of its content; a file that cannot be read is empty. One thread
    /// reads all, because they are small.
    pub(super) async fn read_all(&self, prefix: &str, limit: u64) -> Result<Vec<(String, Bytes)>, Failed> {
        let objects = self.list(prefix).await?;
        self.run(move |root, progress| {
            let read = |key: &str| {
                let mut bytes = Vec::new();
                open_file(&root.join(key))?.take(limit).read_to_end(&mut bytes)?;
                progress.moved(bytes.len());
                Ok::<_, io::Error>(Bytes::from(bytes))
            };
            Ok(objects
                .into_iter()
                .map(|object| (read(&object.key).unwrap_or_default(), object.key))
                .map(|(b, k)| (k, b))
                .collect())
        })
        .await
    }

    /// Every file under a prefix whose name is UTF-8.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Object>, Failed> {
        let prefix = prefix.trim_end_matches('/').to_owned();
        self.run(move |root, progress| {
            let mut objects = Vec::new();
            visit(root, prefix, |key, found| {
                progress.moved(0);
                if staged_for(&key).is_none() {
                    objects.extend(object(root, key, found));
                }
                Ok(())
            })?;
            Ok(objects)
        })
        .await
    }

    pub(super) async fn sweep(&self, before: Duration, is_own: fn(&str) -> bool, dry: bool) -> Result<u64, Failed> {
        self.run(move |root, progress| {
            let mut count = 0;
            visit(root, String::new(), |key, found| {
                progress.moved(0);
                let is_staged = staged_for(&key).is_some_and(is_own);
                if is_staged && is_file(found) && modified(found) <= before {
                    count += u64::from(dry || trusted_open::remove_file(&root.join(key)).is_ok());
                }
                Ok(())
            })?;
            Ok(count)
        })
        .await
    }
}

/// Opens a regular file for reading. Other files are refused: the open of a FIFO waits for a writer.
fn open_file(path: &Path) -> io::Result<File> {
    let file = trusted_open::reach(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

#[cfg(test)]
mod tests {
    use super::super::{Access, Store, StoreError, Trouble};
    use crate::rules::store::address::Address;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    #[tokio::test]
    async fn files_of_other_programs_do_not_break_a_listing() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let root = dir.path().join("s");
        let store = Store::open(&Address::Directory(root.clone()), true, &Access::default()).await.expect("opens");
        store.put("u/x", vec!["1".into()], crc32c::crc32c(b"1")).await.expect("writes");
        fs::write(root.join(OsStr::from_bytes(b"u/\xff")), "").expect("writes");
        fs::create_dir(root.join(OsStr::from_bytes(b"\xfe"))).expect("mkdir");
        fs::create_dir_all(root.join("a\nb")).expect("mkdir");
        for name in ["a\nb/x", "u/\u{7f}", "u/half#12", "a#b#1"] {
            fs::write(root.join(name), "").expect("writes");
        }
        let links = [("u", "same"), ("..", "u/loop"), ("nothing", "dangling"), ("self", "self"), ("u/x", "link")];
        for (to, link) in links {
            symlink(to, root.join(link)).expect("symlink");
        }
        let listed = async |prefix: &str| {
            let objects = store.list(prefix).await?;
            Ok::<_, StoreError>(objects.into_iter().map(|o| o.key).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(listed("").await.expect("lists"), "a\nb/x a#b#1 link u/x u/\u{7f}");
        assert_eq!(listed("u").await.expect("lists"), "u/x u/\u{7f}");
        assert_eq!(listed("same").await.expect("a link that is asked for by its name"), "same/x same/\u{7f}");
        assert_eq!(listed("nothing/here").await.expect("lists"), "");
        for other in ["u/x", "u/x/y", "dangling"] {
            assert!(listed(other).await.is_err_and(|error| error.trouble == Trouble::NoDirectory), "{other}");
        }
    }
}

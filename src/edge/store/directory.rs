//! A store that is a directory. Writes are staged under `NAME#k` and linked into place, so its file system must have hard
//! links (gcsfuse has none). Links of another user are not followed ([`trusted_open`]). Each operation has a thread of its own: a file system that hangs blocks nothing else.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use nix::fcntl::OFlag;
use object_store::path::Path as Key;
use tokio::sync::Semaphore;

use super::error::{Failed, Trouble};
use super::list::{Object, modified, object, of_file, staged_for, visit};
use super::staged::{Placing, STEP, Staged, above, is_absent, make_directory, sync_directory};
use crate::edge::clock;
use crate::edge::fs::trusted_open;
use crate::edge::store::clouds::access::{Access, OddName};
use crate::edge::store::http::progress::{Meter, Progress};
use crate::edge::transfer::blocking::blocking;

/// Operations at once. One that hangs keeps its place until the file system answers, so that no more threads hang than these.
const AT_ONCE: usize = 16;
/// No disk flushes fewer bytes a second.
const SLOWEST: u64 = 4 << 20;
/// Up to this many files are made durable one by one, more by flushing the whole file system at once.
const SYNCED_ONE_BY_ONE: usize = 64;
/// The file that tells the time, until it is deleted.
const TIME: &str = "time";

#[derive(Debug)]
pub(super) struct Directory {
    root: Arc<Path>,
    turns: Arc<Semaphore>,
    meter: Meter,
    timeout: Duration,
    odd: OddName,
}

/// Does the work on a thread of its own. Errors: those of the work; no progress for `limit`.
pub(super) async fn timed<T: Send + 'static>(
    meter: &Meter,
    limit: Duration,
    work: impl FnOnce(&Progress) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let operation = meter.begin();
    let progress = operation.progress().clone();
    let done = operation.within(limit, blocking(move || work(&progress))).await;
    done.unwrap_or_else(|| Err(not_answered(limit)))
}

fn not_answered(limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("its file system has not answered for {} s", limit.as_secs()))
}

impl Directory {
    /// Opens it; `create` makes it where it is not there. Errors: as mkdir(2), open(2).
    pub(super) async fn open(root: &Path, create: bool, access: &Access) -> Result<Directory, Failed> {
        let (turns, meter) = (Arc::new(Semaphore::new(AT_ONCE)), access.meter().clone());
        let odd = access.odd().clone();
        let directory = Directory { root: root.into(), turns, meter, timeout: access.timeout, odd };
        let opened = directory.run(move |root, _| {
            if create {
                make_directory(root)?;
            }
            trusted_open::reach(root, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map(drop)
        });
        opened.await?;
        Ok(directory)
    }

    /// Does the work on a thread of its own. Errors: those of the work; no progress for the store's time-out.
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
        let done = timed(&self.meter, limit, move |progress| {
            let _turn = turn;
            work(&root, progress)
        });
        done.await.map_err(|error| Failed::from(&error))
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

    pub(super) async fn begin(&self, key: &str) -> Result<Arc<Staged>, Failed> {
        let key = key.to_owned();
        self.run(move |root, _| Ok(Arc::new(Staged::new(root, &key)?))).await
    }

    pub(super) async fn part(&self, to: &Arc<Staged>, from: u64, blocks: Vec<Bytes>) -> Result<(), Failed> {
        let to = Arc::clone(to);
        self.run(move |_, progress| to.write(from, &blocks, progress)).await
    }

    /// Puts it into its place. All its parts must be written.
    pub(super) async fn finish(&self, staged: Arc<Staged>, how: Placing) -> Result<(), Failed> {
        let Ok(staged) = Arc::try_unwrap(staged) else {
            return Err(Failed::new(Trouble::Other, "a part is not through".to_owned()));
        };
        self.run(move |root, _| staged.place(root, how)).await
    }

    pub(super) async fn abort(&self, staged: Arc<Staged>) {
        let removes = move |_: &Path, _: &Progress| {
            // A part may be under way still.
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

    /// Flushes these files, and the directories that name them, to the device.
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

    /// A file, as a listing has it; `None`: there is no such file. Errors: as stat(2).
    pub(super) async fn look(&self, key: &str) -> Result<Option<Object>, Failed> {
        let key = key.to_owned();
        self.run(move |root, _| match trusted_open::metadata(&root.join(&key)) {
            Ok(there) => Ok(there.is_file().then(|| of_file(key, &there))),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        })
        .await
    }

    /// So many bytes of a file, fewer where it ends before. Errors: as open(2), read(2); it is no file.
    pub(super) async fn read(&self, key: &str, from: u64, length: u64) -> Result<Vec<u8>, Failed> {
        let key = key.to_owned();
        self.run(move |root, progress| {
            let mut file = open_file(&root.join(key))?;
            let there = file.metadata()?.len().saturating_sub(from);
            let mut bytes = Vec::with_capacity(usize::try_from(there.min(length)).unwrap_or(0));
            file.seek(SeekFrom::Start(from))?;
            let mut rest = file.take(length);
            while rest.by_ref().take(STEP as u64).read_to_end(&mut bytes)? > 0 {
                progress.moved(STEP);
            }
            Ok(bytes)
        })
        .await
    }

    /// What is no directory where one must be for this file to be written.
    pub(super) async fn in_the_way(&self, key: &str) -> Result<Option<String>, Failed> {
        let key = key.to_owned();
        self.run(move |root, _| {
            let mut above = key.match_indices('/').map(|(at, _)| &key[..at]);
            // One that comes or goes meanwhile is a directory all the same.
            let is_other =
                |path: &PathBuf| path.symlink_metadata().is_ok_and(|there| !there.is_dir() && !path.is_dir());
            Ok(above.find(|key| is_other(&root.join(key))).map(str::to_owned))
        })
        .await
    }

    /// What time a new file gets: of a share, its server's.
    pub(super) async fn time(&self) -> Result<Duration, Failed> {
        self.run(|root, _| time_of_a_new_file(root)).await
    }

    /// Every file under a prefix whose name can be a key.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Object>, Failed> {
        let (prefix, odd) = (prefix.trim_end_matches('/').to_owned(), self.odd.clone());
        self.run(move |root, progress| {
            let mut objects = Vec::new();
            visit(root, prefix, |key, entry| {
                progress.moved(0);
                if staged_for(&key).is_none() && Key::parse(&key).is_ok() {
                    objects.extend(object(key, entry)?);
                } else {
                    odd.note(&key);
                }
                Ok(())
            })?;
            Ok(objects)
        })
        .await
    }

    /// Deletes half-written files (`NAME#k`) of our own older than `age`; `dry` only counts them. Returns how many.
    pub(super) async fn sweep(&self, age: Duration, is_ours: fn(&str) -> bool, dry: bool) -> Result<u64, Failed> {
        let before = match self.time().await {
            Ok(now) => now.saturating_sub(age),
            // Where nothing can be written, nothing can be deleted; where there is no room, the commits that go make some.
            Err(failed) if matches!(failed.trouble, Trouble::Denied | Trouble::Full) => return Ok(0),
            Err(failed) => return Err(failed),
        };
        self.run(move |root, progress| {
            let mut count = 0;
            visit(root, String::new(), |key, entry| {
                progress.moved(0);
                let is_staged = staged_for(&key).is_some_and(|key| key == TIME || is_ours(key));
                if is_staged && entry.metadata().is_ok_and(|m| m.is_file() && modified(&m) <= before) {
                    count += u64::from(dry || trusted_open::remove_file(&entry.path()).is_ok());
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
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

/// Makes a file there, and deletes it: the time that it got, since 1970. Errors: as open(2), unlink(2).
fn time_of_a_new_file(root: &Path) -> io::Result<Duration> {
    // Named like a write that was cut short, which no listing shows.
    // The number of a process is another's too: on another machine, or in another container.
    let now = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    let path = root.join(format!("{TIME}#{}{}", now.as_nanos(), std::process::id()));
    let made = trusted_open::reach(&path, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL)?;
    let modified = made.metadata().and_then(|m| m.modified());
    trusted_open::remove_file(&path)?;
    Ok(modified?.duration_since(UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Access, Created, Store, StoreError};
    use super::*;
    use crate::rules::store::address::Address;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    fn with_store(work: impl AsyncFnOnce(&Path, Store)) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        let root = dir.path().join("s");
        runtime.block_on(async {
            let address = Address::Directory(root.clone());
            let store = Store::open(&address, true, &Access::default()).await.expect("opens");
            work(&root, store).await;
        });
    }

    async fn put(store: &Store, key: &str, bytes: &'static [u8]) {
        let block = bytes::Bytes::from_static(bytes);
        store.put(key, vec![block], crc32c::crc32c(bytes)).await.expect("writes");
    }

    async fn read(store: &Store, key: &str, from: u64, length: u64) -> Result<Vec<u8>, StoreError> {
        let mut reading = store.read(key, from, length).await?;
        let mut all = Vec::new();
        while let Some(bytes) = reading.next().await? {
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }

    #[test]
    fn an_object_is_created_once_and_its_own_retry_is_no_conflict() {
        with_store(async |_, store| {
            assert_eq!(store.create("a/x.json", b"one".to_vec()).await.expect("writes"), Created::Ours);
            assert_eq!(store.create("a/x.json", b"one".to_vec()).await.expect("reads back"), Created::Ours);
            assert_eq!(store.create("a/x.json", b"two".to_vec()).await.expect("reads back"), Created::Taken);
            assert_eq!(store.create("a/x.json", b"onetwo".to_vec()).await.expect("reads back"), Created::Taken);
            assert_eq!(store.get("a/x.json", 10).await.expect("reads"), "one");
            assert_eq!(store.get("a/x.json", 2).await.expect("reads"), "on");
        });
    }

    #[test]
    fn a_part_wise_object_appears_only_when_finished() {
        with_store(async |_, store| {
            let store = Arc::new(store);
            let mut upload = store.begin("u/x").await.expect("begins");
            let first = upload.part(vec![vec![1; 10].into()]).await.expect("writes");
            assert_eq!(store.size("u/x").await.expect("looks"), None);
            let second = upload.part(vec![vec![2; 2].into(), vec![2; 3].into()]).await.expect("writes");
            upload.finish(vec![second, first], 0).await.expect("finishes");
            assert_eq!(store.size("u/x").await.expect("looks"), Some(15));
            assert_eq!(read(&store, "u/x", 8, 4).await.expect("reads"), [1, 1, 2, 2].as_slice());
            assert!(read(&store, "u/x", 10, 6).await.is_err());
            assert_eq!(store.list("nothing/here").await.expect("lists"), []);
        });
    }

    #[test]
    fn names_that_cannot_be_keys_are_not_listed_and_do_no_harm() {
        with_store(async |root, store| {
            put(&store, "u/x", b"1").await;
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
                let objects = store.list(prefix).await.expect("lists");
                objects.into_iter().map(|o| o.key).collect::<Vec<_>>().join(" ")
            };
            assert_eq!(listed("").await, "a#b#1 link u/x");
            assert_eq!(listed("u").await, "u/x");
            assert_eq!(listed("same").await, "same/x", "a link that is asked for by its name");
            assert_eq!(listed("u/x").await, "");
            assert_eq!(listed("u/x/y").await, "");
        });
    }
}

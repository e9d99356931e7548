//! A store that is a directory. Writes are staged under `NAME#k` and linked into place, so its file system must have hard
//! links (gcsfuse has none).

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;

use super::error::{StoreError, Trouble, kind_of};
use super::list::Object;
use super::motion::Meter;
use crate::edge::blocking::blocking;
use crate::edge::clock;
use crate::rules::checkpoint::listing::{join, name_of};
use crate::rules::checkpoint::names::is_half_written;

/// Up to this many files are made durable one by one, more by flushing the whole file system at once.
const SYNCED_ONE_BY_ONE: usize = 64;

/// The file that tells the time, until it is deleted.
const TIME: &str = "time";

/// What a directory can and a bucket cannot.
#[derive(Debug)]
pub(super) struct Directory {
    root: PathBuf,
}

impl Directory {
    /// Opens it, with a store whose writes are flushed one by one and one for data; `create` makes it where it is not
    /// there. Errors: as mkdir(2), open(2).
    pub(super) async fn open(
        root: &Path,
        create: bool,
    ) -> Result<(Directory, LocalFileSystem, LocalFileSystem), StoreError> {
        let at = root.to_owned();
        let opened = blocking(move || {
            if create {
                // mkdir(2) says of a file in its place that it exists.
                fs::create_dir_all(&at).or_else(|error| {
                    fs::read_dir(&at).map(drop).map_err(|now| match now.kind() {
                        io::ErrorKind::NotADirectory => now,
                        _ => error,
                    })
                })?;
            }
            fs::read_dir(&at)?;
            let open = || LocalFileSystem::new_with_prefix(&at).map_err(io::Error::other);
            let (durable, data) = (open()?.with_fsync(true), open()?.with_automatic_cleanup(true));
            Ok((Directory { root: at }, durable, data))
        });
        opened.await.map_err(|error| {
            StoreError::new("open", format!("file://{}", root.display()), error.to_string(), kind_of(&error))
        })
    }

    /// Flushes these files, and the directories that name them, to the device.
    pub(super) async fn make_durable(&self, keys: &[String], meter: &Meter) -> io::Result<()> {
        let (root, meter) = (self.root.clone(), meter.clone());
        let paths: Vec<PathBuf> = keys.iter().map(|key| root.join(key)).collect();
        blocking(move || {
            if paths.len() > SYNCED_ONE_BY_ONE {
                return Ok(nix::unistd::syncfs(File::open(&root)?)?);
            }
            let mut directories = BTreeSet::new();
            for path in &paths {
                let under_way = meter.writes();
                open_file(path)?.sync_all()?;
                under_way.answered(Some(200));
                let above = path.ancestors().skip(1).take_while(|d| d.starts_with(&root));
                directories.extend(above.map(Path::to_owned));
            }
            directories.iter().try_for_each(|d| File::open(d)?.sync_all())
        })
        .await
    }

    /// The size of a file, as a listing has it; `None`: no file lies there. Errors: as stat(2).
    pub(super) async fn size(&self, key: &str) -> io::Result<Option<u64>> {
        let path = self.root.join(key);
        blocking(move || match fs::metadata(path) {
            Ok(there) => Ok(there.is_file().then_some(there.len())),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        })
        .await
    }

    /// So many bytes of a file, fewer where it ends before. Errors: as open(2), read(2); it is no file.
    pub(super) async fn read(&self, key: &str, from: u64, length: u64) -> io::Result<Vec<u8>> {
        let path = self.root.join(key);
        blocking(move || {
            let mut file = open_file(&path)?;
            let there = file.metadata()?.len().saturating_sub(from);
            let mut bytes = Vec::with_capacity(usize::try_from(there.min(length)).unwrap_or(0));
            file.seek(SeekFrom::Start(from))?;
            file.take(length).read_to_end(&mut bytes)?;
            Ok(bytes)
        })
        .await
    }

    /// What keeps files of these names from being written: what is no directory where one must be, and all that lies in a
    /// directory where a file must be.
    pub(super) async fn in_the_way(&self, keys: Vec<String>) -> io::Result<BTreeSet<String>> {
        let root = self.root.clone();
        blocking(move || {
            let is_in_the_way = |key: &&str| {
                let path = root.join(key);
                // One that comes or goes meanwhile is a directory all the same.
                path.symlink_metadata().is_ok_and(|there| !there.is_dir() && !path.is_dir())
            };
            let mut found = BTreeSet::new();
            for key in keys {
                let above = key.match_indices('/').map(|(at, _)| &key[..at]);
                found.extend(above.filter(is_in_the_way).map(str::to_owned));
                if root.join(&key).symlink_metadata().is_ok_and(|there| there.is_dir()) {
                    below(&root, key, &mut found)?;
                }
            }
            Ok(found)
        })
        .await
    }

    /// What time a new file gets: of a share, its server's.
    pub(super) async fn time(&self) -> io::Result<Duration> {
        let root = self.root.clone();
        blocking(move || takes_a_file(&root)).await
    }

    /// Every file under a prefix whose name can be a key. Not the crate's listing, which fails at a name that cannot.
    pub(super) async fn list(&self, prefix: &str) -> io::Result<Vec<Object>> {
        let (root, prefix) = (self.root.clone(), prefix.to_owned());
        blocking(move || {
            let mut objects = Vec::new();
            visit(&root, prefix, |key, entry| {
                if staged_for(&key).is_none() && Key::parse(&key).is_ok() {
                    objects.extend(object(key, entry)?);
                }
                Ok(())
            })?;
            Ok(objects)
        })
        .await
    }

    /// Deletes half-written files (`NAME#k`) of our own older than `age`; `dry` only counts them. Returns how many.
    pub(super) async fn sweep(&self, age: Duration, is_ours: fn(&str) -> bool, dry: bool) -> io::Result<u64> {
        let root = self.root.clone();
        let before = match self.time().await {
            Ok(now) => now.saturating_sub(age),
            // Where nothing can be written, nothing can be deleted; where there is no room, the commits that go make some.
            Err(error) if matches!(kind_of(&error), Trouble::Denied | Trouble::Full) => return Ok(0),
            Err(error) => return Err(error),
        };
        blocking(move || {
            let mut count = 0;
            visit(&root, String::new(), |key, entry| {
                let is_staged = staged_for(&key).is_some_and(|key| key == TIME || is_ours(key));
                if is_staged && entry.metadata().is_ok_and(|m| m.is_file() && modified(&m) <= before) {
                    count += u64::from(dry || fs::remove_file(entry.path()).is_ok());
                }
                Ok(())
            })?;
            Ok(count)
        })
        .await
    }
}

/// Opens a file for reading, and nothing else, which could keep us waiting: a pipe waits for who writes into it.
fn open_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

/// Makes a file there, and deletes it: the time that it got, since 1970. Errors: as open(2), unlink(2).
pub fn takes_a_file(root: &Path) -> io::Result<Duration> {
    // Named like a write that was cut short, which no listing shows.
    // The number of a process is another's too: on another machine, or in another container.
    let now = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    let path = root.join(format!("{TIME}#{}{}", now.as_nanos(), std::process::id()));
    let made = File::create_new(&path)?;
    let modified = made.metadata().and_then(|m| m.modified());
    fs::remove_file(&path)?;
    Ok(modified?.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Shows everything below a directory that is none itself, under its key. A link to a directory is not entered: what it
/// leads to has its own key, or is not ours; nor is what may not be read (`lost+found`). Errors: as readdir(3), those of
/// `each`.
fn visit(root: &Path, from: String, mut each: impl FnMut(String, &DirEntry) -> io::Result<()>) -> io::Result<()> {
    let mut left = vec![from.clone()];
    while let Some(at) = left.pop() {
        let names = match fs::read_dir(root.join(&at)) {
            Err(error) if is_absent(&error) || is_denied(&error) && at != from => continue,
            names => names?,
        };
        for entry in names {
            let entry = entry?;
            // What is not UTF-8 is no part of a key.
            let Some(key) = entry.file_name().to_str().map(|name| join(&at, name)) else { continue };
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => left.push(key),
                Ok(_) => each(key, &entry)?,
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// A file, or what a link to one leads to; `None` for anything else, and what has just been deleted.
fn object(key: String, entry: &DirEntry) -> io::Result<Option<Object>> {
    let metadata = match entry.metadata() {
        // A link may lead nowhere, or to itself.
        Ok(metadata) if metadata.is_symlink() => fs::metadata(entry.path()).ok(),
        Ok(metadata) => Some(metadata),
        Err(error) if is_absent(&error) => None,
        Err(error) => return Err(error),
    };
    let file = metadata.filter(fs::Metadata::is_file);
    Ok(file.map(|metadata| Object { key, size: metadata.len(), modified: modified(&metadata) }))
}

/// Nothing is there, or nothing can be there.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG))
}

fn is_denied(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EACCES)
}

/// Since 1970.
fn modified(metadata: &fs::Metadata) -> Duration {
    let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
    modified.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The key that is to be written, of a file that is half written (`NAME#k`).
fn staged_for(path: &str) -> Option<&str> {
    let (key, _) = path.rsplit_once('#')?;
    let is_staged = is_half_written(name_of(path)) && !name_of(key).contains('#');
    is_staged.then_some(key)
}

/// What lies in a directory: files, and directories with nothing in them.
fn below(root: &Path, key: String, found: &mut BTreeSet<String>) -> io::Result<()> {
    let mut is_empty = true;
    for entry in fs::read_dir(root.join(&key))? {
        let entry = entry?;
        is_empty = false;
        let key = join(&key, &entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            below(root, key, found)?;
        } else {
            found.insert(key);
        }
    }
    if is_empty {
        found.insert(key);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Access, Created, Store};
    use super::*;
    use crate::rules::checkpoint::address::Address;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    fn with_store(deed: impl AsyncFnOnce(&Path, Store)) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        let root = dir.path().join("s");
        runtime.block_on(async {
            let address = Address::Directory(root.clone());
            let store = Store::open(&address, true, &Access::default()).await.expect("opens");
            deed(&root, store).await;
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
    fn names_that_stores_find_hard_survive_when_encoded() {
        with_store(async |root, store| {
            let key = "u nit/0000000001-000001/a b%0A%231 \u{fc}%5C?*";
            put(&store, key, b"x").await;
            store.make_durable(&[key.to_owned()]).await.expect("flushes");
            let listed = store.list("u nit").await.expect("lists");
            assert_eq!(listed.iter().map(|o| (o.key.as_str(), o.size)).collect::<Vec<_>>(), [(key, 1)]);
            assert!(root.join(key).exists());
        });
    }

    #[test]
    fn a_part_wise_object_appears_only_when_finished() {
        with_store(async |_, store| {
            let store = Arc::new(store);
            let mut upload = store.begin("u/x").await.expect("begins");
            upload.part(vec![vec![1; 10].into()].into()).await.expect("writes");
            assert_eq!(store.size("u/x").await.expect("looks"), None);
            upload.part(vec![vec![2; 2].into(), vec![2; 3].into()].into()).await.expect("writes");
            upload.finish(0).await.expect("finishes");
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

    #[test]
    fn what_a_kill_left_half_written_is_swept_and_nothing_else() {
        with_store(async |root, store| {
            put(&store, "u/x", b"1").await;
            for name in ["u/y#1", "time#1", "notes#1"] {
                fs::write(root.join(name), "half").expect("writes");
            }
            let sweep = async |age| store.sweep(age, |key| key.starts_with("u/"), false).await.expect("sweeps");
            assert_eq!(sweep(Duration::from_secs(3600)).await, 0, "it is young");
            assert_eq!(sweep(Duration::ZERO).await, 2);
            assert_eq!(fs::read_dir(root.join("u")).expect("reads").count(), 1);
            assert!(root.join("notes#1").exists(), "somebody else's");
        });
    }

    #[test]
    fn what_a_kill_left_of_asking_the_time_keeps_nobody_from_sweeping() {
        with_store(async |root, store| {
            // In a container every process that asks may have this number.
            fs::write(root.join(format!("time#{}", std::process::id())), "").expect("writes");
            fs::write(root.join("x#1"), "half").expect("writes");
            assert_eq!(store.sweep(Duration::ZERO, |key| key == "x", false).await.expect("sweeps"), 2);
            assert_eq!(fs::read_dir(root).expect("reads").count(), 0);
        });
    }

    #[test]
    fn a_sweep_that_cannot_know_the_time_says_so() {
        with_store(async |root, store| {
            fs::remove_dir(root).expect("rmdir");
            let failed = store.sweep(Duration::ZERO, |_| true, false).await.expect_err("no directory");
            assert!(failed.to_string().contains("No such file"), "{failed}");
        });
    }

    #[test]
    fn in_the_way_is_what_is_of_the_other_kind() {
        with_store(async |root, store| {
            fs::create_dir_all(root.join("dir/deep/empty")).expect("mkdir");
            for file in ["file", "dir/x", "dir/deep/y", "same/z", "dir-2"] {
                fs::create_dir_all(root.join("same")).expect("mkdir");
                fs::write(root.join(file), "1").expect("writes");
            }
            std::os::unix::fs::symlink("dir", root.join("link")).expect("symlink");
            std::os::unix::fs::symlink("gone", root.join("dangling")).expect("symlink");
            let keys = ["file/a/b", "dir", "same/z", "new/x", "link", "link/q", "dangling/x"].map(str::to_owned);
            let found = store.in_the_way(keys.to_vec()).await.expect("looks");
            let expected = ["dangling", "dir/deep/empty", "dir/deep/y", "dir/x", "file"];
            assert_eq!(found.iter().collect::<Vec<_>>(), expected);
        });
    }

    #[test]
    fn the_time_is_that_of_a_new_file_which_leaves_no_trace() {
        with_store(async |root, store| {
            let time = store.time().await.expect("a time");
            fs::write(root.join("x"), "1").expect("writes");
            let modified = fs::metadata(root.join("x")).and_then(|m| m.modified()).expect("a time");
            let after = modified.duration_since(UNIX_EPOCH).expect("after 1970").saturating_sub(time);
            assert!(after < Duration::from_secs(60), "{after:?}");
            assert_eq!(fs::read_dir(root).expect("reads").count(), 1);
        });
    }
}

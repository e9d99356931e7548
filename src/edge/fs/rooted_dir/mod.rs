//! Files below one directory, without following any symbolic link. No path of a manifest and no link of a trainer makes it
//! read or write outside.
//!
//! Uses openat2(RESOLVE_BENEATH); if the kernel or a seccomp filter does not allow it, openat(O_NOFOLLOW) for each part.
//! Deliberately absent: deciding what to write.

mod bytes;
pub mod open_dir;

use std::ffi::CString;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat, renameat};
use nix::sys::stat::{Mode, fchmod, fstat, mkdirat};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fchownat, geteuid, linkat, symlinkat, syncfs, unlinkat};

pub use bytes::{finish_file, forget, read_at, read_into, set_time, touch, write_sparsely};

use crate::edge::fs::trusted_open;
use crate::edge::fs::walk::entry;
use crate::rules::checkpoint::listing::{Entry, Kind, Peek, name_of, parent_of};
use crate::rules::store::names::FRESH;
use open_dir::OpenDir;

/// A directory that no operation leaves. Paths are relative to it, parts joined by `/`.
#[derive(Debug)]
pub struct RootedDir {
    path: PathBuf,
    top: OwnedFd,
    /// The user and group that get what is created here: those of the directory, if this process is root and they are not.
    owner: Option<(Uid, Gid)>,
}

/// Number of tries when another process changes the directory at the same time.
const TRIES: u32 = 100;

/// The limit for the removal of one directory with its content. A later removal continues it.
const REMOVAL_LIMIT: Duration = Duration::from_secs(30);

/// A trainer may fill a directory of trainit with any number of files.
const MOST_NAMES: usize = 65_536;

/// Mode of a new file.
const OWN: Mode = Mode::from_bits_truncate(0o600);

const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

impl RootedDir {
    /// Opens the directory, through links of root and of trainit's own user if there are any. Errors: as open(2); `Other`
    /// for a link of another user.
    pub fn open(path: &Path) -> io::Result<RootedDir> {
        let path = trusted_open::resolve(path)?;
        let top = trusted_open::reach(&path, OFlag::O_RDONLY)?;
        let of = top.metadata()?;
        let owner = (geteuid().is_root() && of.uid() != 0).then(|| (Uid::from_raw(of.uid()), Gid::from_raw(of.gid())));
        Ok(RootedDir { path, top: top.into(), owner })
    }

    /// Creates it and its parents if needed, and opens it. Errors: ENOTDIR if it is something else, or a link without a
    /// target; as mkdir(2), open(2).
    pub fn create(path: &Path) -> io::Result<RootedDir> {
        match trusted_open::create_directories(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Errno::ENOTDIR.into()),
            Err(error) => Err(error),
            Ok(()) => RootedDir::open(path),
        }
    }

    /// Its path, links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a regular file for reading. Errors: ELOOP for a link, else as open(2).
    pub fn read_file(&self, path: &str) -> io::Result<File> {
        let file = File::from(self.reach(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK, false)?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// The same, but a file whose hard links another user could have made is refused. Errors: as [`RootedDir::read_file`],
    /// [`trusted_open::refuse_hard_link`].
    pub fn read_own_file(&self, path: &str) -> io::Result<File> {
        let file = self.read_file(path)?;
        if file.metadata()?.nlink() > 1 {
            trusted_open::refuse_hard_link(&file, &File::from(self.directory(parent_of(path), false)?).metadata()?)?;
        }
        Ok(file)
    }

    /// The content of a small file. Errors: too long (FileTooLarge), else as open(2), read(2).
    pub fn read(&self, path: &str, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_file(path)?.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
    }

    /// The metadata of a path, links not followed; `None` if it is missing. Errors: as stat(2).
    pub fn look(&self, path: &str) -> io::Result<Option<Entry>> {
        let opened = match self.reach(path, OFlag::O_PATH, false) {
            Ok(opened) => opened,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let stat = fstat(&opened)?;
        let kind = match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => Kind::File,
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFLNK => {
                let target = readlinkat(&opened, "")?;
                Kind::Symlink(target.into_string().unwrap_or_default())
            }
            _ => Kind::NoContent("neither file nor directory"),
        };
        Ok(Some(entry(path.to_owned(), kind, &stat)))
    }

    /// Creates a new file for reading and writing, its directories too. Errors: EEXIST, else as open(2), mkdir(2).
    pub fn create_file(&self, path: &str) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL;
        Ok(self.reach(path, flags, true)?.into())
    }

    /// Opens the file at a path for a lock, and creates it if needed. Errors: as open(2).
    pub fn lock_file(&self, path: &str) -> io::Result<File> {
        match self.create_file(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.open_lock(path),
            made => made,
        }
    }

    /// The same for an existing file. A network file system grants an exclusive lock only with write permission. Errors: as
    /// open(2).
    pub fn open_lock(&self, path: &str) -> io::Result<File> {
        Ok(self.reach(path, OFlag::O_RDWR | OFlag::O_NONBLOCK, false)?.into())
    }

    /// The names in a directory, at most [`MOST_NAMES`]; none if it is missing. Errors: as readdir(3).
    pub fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let mut directory = match self.directory(path, false) {
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            directory => OpenDir::of(openat(directory?, ".", OFlag::O_RDONLY | DIRECTORY, Mode::empty())?)?,
        };
        Ok(directory.names(MOST_NAMES)?.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    /// Creates a directory and its parents; an existing one is no error. Errors: as mkdir(2).
    pub fn create_directory(&self, path: &str) -> io::Result<()> {
        self.directory(path, true).map(drop)
    }

    /// Sets the permission bits of a directory; its owner keeps access. Errors: as open(2), chmod(2).
    pub fn set_mode(&self, path: &str, mode: u32) -> io::Result<()> {
        Ok(fchmod(self.directory(path, false)?, Mode::from_bits_truncate(mode & 0o777 | 0o700))?)
    }

    /// Sets the modification time of a directory. Errors: as open(2), futimens(2).
    pub fn set_time_of(&self, directory: &str, mtime_ns: i64) -> io::Result<()> {
        set_time(&self.directory(directory, false)?.into(), mtime_ns)
    }

    /// Replaces the file at the path atomically, through a temporary file in the same directory ([`FRESH`]). Errors: as
    /// open(2), write(2), rename(2).
    pub fn replace(&self, path: &str, bytes: &[u8], mode: u32) -> io::Result<()> {
        self.put(path, |fresh| {
            let mut file = self.create_file(fresh)?;
            file.write_all(bytes)?;
            fchmod(&file, Mode::from_bits_truncate(mode))?;
            file.sync_all()
        })
    }

    /// Replaces the path by a symbolic link, like [`RootedDir::replace`].
    pub fn replace_link(&self, path: &str, target: &str) -> io::Result<()> {
        self.put(path, |fresh| self.link_symbolically(fresh, target))
    }

    fn put(&self, path: &str, make: impl Fn(&str) -> io::Result<()>) -> io::Result<()> {
        use io::ErrorKind::{AlreadyExists, NotFound};
        let fresh = format!("{path}{FRESH}");
        let once = || self.remove_file(&fresh).and_then(|()| make(&fresh)).and_then(|()| self.rename(&fresh, path));
        // Another process may write the same file through the same temporary name.
        let is_met = |put: &io::Result<()>| put.as_ref().is_err_and(|e| matches!(e.kind(), AlreadyExists | NotFound));
        (0..TRIES).map(|_| once()).find(|put| !is_met(put)).unwrap_or_else(once)
    }

    /// Creates a symbolic link. Errors: as symlink(2).
    pub fn link_symbolically(&self, path: &str, target: &str) -> io::Result<()> {
        let parent = self.directory(parent_of(path), true)?;
        symlinkat(target, &parent, name_of(path))?;
        if let Some((user, group)) = self.owner {
            let _ = fchownat(&parent, name_of(path), Some(user), Some(group), AtFlags::AT_SYMLINK_NOFOLLOW);
        }
        Ok(())
    }

    /// Creates a hard link and its missing directories. Errors: EXDEV or EPERM without support for hard links, else as
    /// link(2).
    pub fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let (old, new) = (self.directory(parent_of(from), false)?, self.directory(parent_of(to), true)?);
        Ok(linkat(old, name_of(from), new, name_of(to), AtFlags::empty())?)
    }

    /// Like [`RootedDir::link`] for a file anywhere; symbolic links in its path are followed.
    pub fn link_in(&self, from: &Path, to: &str) -> io::Result<()> {
        let new = self.directory(parent_of(to), true)?;
        Ok(linkat(AT_FDCWD, from, new, name_of(to), AtFlags::empty())?)
    }

    /// Copies a regular file with its permissions and sets this modification time. Creates missing directories. The content
    /// is durable, the name is not. Errors: EEXIST, else as open(2), write(2).
    pub fn copy(&self, from: &str, to: &str, mtime_ns: i64) -> io::Result<()> {
        let (mut old, mut new) = (self.read_file(from)?, self.create_file(to)?);
        let permissions = old.metadata()?.permissions();
        io::copy(&mut old, &mut new)?;
        new.set_permissions(permissions)?;
        set_time(&new, mtime_ns)?;
        new.sync_all()
    }

    /// Renames, replaces an existing file, creates missing directories, and makes the rename durable. Errors: as rename(2).
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.place(from, to)?.sync_all()
    }

    /// Like [`RootedDir::rename`], but not durable, so that many renames are fast. Returns the new directory. Errors:
    /// as rename(2).
    pub fn place(&self, from: &str, to: &str) -> io::Result<File> {
        let (old, new) = (self.directory(parent_of(from), false)?, self.directory(parent_of(to), true)?);
        renameat(&old, name_of(from), &new, name_of(to))?;
        Ok(new.into())
    }

    /// Locks the directory until this value is dropped; false: another process has the lock. Without support for locks
    /// nothing is locked, and the result is true. Errors: as dup(2).
    pub fn try_lock(&self) -> io::Result<bool> {
        let top = File::from(self.top.try_clone()?);
        Ok(!matches!(top.try_lock(), Err(TryLockError::WouldBlock)))
    }

    /// Removes a file or link; a missing one is no error. Errors: as unlink(2).
    pub fn remove_file(&self, path: &str) -> io::Result<()> {
        let parent = match self.directory(parent_of(path), false) {
            Err(error) if is_absent(&error) => return Ok(()),
            parent => parent?,
        };
        match unlinkat(parent, name_of(path), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes a directory with its content; a missing one is no error. Errors: as [`open_dir::remove_tree`].
    pub fn remove_tree(&self, path: &str) -> io::Result<()> {
        match self.directory(parent_of(path), false) {
            Err(error) if is_absent(&error) => Ok(()),
            parent => open_dir::remove_tree(parent?, &CString::new(name_of(path))?, REMOVAL_LIMIT),
        }
    }

    /// Removes an empty directory; a missing one is no error. Errors: as rmdir(2).
    pub fn remove_empty(&self, path: &str) -> io::Result<()> {
        let parent = match self.directory(parent_of(path), false) {
            Err(error) if is_absent(&error) => return Ok(()),
            parent => parent?,
        };
        match unlinkat(parent, name_of(path), UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes everything on this file system durable. Errors: as syncfs(2).
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(syncfs(&self.top)?)
    }

    /// Free bytes for this process on this file system. Errors: as statvfs(3).
    pub fn free_bytes(&self) -> io::Result<u64> {
        let stat = fstatvfs(&self.top)?;
        Ok((stat.blocks_available() as u64).saturating_mul(stat.fragment_size() as u64))
    }

    /// Opens a path; `create`: missing directories are created.
    fn reach(&self, path: &str, flags: OFlag, create: bool) -> io::Result<OwnedFd> {
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = match self.at_once(path, flags)? {
            Some(fd) => fd,
            None => openat(self.directory(parent_of(path), create)?, name_of(path), flags, OWN)?,
        };
        if flags.contains(OFlag::O_CREAT) {
            self.give(&opened);
        }
        Ok(opened)
    }

    /// Gives a new file or directory to the directory's owner: the trainer must be able to replace its own checkpoint. A file
    /// system without owners refuses it, and needs none.
    fn give(&self, created: &OwnedFd) {
        if let Some((user, group)) = self.owner {
            let _ = fchown(created, Some(user), Some(group));
        }
    }

    /// Opens by one openat2, if it is available. Errors: [`io::ErrorKind::InvalidInput`] for a path with `.` or `..`.
    fn at_once(&self, path: &str, flags: OFlag) -> io::Result<Option<OwnedFd>> {
        if path.split('/').any(|part| part == "." || part == "..") {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
        // openat2 refuses a mode without O_CREAT.
        let how = if flags.contains(OFlag::O_CREAT) { how.mode(OWN) } else { how };
        Ok(openat2(&self.top, path, how).ok())
    }

    /// The directory at a path, opened part by part; the empty path is the top.
    fn directory(&self, path: &str, create: bool) -> io::Result<OwnedFd> {
        if let Some(fd) = self.at_once(path, DIRECTORY)? {
            return Ok(fd);
        }
        let mut at = self.top.try_clone()?;
        for part in path.split('/').filter(|p| !p.is_empty()) {
            at = match openat(&at, part, DIRECTORY, Mode::empty()) {
                Err(Errno::ENOENT) if create => {
                    let made = mkdirat(&at, part, Mode::from_bits_truncate(0o777));
                    if !matches!(made, Ok(()) | Err(Errno::EEXIST)) {
                        made?;
                    }
                    let opened = openat(&at, part, DIRECTORY, Mode::empty())?;
                    if made.is_ok() {
                        self.give(&opened);
                    }
                    opened
                }
                opened => opened?,
            };
        }
        Ok(at)
    }
}

/// Whether the path leads to nothing.
pub fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

impl Peek for RootedDir {
    fn read(&self, path: &str, from: u64, length: usize) -> Option<Vec<u8>> {
        let file = self.read_file(path).ok()?;
        read_at(&file, from, length).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    pub(super) fn fixture() -> (tempfile::TempDir, RootedDir) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let root = RootedDir::open(dir.path()).expect("opens");
        (dir, root)
    }

    #[test]
    fn concurrent_replacements_of_one_file_all_succeed() {
        let (dir, root) = fixture();
        let put = || (0..50).try_for_each(|_| root.replace("a", b"whole", 0o644));
        let all = std::thread::scope(|s| [s.spawn(put), s.spawn(put)].map(|t| t.join().expect("joins").is_ok()));
        assert_eq!((all, fs::read(dir.path().join("a")).ok()), ([true; 2], Some(b"whole".to_vec())));
    }

    #[test]
    fn a_tree_is_removed_although_files_are_still_added() {
        let (dir, root) = fixture();
        for _ in 0..30 {
            let inside = dir.path().join("tree/inside");
            fs::create_dir_all(&inside).expect("mkdir");
            let comes = |n: u32| File::create(inside.join(n.to_string()));
            (0..100).for_each(|n| drop(comes(n)));
            let removed = std::thread::scope(|scope| {
                scope.spawn(|| (100..150).try_for_each(|n| comes(n).map(drop)));
                root.remove_tree("tree")
            });
            assert_eq!(removed.map_err(|error| error.to_string()), Ok(()));
        }
    }

    #[test]
    fn no_link_is_followed_on_the_way_or_at_the_end() {
        let (dir, root) = fixture();
        let outside = tempfile::tempdir().expect("temporary directory");
        fs::write(outside.path().join("secret"), "s").expect("write");
        symlink(outside.path(), dir.path().join("way")).expect("symlink");
        symlink(outside.path().join("secret"), dir.path().join("end")).expect("symlink");
        assert!(root.read_file("way/secret").is_err());
        assert_eq!(root.look("way/secret").expect("looks"), None);
        let target = outside.path().join("secret").display().to_string();
        assert_eq!(root.look("end").expect("looks").map(|entry| entry.kind), Some(Kind::Symlink(target)));
        assert!(root.read_file("end").is_err());
        assert!(root.create_file("way/new").is_err());
        assert!(root.create_file("end").is_err());
        assert!(root.rename("end", "way/x").is_err());
        for up in ["..", "../x", "new/../x"] {
            assert!(root.create_file(up).is_err() && root.read_file(up).is_err() && root.look(up).is_err());
        }
        fs::create_dir(outside.path().join("kept")).expect("mkdir");
        let _ = root.remove_tree("way/kept");
        assert_eq!(fs::read_dir(outside.path()).expect("reads").count(), 2);
    }

    #[test]
    fn a_replaced_file_is_complete_and_leaves_no_temporary_file() {
        let (dir, root) = fixture();
        root.replace("p", b"one", 0o644).expect("writes");
        fs::write(dir.path().join("p.trainit-new"), "left by a kill").expect("write");
        root.replace("p", b"two", 0o644).expect("writes");
        assert_eq!(fs::read(dir.path().join("p")).expect("reads"), b"two");
        assert_eq!(fs::read_dir(dir.path()).expect("reads").count(), 1);
    }
}

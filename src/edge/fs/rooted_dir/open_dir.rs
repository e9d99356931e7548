//! An open directory. Its entries are listed, examined and removed through its descriptor: a trainer that renames the
//! directory, or puts a symbolic link in its place, cannot lead these operations to another directory.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::edge::clock::Clock;
use crate::edge::fs::trusted_open;

const FLAGS: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// The number of names that a removal reads at once.
const BATCH: usize = 1024;
/// The number of directories that a removal holds open. A directory below them is moved up before it is emptied.
const DEEPEST: usize = 32;
/// Number of tries when another process changes the directory at the same time.
const TRIES: u32 = 100;
/// The prefix of the names of directories that were moved up.
pub const MOVED_UP: &str = ".trainit-removed-";

/// See the head of this file.
#[derive(Debug)]
pub struct OpenDir(Dir);

impl OpenDir {
    /// Opens a directory, through links of root and of trainit's own user if there are any. Errors: as
    /// [`trusted_open::open`].
    pub fn open(path: &Path) -> io::Result<OpenDir> {
        OpenDir::of(trusted_open::reach(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?.into())
    }

    /// A directory that is already open for reading. Errors: ENOTDIR.
    pub fn of(directory: OwnedFd) -> io::Result<OpenDir> {
        Ok(OpenDir(Dir::from_fd(directory)?))
    }

    /// Opens a directory in an open one; no link is followed. Errors: as open(2).
    pub fn at(parent: impl AsFd, name: &CStr) -> io::Result<OpenDir> {
        OpenDir::of(openat(parent, name, FLAGS, Mode::empty())?)
    }

    /// The first `most` names of entries. Errors: as readdir(3).
    pub fn names(&mut self, most: usize) -> io::Result<Vec<CString>> {
        self.names_that(most, |_| true)
    }

    /// The first `most` names of entries that are wanted. Errors: as readdir(3).
    pub fn names_that(&mut self, most: usize, is_wanted: impl Fn(&CStr) -> bool) -> io::Result<Vec<CString>> {
        let is_entry = |name: &CStr| !matches!(name.to_bytes(), b"." | b"..") && is_wanted(name);
        let names = self.0.iter().map(|entry| Ok(entry?.file_name().to_owned()));
        names.filter(|name| name.as_ref().map_or(true, |name: &CString| is_entry(name))).take(most).collect()
    }

    /// The metadata of an entry, links not followed. Errors: as stat(2).
    pub fn look(&self, name: &CStr) -> io::Result<FileStat> {
        Ok(fstatat(self, name, AtFlags::AT_SYMLINK_NOFOLLOW)?)
    }

    /// Removes the entries and all that is below them. Errors: the first entry that cannot be removed; `TimedOut` if the
    /// limit was over before the end. All others have been removed.
    pub fn empty(self, limit: Duration) -> io::Result<()> {
        let clock = Clock::start();
        let mut levels = vec![Level { dir: self, name: CString::default(), left: Vec::new(), has_removed: true }];
        let (mut trouble, mut moved) = (None, 0);
        while let Some((level, above)) = levels.split_last_mut() {
            if clock.now() > limit {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("not all files in it were removed within {}", humantime::format_duration(limit)),
                ));
            }
            let Some(name) = level.next()? else {
                if let Some(parent) = above.last_mut() {
                    parent.has_removed |=
                        note(unlinkat(&parent.dir, level.name.as_c_str(), UnlinkatFlags::RemoveDir), &mut trouble);
                }
                levels.pop();
                continue;
            };
            match remove(&level.dir, &name) {
                Err(Errno::ENOTEMPTY | Errno::EEXIST) if above.len() < DEEPEST => {
                    match OpenDir::at(&level.dir, &name) {
                        Ok(dir) => levels.push(Level { dir, name, left: Vec::new(), has_removed: true }),
                        Err(error) => trouble = trouble.or(Some(error)),
                    }
                }
                Err(Errno::ENOTEMPTY | Errno::EEXIST) => {
                    moved += 1;
                    let up = CString::new(format!("{MOVED_UP}{moved}")).unwrap_or_default();
                    let is_moved =
                        note(renameat(&level.dir, name.as_c_str(), &above[0].dir, up.as_c_str()), &mut trouble);
                    level.has_removed |= is_moved;
                    above[0].has_removed |= is_moved;
                }
                removed => level.has_removed |= note(removed, &mut trouble),
            }
        }
        trouble.map_or(Ok(()), Err)
    }
}

impl AsFd for OpenDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A directory that is being emptied.
struct Level {
    dir: OpenDir,
    /// Its name in the directory above it.
    name: CString,
    left: Vec<CString>,
    /// An entry was removed since the names were read.
    has_removed: bool,
}

impl Level {
    /// The next entry to remove. The names are read again as long as that brought entries to remove.
    fn next(&mut self) -> io::Result<Option<CString>> {
        if self.left.is_empty() && std::mem::take(&mut self.has_removed) {
            self.left = self.dir.names(BATCH)?;
        }
        Ok(self.left.pop())
    }
}

/// Removes an entry of a directory and all that is below it; an absent one is no error. Errors: as [`OpenDir::empty`].
pub fn remove_tree(parent: impl AsFd, name: &CStr, limit: Duration) -> io::Result<()> {
    let clock = Clock::start();
    for _ in 0..TRIES {
        match remove(&parent, name) {
            // A write that was still running when it was abandoned may add a file at any time.
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {
                let emptied = OpenDir::at(&parent, name)?.empty(limit.saturating_sub(clock.now()));
                // The same may happen to a directory in it.
                emptied.or_else(|error| match error.kind() {
                    io::ErrorKind::DirectoryNotEmpty => Ok(()),
                    _ => Err(error),
                })?;
            }
            removed => return Ok(removed?),
        }
    }
    Err(Errno::ENOTEMPTY.into())
}

/// Removes a file or an empty directory; an absent one is no error.
fn remove(directory: impl AsFd, name: &CStr) -> nix::Result<()> {
    let removed = match unlinkat(&directory, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::EISDIR | Errno::EPERM) => unlinkat(&directory, name, UnlinkatFlags::RemoveDir),
        removed => removed,
    };
    removed.or_else(|errno| if errno == Errno::ENOENT { Ok(()) } else { Err(errno) })
}

/// Keeps the first error; returns whether there was none.
fn note(done: nix::Result<()>, trouble: &mut Option<io::Error>) -> bool {
    done.map_err(|errno| _ = trouble.get_or_insert_with(|| errno.into())).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    const LONG: Duration = Duration::from_secs(60);

    fn removed(place: &Path, name: &str, limit: Duration) -> io::Result<()> {
        remove_tree(OpenDir::open(place)?, &CString::new(name)?, limit)
    }

    /// A directory in which directories are nested so deep that no path reaches the last one.
    fn nest(place: &Path, depth: u32) {
        let mut at = OpenDir::open(place).expect("opens");
        for _ in 0..depth {
            nix::sys::stat::mkdirat(&at, "deep", Mode::S_IRWXU).expect("mkdir");
            openat(&at, "file", OFlag::O_CREAT | OFlag::O_WRONLY, Mode::S_IRWXU).expect("creates");
            at = OpenDir::at(&at, c"deep").expect("opens");
        }
    }

    #[test]
    fn any_number_of_directories_in_one_another_is_removed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::create_dir(dir.path().join("tree")).expect("mkdir");
        nest(&dir.path().join("tree"), 1000);
        for n in 0..3 * BATCH {
            File::create(dir.path().join(format!("tree/{n}"))).expect("creates");
        }
        removed(dir.path(), "tree", LONG).expect("removes");
        assert_eq!(fs::read_dir(dir.path()).expect("reads").count(), 0);
    }

    #[test]
    fn the_targets_of_links_stay() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("tree/below")).expect("mkdir");
        fs::create_dir(at("outside")).expect("mkdir");
        fs::write(at("outside/kept"), "").expect("writes");
        symlink(at("outside"), at("tree/below/link")).expect("symlink");
        symlink(at("outside"), at("link")).expect("symlink");
        removed(dir.path(), "tree", LONG).expect("removes");
        removed(dir.path(), "link", LONG).expect("removes the link");
        assert!(at("outside/kept").exists() && !at("tree").exists());
    }

    #[test]
    fn a_removal_ends_at_its_limit_and_the_next_one_continues_it() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::create_dir(dir.path().join("tree")).expect("mkdir");
        File::create(dir.path().join("tree/file")).expect("creates");
        let error = removed(dir.path(), "tree", Duration::ZERO).expect_err("there is no time");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        removed(dir.path(), "tree", LONG).expect("removes");
    }
}

//! Opens files in places where another user may write: a link that another user made is not followed.
//!
//! trainit often runs as root with a less privileged trainer. A symbolic link is followed only if root or trainit's user owns
//! it, in every part of the path. A file with several hard links is opened only if no other user could have made one of
//! them. One openat2(RESOLVE_NO_SYMLINKS) opens the path. If it meets a link, or the kernel (before 5.6) or a seccomp filter
//! lacks the call, each part is opened with O_NOFOLLOW and its owner is checked. Deliberately absent: files in /proc and
//! /sys that trainit itself chooses.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::{Mode, mkdirat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

/// The number of links that the kernel follows.
const MOST_LINKS: usize = 40;

const NEW_FILE: Mode = Mode::from_bits_truncate(0o666);
const NEW_DIRECTORY: Mode = Mode::from_bits_truncate(0o777);
const ALWAYS: OFlag = OFlag::O_CLOEXEC.union(OFlag::O_NOCTTY);
const LOOK: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
const SEARCH: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// Opens a file. O_TRUNC empties it after it was found trustworthy; a new file has mode 0666 less the umask. Errors: as
/// open(2); `Other` for a link of another user, with a text that says what to do.
pub fn open(path: &Path, flags: OFlag) -> io::Result<File> {
    let kept = flags - OFlag::O_TRUNC;
    let mut file = reach(path, kept)?;
    if has_other_names(&file.metadata()?) {
        // The directory is needed, so the path is walked again and the file is opened again there.
        let found = walk(path, false, true)?;
        file = found.open(kept)?;
        refuse_hard_link(&file, &File::from(found.directory).metadata()?)?;
    }
    if flags.contains(OFlag::O_TRUNC) && file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Opens a file that may have any hard links. Errors: as [`open`].
pub fn reach(path: &Path, flags: OFlag) -> io::Result<File> {
    if path.as_os_str().as_bytes().ends_with(b"/") && flags.contains(OFlag::O_CREAT) {
        return Err(Errno::EISDIR.into());
    }
    let how = OpenHow::new().flags(flags | ALWAYS).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    // openat2 refuses a mode without O_CREAT.
    let how = if flags.contains(OFlag::O_CREAT) { how.mode(NEW_FILE) } else { how };
    match openat2(AT_FDCWD, path, how) {
        Ok(file) => Ok(file.into()),
        // A link, a raced "..", an old kernel, a seccomp filter (which may also say EPERM).
        Err(Errno::ELOOP | Errno::EAGAIN | Errno::ENOSYS | Errno::EPERM | Errno::EINVAL) => {
            walk(path, false, !flags.contains(OFlag::O_NOFOLLOW))?.open(flags)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// The metadata of a path. Errors: as [`open`].
pub fn metadata(path: &Path) -> io::Result<Metadata> {
    reach(path, OFlag::O_PATH)?.metadata()
}

/// Opens the parent directory of a path, and returns the name of the last part. Errors: as [`open`]; EINVAL for a path
/// without a name.
pub fn parent(path: &Path) -> io::Result<(File, OsString)> {
    let name = path.file_name().ok_or(Errno::EINVAL)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((reach(directory, SEARCH)?, name.to_owned()))
}

/// Removes a name that is not a directory's. Errors: as [`open`], unlink(2).
pub fn remove_file(path: &Path) -> io::Result<()> {
    let (directory, name) = parent(path)?;
    Ok(unlinkat(directory, name.as_os_str(), UnlinkatFlags::NoRemoveDir)?)
}

/// Removes an empty directory. Errors: as [`open`], rmdir(2).
pub fn remove_directory(path: &Path) -> io::Result<()> {
    let (directory, name) = parent(path)?;
    Ok(unlinkat(directory, name.as_os_str(), UnlinkatFlags::RemoveDir)?)
}

/// Whether the error is about a link of another user.
pub fn is_refused(error: &io::Error) -> bool {
    error.kind() == ErrorKind::Other
}

/// The path without any link in it. Errors: as [`open`].
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let found = walk(path, false, true)?;
    found.open(OFlag::O_PATH)?;
    Ok(found.real)
}

/// Creates a directory and its missing parents; an existing directory is not an error. Errors: as mkdir(2), [`open`];
/// `AlreadyExists` if the path is something else, including a link to nothing.
pub fn create_directories(path: &Path) -> io::Result<()> {
    let found = walk(path, true, true)?;
    match found.open(SEARCH) {
        Err(error) if error.kind() == ErrorKind::NotFound && !found.is_linked => {}
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Err(ErrorKind::AlreadyExists.into());
        }
        opened => return opened.map(drop),
    }
    match mkdirat(&found.directory, found.name.as_os_str(), NEW_DIRECTORY) {
        // Another process may make it at the same time.
        Err(Errno::EEXIST) => found.open(SEARCH).map(drop),
        made => Ok(made?),
    }
}

/// Refuses a file with several hard links in a directory where another user could have made one of them. Errors:
/// `Other`, with a text that says what to do.
pub fn refuse_hard_link(file: &File, directory: &Metadata) -> io::Result<()> {
    let metadata = file.metadata()?;
    let is_for_all = directory.mode() & 0o022 != 0;
    let is_its_owners = metadata.uid() == directory.uid() && !(is_for_all && is_trusted(metadata.uid()));
    let is_closed = is_trusted(directory.uid()) && !is_for_all;
    if !has_other_names(&metadata) || is_its_owners || is_closed {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "it has {} hard links, and other users may write to its directory, so it may be a file of another place; \
         replace it by a copy (cp, then mv), or name a file in a directory that only this user may write to",
        metadata.nlink()
    )))
}

fn has_other_names(file: &Metadata) -> bool {
    !file.is_dir() && file.nlink() > 1
}

fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// A resolved path: the last part is in this directory, or may be created in it.
struct Found {
    directory: OwnedFd,
    name: OsString,
    /// The kernel follows the last part, a link of /proc that has no path.
    is_magic: bool,
    /// The last part is from a link.
    is_linked: bool,
    /// The whole path without links.
    real: PathBuf,
}

impl Found {
    fn open(&self, flags: OFlag) -> io::Result<File> {
        let itself = if self.is_magic { OFlag::empty() } else { OFlag::O_NOFOLLOW };
        Ok(openat(&self.directory, self.name.as_os_str(), flags | ALWAYS | itself, NEW_FILE)?.into())
    }
}

struct Part {
    name: OsString,
    is_linked: bool,
}

/// Follows a path part by part; `make`: missing directories above the last part are made; `to_end`: the last part is
/// followed, too.
fn walk(path: &Path, make: bool, to_end: bool) -> io::Result<Found> {
    if path.as_os_str().is_empty() {
        return Err(Errno::ENOENT.into());
    }
    let (mut left, mut links) = (Vec::new(), 0);
    let mut real = if path.is_absolute() { PathBuf::from("/") } else { std::env::current_dir().unwrap_or_default() };
    let mut directory = openat(AT_FDCWD, if path.is_absolute() { "/" } else { "." }, SEARCH, Mode::empty())?;
    push(&mut left, path, false);
    while let Some(Part { name, is_linked }) = left.pop() {
        let is_last = left.is_empty();
        if is_last && !to_end && !is_linked {
            real.push(&name);
            return Ok(Found { directory, name, is_magic: false, is_linked, real });
        }
        let opened = match openat(&directory, name.as_os_str(), LOOK, Mode::empty()) {
            Err(Errno::ENOENT) if is_last => {
                real.push(&name);
                return Ok(Found { directory, name, is_magic: false, is_linked, real });
            }
            Err(Errno::ENOENT) if make && is_linked => return Err(ErrorKind::AlreadyExists.into()),
            Err(Errno::ENOENT) if make => {
                match mkdirat(&directory, name.as_os_str(), NEW_DIRECTORY) {
                    Ok(()) | Err(Errno::EEXIST) => {}
                    Err(errno) => return Err(errno.into()),
                }
                openat(&directory, name.as_os_str(), LOOK, Mode::empty())?
            }
            opened => opened?,
        };
        let metadata = File::from(opened.as_fd().try_clone_to_owned()?).metadata()?;
        if metadata.is_symlink() {
            links += 1;
            if links > MOST_LINKS {
                return Err(Errno::ELOOP.into());
            }
            refuse_link(&name, metadata.uid())?;
            let target = PathBuf::from(readlinkat(&opened, "")?);
            if fstatfs(&opened).is_ok_and(|of| of.filesystem_type() == PROC_SUPER_MAGIC) && is_magic(&target) {
                real = target;
                if is_last {
                    return Ok(Found { directory, name, is_magic: true, is_linked, real });
                }
                directory = openat(&directory, name.as_os_str(), SEARCH, Mode::empty())?;
                continue;
            }
            if target.is_absolute() {
                real = PathBuf::from("/");
                directory = openat(AT_FDCWD, "/", SEARCH, Mode::empty())?;
            }
            push(&mut left, &target, true);
            continue;
        }
        if name == ".." {
            real.pop();
        } else {
            real.push(&name);
        }
        if is_last {
            return Ok(Found { directory, name, is_magic: false, is_linked, real });
        }
        directory = opened;
    }
    Ok(Found { directory, name: ".".into(), is_magic: false, is_linked: false, real })
}

/// Adds the parts of a path before the remaining parts; the next part is the last of the list.
fn push(left: &mut Vec<Part>, path: &Path, is_linked: bool) {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let parts: Vec<_> = parts.map(|name| Part { name, is_linked }).collect();
    left.extend(parts.into_iter().rev());
}

/// A link of /proc to an open file, a root or a namespace: its text names another file than its target. Links that are plain
/// text (`self`, `mounts`) are relative.
fn is_magic(target: &Path) -> bool {
    target.is_absolute() || target.to_string_lossy().contains(':')
}

fn refuse_link(name: &OsString, owner: u32) -> io::Result<()> {
    if is_trusted(owner) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{} is a symbolic link of user {owner}, and trainit (user {}) follows only links of its own user and of root, since \
         another user's may lead anywhere; name the place that it leads to, or have root make the link",
        name.display(),
        geteuid()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    const OTHER: u32 = 65534;

    fn is_root() -> bool {
        geteuid().is_root()
    }

    fn write(path: &Path, text: &str) -> io::Result<()> {
        open(path, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC)?.write_all(text.as_bytes())
    }

    fn read(path: &Path) -> io::Result<String> {
        let mut text = String::new();
        open(path, OFlag::O_RDONLY)?.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn links_of_trainits_user_are_followed_in_every_part_of_a_path() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("real")).unwrap();
        symlink("real", at("relative")).unwrap();
        symlink(at("relative"), at("absolute")).unwrap();
        symlink("../real/file", at("real/link")).unwrap();
        write(&at("absolute/../absolute/link"), "text").unwrap();
        assert_eq!(fs::read_to_string(at("real/file")).unwrap(), "text");
        assert_eq!(read(&at("relative/link")).unwrap(), "text");
        assert_eq!(resolve(&at("absolute/link")).unwrap(), fs::canonicalize(at("real/file")).unwrap());
        assert_eq!(metadata(&at("absolute")).unwrap().ino(), fs::metadata(at("real")).unwrap().ino());
        symlink("loop", at("loop")).unwrap();
        assert_eq!(read(&at("loop")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        for absent in ["absent", "absent/below"] {
            assert_eq!(read(&at(absent)).unwrap_err().kind(), ErrorKind::NotFound, "{absent}");
        }
    }

    #[test]
    fn an_open_file_is_reached_through_proc() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("file")).unwrap();
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        write(Path::new(&name), "text").unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("file")).unwrap(), "text");
        assert!(metadata(Path::new("/proc/self/status")).unwrap().is_file());
    }

    #[test]
    fn a_link_of_another_user_is_refused_in_every_part_of_a_path_and_nothing_is_changed() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("real")).unwrap();
        fs::write(at("real/file"), "precious").unwrap();
        for (target, link) in [("real/file", "last"), ("real", "way"), ("last", "own")] {
            symlink(target, at(link)).unwrap();
        }
        lchown(at("last"), Some(OTHER), Some(OTHER)).unwrap();
        lchown(at("way"), Some(OTHER), Some(OTHER)).unwrap();
        for path in ["last", "way/file", "way/new", "own"] {
            let errors = [write(&at(path), "x").unwrap_err(), read(&at(path)).unwrap_err()];
            for error in errors {
                let error = error.to_string();
                assert!(error.contains("symbolic link of user 65534") && error.contains("name the place"), "{error}");
            }
        }
        assert!(resolve(&at("way")).is_err() && metadata(&at("last")).is_err());
        assert!(create_directories(&at("way/below")).is_err());
        assert_eq!(fs::read_to_string(at("real/file")).unwrap(), "precious");
        assert_eq!(fs::read_dir(at("real")).unwrap().count(), 1);
    }

    #[test]
    fn a_hard_link_that_another_user_could_have_made_is_refused_before_the_file_is_emptied() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("secret"), "precious").unwrap();
        for (place, owner, mode, is_fine) in
            [("other", OTHER, 0o755, false), ("shared", 0, 0o1777, false), ("own", 0, 0o755, true)]
        {
            fs::create_dir(at(place)).unwrap();
            fs::set_permissions(at(place), fs::Permissions::from_mode(mode)).unwrap();
            lchown(at(place), Some(owner), None).unwrap();
            let link = at(place).join("link");
            fs::hard_link(at("secret"), &link).unwrap();
            assert_eq!(read(&link).is_ok(), is_fine, "{place}");
            assert_eq!(open(&link, OFlag::O_WRONLY | OFlag::O_APPEND).is_ok(), is_fine, "{place}");
            if !is_fine {
                let error = write(&link, "x").unwrap_err().to_string();
                assert!(error.contains("hard links") && error.contains("copy"), "{error}");
            }
        }
        assert_eq!(fs::read_to_string(at("secret")).unwrap(), "precious");
        // A user's own file with two names in a directory of that user.
        fs::write(at("other/own"), "text").unwrap();
        lchown(at("other/own"), Some(OTHER), None).unwrap();
        fs::hard_link(at("other/own"), at("other/again")).unwrap();
        assert_eq!(read(&at("other/again")).unwrap(), "text");
    }

    #[test]
    fn directories_are_made_but_not_through_a_link_without_a_target() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for _ in 0..2 {
            create_directories(&at("a/b/c")).unwrap();
        }
        assert!(at("a/b/c").is_dir());
        symlink("nowhere", at("dangling")).unwrap();
        fs::write(at("file"), "").unwrap();
        for path in ["dangling", "dangling/below", "file"] {
            assert_eq!(create_directories(&at(path)).unwrap_err().kind(), ErrorKind::AlreadyExists, "{path}");
        }
        assert!(!at("nowhere").exists());
        symlink("a", at("link")).unwrap();
        create_directories(&at("link")).unwrap();
        create_directories(&at("link/new")).unwrap();
        assert!(at("a/new").is_dir());
    }
}

//! Replaces a file atomically: a reader finds the old content or the new content.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use nix::fcntl::{AtFlags, OFlag, renameat};
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::edge::fs::trusted_open;
use crate::edge::process::spawn;

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY);
const NEW: OFlag =
    OFlag::O_WRONLY.union(OFlag::O_CREAT).union(OFlag::O_EXCL).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Replaces the file, and makes missing directories. No link of a less privileged user is followed; a link at the path
/// itself is replaced; a device or a directory is refused. Errors: as open(2), write(2) and rename(2).
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(ErrorKind::IsADirectory)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    trusted_open::create_directories(parent)?;
    let directory = trusted_open::open(parent, DIRECTORY)?;
    let existing = fstatat(&directory, name, AtFlags::AT_SYMLINK_NOFOLLOW).map(|stat| stat.st_mode & libc::S_IFMT);
    if !matches!(existing, Err(_) | Ok(libc::S_IFREG | libc::S_IFLNK)) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut new = OsString::from(".");
    new.push(name);
    new.push(format!(".{}.new", spawn::own_pid()));
    // A file of this name is from an earlier process.
    let _ = unlinkat(&directory, new.as_os_str(), UnlinkatFlags::NoRemoveDir);
    let mode = Mode::from_bits_truncate(0o666);
    let file = nix::fcntl::openat(&directory, new.as_os_str(), NEW, mode)?;
    let written = std::fs::File::from(file)
        .write_all(content)
        .and_then(|()| Ok(renameat(&directory, new.as_os_str(), &directory, name)?));
    written.inspect_err(|_| {
        let _ = unlinkat(&directory, new.as_os_str(), UnlinkatFlags::NoRemoveDir);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_is_replaced_with_its_missing_directories_and_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a/b/report.html");
        for content in ["one", "two"] {
            replace(&path, content.as_bytes()).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("the file"), content);
        }
        assert_eq!(fs::read_dir(dir.path().join("a/b")).expect("the directory").count(), 1);
    }

    #[test]
    fn a_link_is_replaced_and_its_target_is_untouched() {
        let dir = tempfile::tempdir().expect("a directory");
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "kept").expect("a file");
        symlink(&target, &link).expect("a link");
        replace(&link, b"new").expect("written");
        assert_eq!(fs::read_to_string(&target).expect("the file"), "kept");
        assert!(fs::symlink_metadata(&link).expect("a file").is_file());
    }

    #[test]
    fn a_directory_and_a_device_are_not_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        for path in [dir.path(), Path::new("/dev/null"), Path::new("/")] {
            assert!(replace(path, b"x").is_err(), "{}", path.display());
        }
    }
}

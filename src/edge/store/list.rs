//! Objects in a listing, and the listing of a directory.

use std::io;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, fstat};

use super::staged::is_absent;
use crate::edge::fs::rooted_dir::open_dir::OpenDir;
use crate::edge::fs::trusted_open;
use crate::rules::checkpoint::listing::{join, name_of};
use crate::rules::store::names::is_half_written;

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Relative to the prefix.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// Time of the last change, since 1970 by the store's clock.
    pub modified: Duration,
    /// The bucket's tag for this version of it.
    pub tag: Option<String>,
}

/// Calls `each` for every entry below a directory that is not a directory itself, with its key. Links to directories and
/// unreadable directories (`lost+found`) are not entered. Errors: as readdir(3), those of `each`.
pub(super) fn visit(
    root: &Path,
    from: String,
    mut each: impl FnMut(String, &FileStat) -> io::Result<()>,
) -> io::Result<()> {
    let mut left = vec![from.clone()];
    while let Some(at) = left.pop() {
        let directory = root.join(&at);
        let opened = OpenDir::open(&directory).and_then(|mut opened| Ok((opened.names(usize::MAX)?, opened)));
        let (names, opened) = match opened {
            // A listing may start at an absent directory, but not at a file or a dangling link.
            Err(error) if at == from && is_absent(&error) => match directory.symlink_metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                _ => return Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
            },
            Err(error) if at != from && (is_absent(&error) || error.raw_os_error() == Some(libc::EACCES)) => continue,
            opened => opened?,
        };
        for name in names {
            // Keys are UTF-8.
            let Some(key) = name.to_str().ok().map(|text| join(&at, text)) else { continue };
            match opened.look(&name) {
                Ok(stat) if stat.st_mode & libc::S_IFMT == libc::S_IFDIR => left.push(key),
                Ok(stat) => each(key, &stat)?,
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// A file or the target of a link to one; `None` for anything else.
pub(super) fn object(root: &Path, key: String, found: &FileStat) -> Option<Object> {
    match found.st_mode & libc::S_IFMT {
        libc::S_IFREG => Some(of_file(key, found)),
        // A link may be dangling, a loop, or of another user.
        libc::S_IFLNK => look(&root.join(&key)).ok().filter(is_file).map(|target| of_file(key, &target)),
        _ => None,
    }
}

/// The result of stat(2) for a path. Errors: as [`trusted_open::open`].
pub(super) fn look(path: &Path) -> io::Result<FileStat> {
    Ok(fstat(trusted_open::reach(path, OFlag::O_PATH)?)?)
}

pub(super) fn is_file(found: &FileStat) -> bool {
    found.st_mode & libc::S_IFMT == libc::S_IFREG
}

pub(super) fn of_file(key: String, found: &FileStat) -> Object {
    Object { key, size: found.st_size.cast_unsigned(), modified: modified(found), tag: None }
}

pub(super) fn modified(found: &FileStat) -> Duration {
    let seconds = u64::try_from(found.st_mtime).unwrap_or(0);
    Duration::new(seconds, u32::try_from(found.st_mtime_nsec).unwrap_or(0))
}

/// The key of a temporary file (`NAME#k`).
pub(super) fn staged_for(path: &str) -> Option<&str> {
    let (key, _) = path.rsplit_once('#')?;
    let is_staged = is_half_written(name_of(path)) && !name_of(key).contains('#');
    is_staged.then_some(key)
}

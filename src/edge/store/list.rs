//! Objects in a listing, and the listing of a directory.

use std::fs::{self, DirEntry};
use std::io;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use nix::fcntl::OFlag;

use super::staged::is_absent;
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
    mut each: impl FnMut(String, &DirEntry) -> io::Result<()>,
) -> io::Result<()> {
    let mut left = vec![from.clone()];
    while let Some(at) = left.pop() {
        let directory = root.join(&at);
        let opened = trusted_open::reach(&directory, OFlag::O_PATH | OFlag::O_DIRECTORY);
        let names = match opened.and_then(|_| fs::read_dir(&directory)) {
            // A listing may start at an absent directory, but not at a file or a dangling link.
            Err(error) if at == from && is_absent(&error) => match directory.symlink_metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                _ => return Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
            },
            Err(error) if at != from && (is_absent(&error) || error.raw_os_error() == Some(libc::EACCES)) => continue,
            names => names?,
        };
        for entry in names {
            let entry = entry?;
            // Keys are UTF-8.
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

/// A file or the target of a link to one; `None` for anything else and for a file deleted meanwhile.
pub(super) fn object(key: String, entry: &DirEntry) -> io::Result<Option<Object>> {
    let metadata = match entry.metadata() {
        // A link may be dangling, a loop, or of another user.
        Ok(metadata) if metadata.is_symlink() => trusted_open::metadata(&entry.path()).ok(),
        Ok(metadata) => Some(metadata),
        Err(error) if is_absent(&error) => None,
        Err(error) => return Err(error),
    };
    let file = metadata.filter(fs::Metadata::is_file);
    Ok(file.map(|metadata| of_file(key, &metadata)))
}

pub(super) fn of_file(key: String, metadata: &fs::Metadata) -> Object {
    Object { key, size: metadata.len(), modified: modified(metadata), tag: None }
}

pub(super) fn modified(metadata: &fs::Metadata) -> Duration {
    let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
    modified.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The key of a temporary file (`NAME#k`).
pub(super) fn staged_for(path: &str) -> Option<&str> {
    let (key, _) = path.rsplit_once('#')?;
    let is_staged = is_half_written(name_of(path)) && !name_of(key).contains('#');
    is_staged.then_some(key)
}

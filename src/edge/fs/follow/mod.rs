//! Reads files of another process while they grow: one file by name, or all files of a kind in a folder. Bytes that existed
//! at the first look are skipped; each later byte is reported once.
//!
//! Polling instead of inotify(7), which misses writes from other machines on a network mount. Deliberately absent: when to
//! poll.

mod folder;
mod named;

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

pub use folder::{Folder, Part};
pub use named::Named;

/// The size of one read.
const SLICE_BYTES: usize = 256 << 10;

/// A skipped first line is reported up to this length.
const HEAD_BYTES: usize = 64 << 10;

/// The most bytes read from one file in one poll.
const LOOK_BYTES: u64 = 4 << 20;

/// The result of a poll.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// The first line of the skipped bytes, if it is short: it may be the header of a table.
    Before(&'a [u8]),
    /// The next bytes.
    Bytes(&'a [u8]),
    /// The end of these bytes: another file follows, or the same one rewritten.
    End,
}

/// A file of a [`Folder`], by device and inode.
pub type Id = (u64, u64);

fn identity(metadata: &Metadata) -> Id {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::path::{Path, PathBuf};

    pub(super) fn append(path: &Path, text: &str) {
        let mut file = OpenOptions::new().append(true).create(true).open(path).expect("opens");
        file.write_all(text.as_bytes()).expect("writes");
    }

    pub(super) fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("log");
        (dir, path)
    }
}

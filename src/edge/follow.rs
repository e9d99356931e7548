//! Files that somebody else writes, read while they grow: one by its name, or all of a kind in a folder. What they held at
//! the first look is passed over; each byte after that is told once.
//!
//! By looking, not by inotify(7): that misses what a network mount's other side writes. Deliberately absent: when to look.

mod folder;
mod named;

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

pub use folder::{Folder, Part};
pub use named::Named;

/// What is read of one file at once.
const SLICE_BYTES: usize = 256 << 10;

/// What is read of one file in one look.
const LOOK_BYTES: u64 = 4 << 20;

/// What a look found.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// The next bytes.
    Bytes(&'a [u8]),
    /// Nothing more comes of these bytes: what follows is another file, or the same one written anew.
    End,
}

/// One of the files of a [`Folder`], whatever its name.
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

//! A file of a store that is a directory, written under `NAME#k` beside its place and then linked or renamed into it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;

use crate::edge::store::http::progress::Progress;

/// Bytes written at a time, after each of which it is known that the file system takes them.
pub(super) const STEP: usize = 1 << 20;
/// Names that are tried for one staged file, and how often its directory is made: another process may remove it again.
const NAMES: u32 = 10_000;
const MAKES: u32 = 3;

/// How a file comes into its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placing {
    /// An error where there is one; flushed to the device.
    Durably,
    /// An error where there is one.
    Newly,
    /// In the place of the one that is there.
    Over,
}

/// A file that is written beside its place. Dropped before it is placed, it is removed.
#[derive(Debug)]
pub(super) struct Staged {
    file: File,
    at: PathBuf,
    to: PathBuf,
    /// The name may be another's by now.
    is_removed: AtomicBool,
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Staged {
    pub(super) fn remove(&self) {
        if !self.is_removed.swap(true, Relaxed) {
            // Gone after it was placed.
            let _ = fs::remove_file(&self.at);
        }
    }

    pub(super) fn new(root: &Path, key: &str) -> io::Result<Staged> {
        let to = root.join(key);
        let mut makes = 0..MAKES;
        for number in 1..NAMES {
            let at = root.join(format!("{key}#{number}"));
            match File::create_new(&at) {
                Ok(file) => return Ok(Staged { file, at, to, is_removed: AtomicBool::new(false) }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if is_absent(&error) && makes.next().is_some() => {
                    make_directory(to.parent().unwrap_or(root))?;
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Writes them from an offset on.
    pub(super) fn write(&self, mut from: u64, blocks: &[Bytes], progress: &Progress) -> io::Result<()> {
        for piece in blocks.iter().flat_map(|block| block.chunks(STEP)) {
            self.file.write_all_at(piece, from)?;
            progress.moved(piece.len());
            from += piece.len() as u64;
        }
        Ok(())
    }

    pub(super) fn place(self, root: &Path, how: Placing) -> io::Result<()> {
        if how == Placing::Durably {
            self.file.sync_all()?;
        }
        match how {
            Placing::Over => fs::rename(&self.at, &self.to)?,
            _ => fs::hard_link(&self.at, &self.to)?,
        }
        if how == Placing::Durably {
            above(root, &self.to).try_for_each(|directory| File::open(directory)?.sync_all())?;
        }
        Ok(())
    }
}

/// The directories that a path lies in, up to the root.
pub(super) fn above<'a>(root: &'a Path, path: &'a Path) -> impl Iterator<Item = &'a Path> {
    path.ancestors().skip(1).take_while(move |directory| directory.starts_with(root))
}

pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    // mkdir(2) says of a file in a directory's place that it exists.
    let is_a_file = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
    fs::create_dir_all(path)
        .map_err(|error| if is_a_file(&error) { io::Error::from_raw_os_error(libc::ENOTDIR) } else { error })
}

/// Nothing is there, or nothing can be there.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG))
}

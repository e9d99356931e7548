//! A file of a store that is a directory, written under `NAME#k` beside its place and then linked or renamed into it.
//! Links of another user are not followed ([`trusted_open`]).

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use crate::edge::fs::trusted_open;
use crate::edge::store::http::progress::Progress;

/// Bytes written at a time, after each of which it is known that the file system takes them.
pub(super) const STEP: usize = 1 << 20;
/// Names that are tried for one staged file.
const NAMES: u32 = 10_000;
const NEW_FILE: Mode = Mode::from_bits_truncate(0o666);

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
    /// The directory of both names, so that a link that takes its place later is not followed.
    directory: File,
    at: OsString,
    name: OsString,
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
            let _ = unlinkat(&self.directory, self.at.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }

    pub(super) fn new(root: &Path, key: &str) -> io::Result<Staged> {
        let to = root.join(key);
        for number in 1..NAMES {
            match Staged::create(&to, number) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                // Another process may remove the directory again, because it is empty.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    make_directory(to.parent().unwrap_or(root)).or_else(unless_absent)?;
                }
                made => return made,
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn create(to: &Path, number: u32) -> io::Result<Staged> {
        let (directory, name) = trusted_open::parent(to)?;
        let mut at = name.clone();
        at.push(format!("#{number}"));
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = File::from(openat(&directory, at.as_os_str(), flags, NEW_FILE)?);
        Ok(Staged { file, directory, at, name, to: to.to_owned(), is_removed: AtomicBool::new(false) })
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

    pub(super) fn place(&self, root: &Path, how: Placing) -> io::Result<()> {
        if how == Placing::Durably {
            self.file.sync_all()?;
        }
        let (directory, at, name) = (&self.directory, self.at.as_os_str(), self.name.as_os_str());
        match how {
            Placing::Over => renameat(directory, at, directory, name)?,
            _ => linkat(directory, at, directory, name, AtFlags::empty())?,
        }
        if how == Placing::Durably {
            above(root, &self.to).try_for_each(sync_directory)?;
        }
        self.remove();
        Ok(())
    }
}

/// The parent directories of a path, up to the root.
pub(super) fn above<'a>(root: &'a Path, path: &'a Path) -> impl Iterator<Item = &'a Path> {
    path.ancestors().skip(1).take_while(move |directory| directory.starts_with(root))
}

pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    trusted_open::reach(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?.sync_all()
}

pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    // mkdir(2) says of a file in a directory's place that it exists.
    let is_a_file = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
    trusted_open::create_directories(path)
        .map_err(|error| if is_a_file(&error) { io::Error::from_raw_os_error(libc::ENOTDIR) } else { error })
}

fn unless_absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Nothing is there, or nothing can be there.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG))
}

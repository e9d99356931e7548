//! Files of a store that is a directory. Each is written as `NAME#k`, then linked or renamed to `NAME`. Links of another user
//! are not followed ([`trusted_open`]).

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

/// Bytes written between two reports of progress.
pub(super) const STEP: usize = 1 << 20;
/// Names that are tried for one staged file.
const NAMES: u32 = 10_000;
const NEW_FILE: Mode = Mode::from_bits_truncate(0o666);

/// How a file is put in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placing {
    /// Fails if the file exists; flushed to the device.
    Durably,
    /// Fails if the file exists.
    Newly,
    /// Replaces the file if it exists.
    Over,
}

/// A file that is written under its temporary name, which is removed on drop.
#[derive(Debug)]
pub(super) struct Staged {
    file: File,
    /// The directory of both names, open so that a link that replaces it later is not followed.
    directory: File,
    at: OsString,
    name: OsString,
    to: PathBuf,
    /// After the removal another process may use the name.
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
            // It does not exist after a rename.
            let _ = unlinkat(&self.directory, self.at.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }

    pub(super) fn new(root: &Path, key: &str) -> io::Result<Staged> {
        let to = root.join(key);
        for number in 1..NAMES {
            match Staged::create(&to, number) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                // Another process may have removed the empty directory.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let made = make_directory(to.parent().unwrap_or(root));
                    made.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
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
    // mkdir(2) fails with EEXIST where a file is in the directory's place.
    let is_a_file = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
    trusted_open::create_directories(path)
        .map_err(|error| if is_a_file(&error) { io::Error::from_raw_os_error(libc::ENOTDIR) } else { error })
}

/// Nothing exists, or can exist, under this name.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG))
}

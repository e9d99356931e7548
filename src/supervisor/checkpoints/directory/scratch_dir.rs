//! Directories under `.trainit` of one process, for files that it fetches and for its hard links. Other processes, also on
//! other machines, may use the same checkpoint directory.
//!
//! A killed process leaves its directory behind, and the next process removes it. A directory is alive while its lock is held.
//! On a network file system a lock may not be seen from another machine: there a directory is alive while its lock file is
//! touched.

use std::fs::{File, TryLockError};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::edge::clock::Clock;
use crate::edge::fs::rooted_dir::{RootedDir, touch};
use crate::edge::host::dmi;
use crate::edge::transfer::blocking::blocking;
use crate::supervisor::checkpoints::directory::disk::{LOCK, nonce};

/// Between two touches of a live directory's lock file.
const BEAT: Duration = Duration::from_secs(30);
/// A directory that was not touched for this long is dead, if its lock cannot be checked.
const ABANDONED: Duration = Duration::from_secs(300);
/// Another restore installs its files within this time, or hangs.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The pause between two tries to take the lock.
const PAUSE: Duration = Duration::from_millis(20);
/// A directory may be swept while it is created; each try creates another.
const TRIES: u32 = 5;

/// A directory of this process's own.
#[derive(Debug)]
pub(crate) struct ScratchDir {
    within: String,
    path: String,
    lock: Arc<File>,
    beat: AbortHandle,
}

impl ScratchDir {
    /// Creates one. Errors: as mkdir(2), open(2).
    pub(crate) fn take(dir: &RootedDir, within: &str) -> io::Result<ScratchDir> {
        let mut tries = 0;
        loop {
            tries += 1;
            match ScratchDir::make(dir, within) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
                made => return made,
            }
        }
    }

    fn make(dir: &RootedDir, within: &str) -> io::Result<ScratchDir> {
        dir.create_directory(within)?;
        let path = format!("{within}/{}{}", mount(dir, within)?, nonce());
        let at = format!("{path}/lock");
        let lock = Arc::new(dir.create_file(&at)?);
        // A concurrent sweep may hold the lock or have removed the file.
        if matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) || dir.look(&at)?.is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let touched = Arc::clone(&lock);
        let beat = tokio::spawn(async move {
            loop {
                tokio::time::sleep(BEAT).await;
                let touched = Arc::clone(&touched);
                let _ = blocking(move || touch(&touched)).await;
            }
        });
        Ok(ScratchDir { within: within.to_owned(), path, lock, beat: beat.abort_handle() })
    }

    /// [`ScratchDir::take`] on a thread for file work.
    pub(crate) async fn begin(dir: &Arc<RootedDir>, within: &'static str) -> io::Result<ScratchDir> {
        let dir = Arc::clone(dir);
        blocking(move || ScratchDir::take(&dir, within)).await
    }

    /// Removes it on a thread for file work. After a failure a later sweep removes it.
    pub(crate) async fn give_up(self, dir: &Arc<RootedDir>) {
        let dir = Arc::clone(dir);
        let _ = blocking(move || self.remove(&dir)).await;
    }

    pub(crate) fn files(&self) -> String {
        format!("{}/files", self.path)
    }

    /// Errors: as unlink(2).
    pub(crate) fn remove(self, dir: &RootedDir) -> io::Result<()> {
        dir.remove_tree(&self.path)?;
        dir.remove_empty(&self.within)
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        self.beat.abort();
        // The task closes its file later.
        let _ = self.lock.unlock();
    }
}

/// Removes the directories of dead processes. Errors: as unlink(2); the rest stays.
pub(crate) fn sweep(dir: &RootedDir, within: &str) -> io::Result<()> {
    let names = dir.names(within)?;
    if names.is_empty() {
        return dir.remove_empty(within);
    }
    let (mount, now) = (mount(dir, within)?, now(dir)?);
    for name in names {
        let place = format!("{within}/{name}");
        let at = format!("{place}/lock");
        // Held until the directory is removed, so that no other process takes it.
        let lock = dir.open_lock(&at);
        let is_dead = match lock.as_ref().map(File::try_lock) {
            Ok(Err(TryLockError::WouldBlock)) => continue,
            Ok(Ok(())) => name.starts_with(&mount),
            _ => false,
        };
        let touched = if lock.is_ok() { dir.look(&at)? } else { dir.look(&place)? };
        let is_old = |touched: i64| now.saturating_sub(touched) > ABANDONED.as_nanos() as i64;
        if is_dead || touched.is_some_and(|entry| is_old(entry.mtime_ns)) {
            dir.remove_tree(&place)?;
        }
    }
    dir.remove_empty(within)
}

/// Waits for the lock to install files, and holds it until the file is dropped. `None`: locks are not supported, or the holder
/// hangs; the caller then relies on its checks before and after.
pub(crate) async fn turn(dir: &Arc<RootedDir>) -> Option<File> {
    let (dir, clock) = (Arc::clone(dir), Clock::start());
    let mut file = blocking(move || dir.lock_file(LOCK)).await.ok()?;
    loop {
        let (tried, same) = blocking(move || Ok((file.try_lock(), file))).await.ok()?;
        file = same;
        match tried {
            Ok(()) => return Some(file),
            Err(TryLockError::WouldBlock) if clock.now() < TIMEOUT => tokio::time::sleep(PAUSE).await,
            Err(_) => return None,
        }
    }
}

/// A name for this mount on this kernel, within which locks work on any file system.
fn mount(dir: &RootedDir, within: &str) -> io::Result<String> {
    let device = dir.look(within)?.ok_or(io::ErrorKind::NotFound)?.device;
    Ok(format!("{}-{device:x}-", dmi::boot_id().unwrap_or_else(nonce)))
}

/// The file system's time, nanoseconds since 1970. The clocks of machines may differ.
pub(crate) fn now(dir: &RootedDir) -> io::Result<i64> {
    touch(&dir.lock_file(LOCK)?)?;
    Ok(dir.look(LOCK)?.ok_or(io::ErrorKind::NotFound)?.mtime_ns)
}

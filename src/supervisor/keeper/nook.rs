//! Places under `.trainit` that one process has for itself: for what it fetches, and for its pins. Others, on other
//! machines too, may use the same checkpoint directory.
//!
//! A killed process leaves its place behind, and any other sweeps it. A place is alive while its lock is held. Where locks
//! may not reach from mount to mount, as on some network file systems, it is alive while its lock file is touched. On a disk
//! they do: one that moves to another machine with its volume has no room to wait for what the last one left there.
//! Nothing but room depends on that: whoever loses a place that was alive finds its files missing, and says so.

use std::fs::{File, TryLockError};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;

use super::claim::nonce;
use super::mirror::{OURS, blocking};
use crate::edge::beneath::{Beneath, touch};
use crate::edge::clock::Clock;
use crate::edge::machine;

/// Between two touches of a place that is alive.
const BEAT: Duration = Duration::from_secs(30);
/// What was not touched for so long is dead, if no lock can tell.
const ABANDONED: Duration = Duration::from_secs(300);
/// Another restore puts what it fetched in place within this time, or hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at the lock.
const PAUSE: Duration = Duration::from_millis(20);
/// A place may be swept while it is made; each try makes another.
const TRIES: u32 = 5;

/// A place of this process's own.
#[derive(Debug)]
pub(super) struct Nook {
    within: String,
    path: String,
    lock: Arc<File>,
    beat: AbortHandle,
}

impl Nook {
    /// Makes one; its directories come with the first file. Errors: as mkdir(2), open(2).
    pub(super) fn take(dir: &Beneath, within: &str) -> io::Result<Nook> {
        let mut tries = 0;
        loop {
            tries += 1;
            match Nook::make(dir, within) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
                made => return made,
            }
        }
    }

    fn make(dir: &Beneath, within: &str) -> io::Result<Nook> {
        dir.create_directory(within)?;
        let path = format!("{within}/{}{}", mount(dir, within)?, nonce());
        let at = format!("{path}/lock");
        let lock = Arc::new(dir.create_file(&at)?);
        // Whoever swept it before the lock was ours has the lock, or has taken it away.
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
        Ok(Nook { within: within.to_owned(), path, lock, beat: beat.abort_handle() })
    }

    /// Where files are put.
    pub(super) fn files(&self) -> String {
        format!("{}/files", self.path)
    }

    /// Removes it with all it holds. Errors: as unlink(2).
    pub(super) fn remove(self, dir: &Beneath) -> io::Result<()> {
        dir.remove_tree(&self.path)?;
        dir.remove_empty(&self.within)
    }
}

impl Drop for Nook {
    fn drop(&mut self) {
        self.beat.abort();
        // The beat lets go of the file later.
        let _ = self.lock.unlock();
    }
}

/// Removes the places of the dead. Errors: as unlink(2); the others stay then.
pub(super) fn sweep(dir: &Beneath, within: &str) -> io::Result<()> {
    let names = dir.names(within)?;
    if names.is_empty() {
        return dir.remove_empty(within);
    }
    let (ours, now, is_disk) = (mount(dir, within)?, now(dir)?, is_disk(dir, within)?);
    for name in names {
        let place = format!("{within}/{name}");
        let at = format!("{place}/lock");
        // Held until the place is gone, so that nobody else thinks it is theirs.
        let lock = dir.open_lock(&at);
        let is_told = match lock.as_ref().map(File::try_lock) {
            Ok(Err(TryLockError::WouldBlock)) => continue,
            Ok(Ok(())) => is_disk || name.starts_with(&ours),
            _ => false,
        };
        let touched = if lock.is_ok() { dir.look(&at)? } else { dir.look(&place)? };
        let is_old = |touched: i64| now.saturating_sub(touched) > ABANDONED.as_nanos() as i64;
        if is_told || touched.is_some_and(|entry| is_old(entry.mtime_ns)) {
            dir.remove_tree(&place)?;
        }
    }
    dir.remove_empty(within)
}

/// Waits until nobody else puts things in place; the turn lasts as long as the file is kept. `None`: there are no locks
/// here, or somebody has it and hangs; what is looked at before and after then has to do.
pub(super) async fn turn(dir: &Arc<Beneath>) -> Option<File> {
    let (dir, clock) = (Arc::clone(dir), Clock::start());
    let mut file = blocking(move || dir.lock_file(OURS)).await.ok()?;
    loop {
        let (tried, same) = blocking(move || Ok((file.try_lock(), file))).await.ok()?;
        file = same;
        match tried {
            Ok(()) => return Some(file),
            Err(TryLockError::WouldBlock) if clock.now() < PATIENCE => tokio::time::sleep(PAUSE).await,
            Err(_) => return None,
        }
    }
}

/// What names the same mount on the same kernel, within which a lock is a lock on any file system.
fn mount(dir: &Beneath, within: &str) -> io::Result<String> {
    let device = dir.look(within)?.ok_or(io::ErrorKind::NotFound)?.device;
    Ok(format!("{}-{device:x}-", machine::boot_id().unwrap_or_else(nonce)))
}

/// Whether the file system lies on a block device: one kernel has it at a time, or those that share it share its locks.
fn is_disk(dir: &Beneath, within: &str) -> io::Result<bool> {
    let device = dir.look(within)?.ok_or(io::ErrorKind::NotFound)?.device;
    Ok(libc::major(device) != 0)
}

/// The file system's own clock, nanoseconds since 1970: machines may not agree on the time.
fn now(dir: &Beneath) -> io::Result<i64> {
    touch(&dir.lock_file(OURS)?)?;
    Ok(dir.look(OURS)?.ok_or(io::ErrorKind::NotFound)?.mtime_ns)
}

#[cfg(test)]
mod tests {
    use super::super::mirror::TEMPORARY;
    use super::*;

    #[test]
    fn what_another_kernel_left_with_a_free_lock_is_swept_at_once_on_a_disk_and_only_there() {
        for place in [tempfile::tempdir(), tempfile::tempdir_in("/dev/shm")].into_iter().flatten() {
            let dir = Beneath::create(place.path()).expect("is made");
            let left = format!("{TEMPORARY}/another-kernel-1");
            dir.create_file(&format!("{left}/lock")).expect("is made");
            let is_disk = is_disk(&dir, TEMPORARY).expect("is there");
            sweep(&dir, TEMPORARY).expect("sweeps");
            assert_eq!(dir.look(&left).expect("looks").is_none(), is_disk, "{}", place.path().display());
        }
    }
}

//! The files of one commit on their way in: fetched part by part, summed, written beside their place. Which commit, and
//! where the files end up, is decided in `restore`.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::mirror::{Mirror, MirrorError, away, blocking};
use crate::edge::beneath::{Beneath, finish_file, write_sparsely};
use crate::edge::store::{Store, StoreError, Trouble};
use crate::rules::checkpoint::manifest::{Item, ItemKind, Manifest, hex};

/// Bytes fetched at a time.
const PART: u64 = 8 << 20;
/// Files under way at once.
const CONCURRENCY: usize = 4;

/// Why a commit did not come into place.
pub(super) enum Stop {
    /// This commit is no good; an older one may be.
    Reject(String),
    /// No commit will do better.
    Fatal(MirrorError),
}

impl Mirror {
    /// Fetches what is not here already into the temporary place, durably.
    pub(super) async fn fetch(
        &self,
        store: &Store,
        dir: &Arc<Beneath>,
        manifest: &Manifest,
        equal: &HashSet<String>,
        temporary: &str,
    ) -> Result<(), Stop> {
        let local = |error: io::Error| Stop::Fatal(self.unusable(&error));
        let whole_unit = manifest.is_directory();
        let files = manifest.regular().filter(|f| whole_unit || !equal.contains(&f.path)).map(|item| {
            let to = format!("{temporary}/{}", item.path);
            let is_here = equal.contains(&item.path);
            async move {
                // What is here already gets a second name; where that cannot be, it is fetched like the rest.
                if !(is_here && dir.link(&item.path, &to).is_ok()) {
                    self.fetch_file(store, dir, item, &to).await?;
                }
                self.config.faults.point(21);
                Ok(())
            }
        });
        stream::iter(files).buffer_unordered(CONCURRENCY).try_collect::<()>().await?;
        for item in manifest.files.iter().filter(|f| f.kind != ItemKind::File) {
            let to = format!("{temporary}/{}", item.path);
            match (item.kind, &item.target) {
                (ItemKind::Symlink, Some(target)) if whole_unit => dir.link_symbolically(&to, target).map_err(local)?,
                (ItemKind::Directory, _) => dir.create_directory(&to).map_err(local)?,
                _ => {}
            }
        }
        let flushed = Arc::clone(dir);
        blocking(move || flushed.sync_all()).await.map_err(local)
    }

    async fn fetch_file(&self, store: &Store, dir: &Arc<Beneath>, item: &Item, to: &str) -> Result<(), Stop> {
        let local = |error: io::Error| {
            Stop::Fatal(match error.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT) => MirrorError::store(format!(
                    "no space left in {} while restoring {}; what was written of it is removed, nothing else; free space there",
                    self.config.dir.display(),
                    item.path
                )),
                _ => self.unusable(&error),
            })
        };
        let file = dir.create_file(to).map_err(local)?;
        let (size, sums) = match &item.chunks {
            Some(chunks) => (chunks.size, chunks.crc32c.clone()),
            None => (item.size.max(1), vec![item.crc32c.clone(); usize::from(item.size > 0)]),
        };
        let mut whole = 0;
        for (number, wanted) in sums.iter().enumerate() {
            let from = number as u64 * size;
            let length = size.min(item.size - from);
            // A chunk that came damaged is fetched once more, written without holes over what the first try left.
            let mut crc = self.fetch_chunk(store, &file, item, from, length, true).await?.map_err(local)?;
            if hex(crc) != *wanted {
                crc = self.fetch_chunk(store, &file, item, from, length, false).await?.map_err(local)?;
            }
            if hex(crc) != *wanted {
                return Err(Stop::Reject(format!("{} does not match its checksum in the store", item.path)));
            }
            whole = crc32c::crc32c_combine(whole, crc, length as usize);
            self.transfer.moved(length);
        }
        if hex(whole) != item.crc32c {
            return Err(Stop::Reject(format!("{} does not match its checksum in the manifest", item.path)));
        }
        finish_file(&file, item.size, item.mode, item.mtime_ns).map_err(local)?;
        Ok(())
    }

    /// Fetches and writes a run of bytes; returns their checksum. The inner error is the disk's.
    async fn fetch_chunk(
        &self,
        store: &Store,
        file: &File,
        item: &Item,
        from: u64,
        length: u64,
        sparsely: bool,
    ) -> Result<io::Result<u32>, Stop> {
        let mut crc = 0;
        let mut at = from;
        while at < from + length {
            let wanted = PART.min(from + length - at);
            let bytes = store.get_range(&item.key, at, wanted).await.map_err(|error| unreadable(item, &error))?;
            let writer = match file.try_clone() {
                Ok(writer) => writer,
                Err(error) => return Ok(Err(error)),
            };
            let written = blocking(move || {
                if sparsely {
                    write_sparsely(&writer, at, &bytes)?
                } else {
                    writer.write_all_at(&bytes, at)?
                }
                Ok(crc32c::crc32c_append(crc, &bytes))
            });
            crc = match written.await {
                Ok(crc) => crc,
                Err(error) => return Ok(Err(error)),
            };
            at += wanted;
        }
        Ok(Ok(crc))
    }
}

fn unreadable(item: &Item, error: &StoreError) -> Stop {
    match error.trouble {
        Trouble::Absent | Trouble::Other => Stop::Reject(format!("{} cannot be read: {error}", item.path)),
        Trouble::Denied | Trouble::Full => Stop::Fatal(away(error)),
    }
}

/// Reads every byte of a commit and compares the checksums. Errors: the first that does not match, or the store's.
pub(super) async fn verify_deeply(store: &Store, manifest: &Manifest) -> Result<Result<(), String>, StoreError> {
    for item in manifest.regular() {
        let (mut crc, mut at) = (0, 0);
        while at < item.size {
            let wanted = PART.min(item.size - at);
            let bytes = store.get_range(&item.key, at, wanted).await?;
            crc = crc32c::crc32c_append(crc, &bytes);
            at += wanted;
        }
        if hex(crc) != item.crc32c {
            return Ok(Err(format!("{} does not match its checksum", item.path)));
        }
    }
    Ok(Ok(()))
}

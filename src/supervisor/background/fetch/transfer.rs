//! Transfers the files of one fetch from the store into the directory.

use std::cell::Cell;
use std::convert::Infallible;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::Semaphore;

use super::Fetch;
use crate::edge::clock::Clock;
use crate::edge::fs::rooted_dir::{RootedDir, finish_file};
use crate::edge::store::{ObjectInfo, Store, StoreError};
use crate::edge::transfer::blocking::blocking;
use crate::edge::transfer::ranges::{BLOCK, fetch_range};
use crate::edge::transfer::threads::TransferThreads;
use crate::rules::store::address::Address;
use crate::rules::store::fetch::index::{self, INDEX};
use crate::rules::store::fetch::plan::{Object, Plan, temporary};
use crate::rules::store::manifest::{hex, joined};
use crate::rules::text::transfer_progress::{LINE_EVERY, words};
use crate::supervisor::checkpoints::commit::memory::Memory;
use crate::supervisor::checkpoints::failure::Failure;

/// The size of one range request for a large file, in bytes.
const RANGE: u64 = 32 << 20;
/// The number of concurrent ranges of one file.
const RANGES_AT_ONCE: usize = 8;
/// Mode of the files: the command may run as another user.
const MODE: u32 = 0o644;

/// Why a file could not be fetched.
pub(super) enum Wrong {
    /// The received bytes differ from those in the store.
    Corrupt(String),
    Store(StoreError),
    Disk(io::Error),
}

impl Wrong {
    /// Whether another try may get the right bytes.
    fn is_doubtful(&self) -> bool {
        match self {
            Wrong::Corrupt(_) => true,
            Wrong::Store(error) => error.is_doubtful(),
            Wrong::Disk(_) => false,
        }
    }
}

/// The index, and the offset of its next line.
type Lines = Arc<Mutex<(File, u64)>>;

pub(super) struct Transfer<'a> {
    fetch: &'a Fetch,
    store: Arc<Store>,
    dir: Arc<RootedDir>,
    lines: Lines,
    /// The number of small files fetched concurrently.
    at_once: usize,
    streams: Semaphore,
    /// A range of a large file counts as this many small files.
    turns: u32,
    threads: TransferThreads,
    files: Cell<usize>,
    bytes: Cell<u64>,
}

impl<'a> Transfer<'a> {
    /// Rewrites the index with the files that are in place. Errors: as open(2), write(2).
    pub(super) async fn begin(
        fetch: &'a Fetch,
        store: Arc<Store>,
        dir: Arc<RootedDir>,
        plan: &Plan,
    ) -> io::Result<Transfer<'a>> {
        let known = plan.unchanged.iter().chain(&plan.gone).map(index::entry);
        let text: String = [index::head(&fetch.source.to_string())].into_iter().chain(known).collect();
        let to = Arc::clone(&dir);
        let file = blocking(move || {
            // Opened once, so that a file that another user puts under this name is never written.
            let fresh = temporary(INDEX);
            to.remove_file(&fresh)?;
            let file = to.create_file(&fresh)?;
            file.write_all_at(text.as_bytes(), 0)?;
            file.set_permissions(Permissions::from_mode(MODE))?;
            to.place(&fresh, INDEX)?;
            Ok((file, text.len() as u64))
        });
        let sizes = Memory::now().fit(store.part_sizes());
        Ok(Transfer {
            fetch,
            lines: Arc::new(Mutex::new(file.await?)),
            at_once: sizes.at_once,
            streams: Semaphore::new(sizes.at_once),
            turns: sizes.small_for_a_part(),
            threads: TransferThreads::open(plan.fetch.iter().filter(|object| object.size > BLOCK).count()).await,
            store,
            dir,
            files: Cell::new(0),
            bytes: Cell::new(0),
        })
    }

    /// Fetches all files.
    pub(super) async fn run(self, objects: Vec<Object>, bytes: u64) -> Result<(), Failure> {
        let count = objects.len();
        let files = stream::iter(objects).map(|object| self.file(object)).buffer_unordered(self.at_once);
        tokio::select! {
            done = files.try_collect::<()>() => done?,
            never = self.tell(count, bytes) => match never {},
        }
        self.threads.close().await;
        Ok(())
    }

    /// Logs the progress at intervals.
    async fn tell(&self, files: usize, bytes: u64) -> Infallible {
        let clock = Clock::start();
        loop {
            tokio::time::sleep(LINE_EVERY).await;
            let (source, words) = (&self.fetch.source, words(self.bytes.get(), bytes, clock.now()));
            tracing::info!(code = "fetch", "fetching {source}: {} of {files} files, {words}", self.files.get());
        }
    }

    /// Fetches one file, and retries if the bytes are wrong.
    async fn file(&self, object: Object) -> Result<(), Failure> {
        let mut came = self.attempt(&object).await;
        if came.as_ref().is_err_and(Wrong::is_doubtful) {
            came = self.attempt(&object).await;
        }
        let Err(wrong) = came else {
            self.files.set(self.files.get() + 1);
            return Ok(());
        };
        let (dir, half) = (Arc::clone(&self.dir), temporary(&object.path));
        // The next fetch rewrites it anyway.
        let _ = blocking(move || dir.remove_file(&half)).await;
        Err(self.fetch.wrong(&object.path, wrong))
    }

    async fn attempt(&self, object: &Object) -> Result<(), Wrong> {
        let bytes = Cell::new(0);
        let done = self.attempt_counting(object, &bytes).await;
        if done.is_err() {
            self.bytes.set(self.bytes.get() - bytes.get());
        }
        done
    }

    async fn attempt_counting(&self, object: &Object, bytes: &Cell<u64>) -> Result<(), Wrong> {
        let (dir, half) = (Arc::clone(&self.dir), temporary(&object.path));
        let created = blocking(move || {
            dir.remove_file(&half)?;
            dir.create_file(&half).map(Arc::new)
        });
        let file = created.await.map_err(Wrong::Disk)?;
        self.ranges(object, &file, bytes).await?;
        // A bucket reports the object's version with each range.
        if matches!(self.fetch.source.address, Address::Directory(_)) {
            let now = self.store.look(&object.path).await.map_err(Wrong::Store)?;
            if now.map(super::object).as_ref() != Some(object) {
                return Err(Wrong::Corrupt("it changed while it was read".to_owned()));
            }
        }
        let (dir, lines, object) = (Arc::clone(&self.dir), Arc::clone(&self.lines), object.clone());
        blocking(move || install(&dir, &file, &object, &lines)).await.map_err(Wrong::Disk)
    }

    /// Writes all bytes of a file. Errors: they differ from the checksum, if the store has one.
    async fn ranges(&self, object: &Object, file: &Arc<File>, bytes: &Cell<u64>) -> Result<(), Wrong> {
        let is_large = object.size > BLOCK;
        let turns = if is_large { self.turns } else { 1 };
        let ranges = (0..object.size.div_ceil(RANGE)).map(|number| {
            let from = number * RANGE;
            from..object.size.min(from + RANGE)
        });
        let fetched = ranges.map(|range| async move {
            let _turn = self.streams.acquire_many(turns).await;
            let length = range.end - range.start;
            let range = fetch_range(Arc::clone(&self.store), Arc::clone(file), object.path.clone(), range, true);
            let came = if is_large { self.threads.run(|_| range).await } else { range.await };
            let came = came.map_err(Wrong::Disk)?.map_err(Wrong::Store)?;
            self.bytes.set(self.bytes.get() + length);
            bytes.set(bytes.get() + length);
            Ok((came, length))
        });
        let mut fetched = pin!(stream::iter(fetched).buffered(RANGES_AT_ONCE));
        let (mut whole, mut first) = (0, None::<ObjectInfo>);
        while let Some((came, length)) = fetched.next().await.transpose()? {
            whole = joined(whole, came.crc32c, length);
            let Some(info) = came.info else { continue };
            if info.size != object.size || first.as_ref().is_some_and(|first| first.tag != info.tag) {
                return Err(Wrong::Corrupt("it changed while it was read".to_owned()));
            }
            first = Some(info);
        }
        match first.and_then(|info| info.crc32c) {
            Some(stated) if stated != whole => {
                Err(Wrong::Corrupt(format!("its crc32c is {}, the store says {}", hex(whole), hex(stated))))
            }
            _ => Ok(()),
        }
    }
}

/// Renames a complete file into place, then adds it to the index. Errors: as write(2), rename(2).
fn install(dir: &RootedDir, file: &File, object: &Object, lines: &Lines) -> io::Result<()> {
    finish_file(file, object.size, MODE, object.modified_ns)?;
    // Ranges arrive in any order, so after a crash the size does not show whether the file is complete.
    if object.size > RANGE {
        file.sync_data()?;
    }
    dir.place(&temporary(&object.path), &object.path)?;
    let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    let line = index::entry(object);
    lines.0.write_all_at(line.as_bytes(), lines.1)?;
    lines.1 += line.len() as u64;
    Ok(())
}

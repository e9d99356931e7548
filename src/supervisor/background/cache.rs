//! `--cache-dir`: fetches the compilation caches from the store beside the checkpoint, and sends new files there.
//!
//! Only node 0 sends, so the index has one writer. A file is sent when it did not change between two looks, or when the trainer
//! has finished; a trainer that is killed leaves no half file in the store. A failure is logged, and the run goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, UNIX_EPOCH};

use futures_util::{StreamExt, stream};
use tokio::sync::oneshot;

use super::ledger::Place;
use crate::edge::clock::{self, Clock};
use crate::edge::fs::rooted_dir::RootedDir;
use crate::edge::fs::walk::walk;
use crate::edge::store::{Store, StoreError, Trouble};
use crate::edge::transfer::blocking::blocking;
use crate::rules::cache::{
    Cached, INDEX, INDEX_LIMIT, Index, LARGEST, MOST_BYTES, MOST_FILES, hash_of, is_cacheable, key_of,
};
use crate::rules::checkpoint::{Entry, Kind};
use crate::rules::text::safe_text::counted;
use crate::supervisor::status::history::History;

/// Files that are fetched, or sent, at once.
const AT_ONCE: usize = 16;
/// Local bytes that are compared with their checksum at the start; the others are compared by size.
const CHECKED: u64 = 1 << 30;
/// The shortest and the longest pause between two looks, the pause as a share of the run's age, and the least pause as a multiple
/// of the time that a look takes.
const SHORTEST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const PAUSE_SHARE: u32 = 10;
const LOOK_TIMES: u32 = 20;
/// Torn files are those of the last seconds before a kill.
const TORN: Duration = Duration::from_secs(5);
/// This file exists while a trainer may write.
const IN_USE: &str = ".trainit-in-use";
/// The mode of a fetched file: a trainer of another user must be able to read it.
const MODE: u32 = 0o644;

/// The files by path, with their size, time and inode.
type Files = BTreeMap<String, (u64, i64, u64)>;

struct Cache {
    dir: PathBuf,
    store: Arc<Store>,
    /// `None`: it could not be read yet, so it must not be replaced.
    index: Option<Index>,
    /// The files of the last look, and those that are in the store.
    seen: Files,
    sent: Files,
    is_full_logged: bool,
}

/// Fetches, then drops `ready`; then sends until the run has ended, and drops `_done`.
pub(super) async fn keep(
    dir: PathBuf,
    place: oneshot::Receiver<Place>,
    history: History,
    ready: oneshot::Sender<()>,
    _done: mpsc::Sender<()>,
) {
    let mut changes = history.changes();
    let Ok(place) = place.await else { return };
    let (store, is_chief) = match place.shared_store().await {
        Some(Ok(store)) => store,
        Some(Err(error)) => return complain(&dir, &error.to_string()),
        None => return,
    };
    let mut cache = Cache { dir, store, index: None, seen: Files::new(), sent: Files::new(), is_full_logged: false };
    match cache.fetch().await {
        Ok(()) => {}
        Err(why) => complain(&cache.dir, &why),
    }
    drop(ready);
    if !is_chief {
        return;
    }
    let (mut pause, mut has_failed) = (SHORTEST_PAUSE, false);
    loop {
        let _ = tokio::time::timeout(pause, async { while !history.has_ended() && changes.changed().await.is_ok() {} })
            .await;
        let (has_ended, clock) = (history.has_ended(), Clock::start());
        let sent = cache.send(has_ended && history.has_finished()).await;
        // An outage is logged once.
        if let Err(why) = &sent
            && !std::mem::replace(&mut has_failed, true)
        {
            complain(&cache.dir, why);
        }
        has_failed &= sent.is_err();
        if has_ended {
            if history.has_finished() {
                let _ = cache.in_dir(|dir| dir.remove_file(IN_USE)).await;
            }
            return;
        }
        let least = clock.now() * LOOK_TIMES;
        pause = (history.now() / PAUSE_SHARE).clamp(SHORTEST_PAUSE, LONGEST_PAUSE).max(least);
    }
}

fn complain(dir: &std::path::Path, why: &str) {
    tracing::warn!(
        code = "cache",
        "the compilation cache in {} is not kept in the store: {why}; the trainer may compile again, training goes on",
        dir.display()
    );
}

fn seconds_now() -> u64 {
    clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Cache {
    async fn in_dir<T: Send + 'static>(
        &self,
        work: impl FnOnce(RootedDir) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let path = self.dir.clone();
        let done = blocking(move || work(RootedDir::create(&path)?)).await;
        done.map_err(|error| format!("the directory cannot be used: {error}"))
    }

    async fn look(&self) -> Result<Vec<Entry>, String> {
        let path = self.dir.clone();
        let listing = blocking(move || walk(&path)).await.map_err(|error| error.to_string())?;
        let is_wanted = |entry: &&Entry| entry.kind == Kind::File && is_cacheable(&entry.path) && entry.size > 0;
        Ok(listing.entries().iter().filter(is_wanted).cloned().collect())
    }

    /// The index; an empty one if there is none, or if it cannot be used. Errors: the store does not answer.
    async fn read_index(&mut self) -> Result<Index, String> {
        if let Some(index) = &self.index {
            return Ok(index.clone());
        }
        let index = match self.store.get(INDEX, INDEX_LIMIT).await {
            Ok(bytes) => Index::read(&bytes).unwrap_or_else(|why| {
                complain(&self.dir, &format!("{INDEX} is not used: {why}"));
                Index::default()
            }),
            Err(error) if error.trouble == Trouble::Absent => Index::default(),
            Err(error) => return Err(error.to_string()),
        };
        self.index = Some(index.clone());
        Ok(index)
    }

    /// Fetches the files that are missing or torn here. Errors: why not all of them.
    async fn fetch(&mut self) -> Result<(), String> {
        let clock = Clock::start();
        let index = self.read_index().await?;
        let local = self.look().await?;
        let torn = self.remove_torn(&index, &local).await?;
        let whole = self.whole(&index, local).await?;
        let missing: Vec<(String, Cached)> =
            index.0.iter().filter(|(path, _)| !whole.contains(*path)).map(|(p, c)| (p.clone(), c.clone())).collect();
        let (files, mut bytes, mut failed) = (missing.len(), 0, None);
        let this = &*self;
        let mut fetches = stream::iter(missing.into_iter().map(|(path, cached)| this.fetch_one(path, cached)))
            .buffer_unordered(AT_ONCE);
        let mut fetched = 0;
        while let Some(done) = fetches.next().await {
            match done {
                Ok(size) => (fetched, bytes) = (fetched + 1, bytes + size),
                Err(why) => failed = Some(why),
            }
        }
        drop(fetches);
        tracing::info!(
            "the compilation cache in {}: fetched {}, {bytes} bytes, in {:.1} s{}",
            self.dir.display(),
            counted(fetched, "file"),
            clock.now().as_secs_f64(),
            if torn > 0 {
                format!(", removed {} that a killed trainer left half", counted(torn, "file"))
            } else {
                String::new()
            }
        );
        let now = seconds_now();
        let known = self.index.iter_mut().flat_map(|index| index.0.values_mut());
        known.for_each(|file| file.used = file.used.max(now));
        self.in_dir(|dir| dir.replace(IN_USE, b"", MODE)).await?;
        failed.map_or(Ok(()), |why| Err(format!("{} of {files} files: {why}", files - fetched)))
    }

    /// Removes the files that a killed trainer may have left half and the store does not have. Returns how many.
    async fn remove_torn(&self, index: &Index, local: &[Entry]) -> Result<usize, String> {
        let newest = local.iter().map(|entry| entry.mtime_ns).max().unwrap_or(0);
        let since = newest.saturating_sub(i64::try_from(TORN.as_nanos()).unwrap_or(i64::MAX));
        let is_torn = |entry: &&Entry| entry.mtime_ns >= since && !index.0.contains_key(&entry.path);
        let torn: Vec<String> = local.iter().filter(is_torn).map(|entry| entry.path.clone()).collect();
        self.in_dir(move |dir| {
            if dir.look(IN_USE)?.is_none() {
                return Ok(0);
            }
            torn.iter().for_each(|path| _ = dir.remove_file(path));
            Ok(torn.len())
        })
        .await
    }

    /// The paths whose local file has the content of the index.
    async fn whole(&self, index: &Index, local: Vec<Entry>) -> Result<BTreeSet<String>, String> {
        let index = index.0.clone();
        self.in_dir(move |dir| {
            let mut left = CHECKED;
            let mut is_whole = |entry: &Entry| {
                let Some(cached) = index.get(&entry.path).filter(|cached| cached.size == entry.size) else {
                    return false;
                };
                let is_checked = left >= entry.size;
                left = left.saturating_sub(entry.size);
                !is_checked || dir.read(&entry.path, LARGEST).is_ok_and(|bytes| hash_of(&bytes) == cached.hash)
            };
            Ok(local.into_iter().filter(|entry| is_whole(entry)).map(|entry| entry.path).collect())
        })
        .await
    }

    async fn fetch_one(&self, path: String, cached: Cached) -> Result<u64, String> {
        let bytes = self.store.get(&key_of(&cached.hash), cached.size + 1).await.map_err(|error| error.to_string())?;
        if bytes.len() as u64 != cached.size || hash_of(&bytes) != cached.hash {
            return Err(format!("{} in the store does not match its hash", key_of(&cached.hash)));
        }
        self.in_dir(move |dir| {
            if let Some((parent, _)) = path.rsplit_once('/') {
                dir.create_directory(parent)?;
            }
            dir.replace(&path, &bytes, MODE)
        })
        .await?;
        Ok(cached.size)
    }

    /// Sends new files: those that have not changed since the last look, or all if the trainer has `finished`.
    async fn send(&mut self, finished: bool) -> Result<(), String> {
        let local = self.look().await?;
        let seen: Files = local.iter().map(|entry| (entry.path.clone(), entry.signature())).collect();
        let is_ready = |entry: &&Entry| {
            let is_known = self.sent.get(&entry.path) == Some(&entry.signature());
            !is_known && entry.size <= LARGEST && (finished || self.seen.get(&entry.path) == Some(&entry.signature()))
        };
        let mut ready: Vec<Entry> = local.iter().filter(is_ready).cloned().collect();
        self.seen = seen;
        // The newest first, because there may be more than the store takes.
        ready.sort_by_key(|entry| std::cmp::Reverse(entry.mtime_ns));
        self.warn_of_many(&local);
        ready.truncate(MOST_FILES);
        if ready.is_empty() {
            return Ok(());
        }
        let mut index = self.read_index().await?;
        let (this, known) = (&*self, &index.clone());
        let sends = stream::iter(ready.into_iter().map(|entry| this.send_one(known, entry))).buffer_unordered(AT_ONCE);
        let sent: Vec<_> = sends.collect().await;
        let (mut failed, mut is_changed) = (None, false);
        for one in sent {
            match one {
                Ok(Some((entry, cached))) => {
                    self.sent.insert(entry.path.clone(), entry.signature());
                    let before = index.0.insert(entry.path, cached.clone());
                    is_changed |= before.is_none_or(|before| before.hash != cached.hash);
                }
                Ok(None) => {}
                Err(why) => failed = Some(why),
            }
        }
        if is_changed {
            let dropped = index.shrink(MOST_BYTES, MOST_FILES);
            // Last, so that the index names only files that the store has; dropped files after it, for the same reason.
            if let Err(error) = self.store.replace(INDEX, index.bytes(), None).await {
                // The next look sends the files again, and finds their contents there.
                self.sent.clear();
                return Err(error.to_string());
            }
            for hash in dropped {
                let _ = self.store.delete(&key_of(&hash)).await;
            }
        }
        self.index = Some(index);
        failed.map_or(Ok(()), |error: StoreError| Err(error.to_string()))
    }

    fn warn_of_many(&mut self, local: &[Entry]) {
        let bytes: u64 = local.iter().map(|entry| entry.size).sum();
        if (local.len() > MOST_FILES || bytes > MOST_BYTES) && !std::mem::replace(&mut self.is_full_logged, true) {
            tracing::warn!(
                code = "cache",
                "the compilation cache in {} has {} and {bytes} bytes, more than the store takes ({MOST_FILES} files, {MOST_BYTES} bytes): \
                 the newest are kept; clear the directory, or name one that only caches are in",
                self.dir.display(),
                counted(local.len(), "file")
            );
        }
    }

    /// Sends a file. `None`: it has changed or is gone. Its content may be in the store already.
    async fn send_one(&self, index: &Index, entry: Entry) -> Result<Option<(Entry, Cached)>, StoreError> {
        let path = entry.path.clone();
        let read = self.in_dir(move |dir| Ok((dir.read(&path, LARGEST)?, dir.look(&path)?))).await;
        let Ok((bytes, Some(after))) = read else { return Ok(None) };
        if after.signature() != entry.signature() || bytes.len() as u64 != entry.size {
            return Ok(None);
        }
        let cached = Cached { hash: hash_of(&bytes), size: entry.size, used: seconds_now() };
        if index.0.get(&entry.path).is_none_or(|known| known.hash != cached.hash) {
            self.store.create(&key_of(&cached.hash), bytes).await?;
        }
        Ok(Some((entry, cached)))
    }
}

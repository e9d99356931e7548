//! The files of one commit on their way out: held, read once, summed and sent. Which checkpoint, when, and whether it
//! becomes a commit is decided in `commit`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::known::{Known, Sent};
use super::mirror::{PINS, blocking, way_out};
use crate::edge::beneath::{Beneath, forget, read_at};
use crate::edge::clock::Clock;
use crate::edge::links;
use crate::edge::store::{Habits, Store, StoreError, Upload};
use crate::rules::checkpoint::listing::parent_of;
use crate::rules::checkpoint::manifest::{CHUNK, Chunks, Item, ItemKind, hex};
use crate::rules::checkpoint::names::{Attempt, Stamp, prefix_of_data};
use crate::rules::checkpoint::pace::Pace;
use crate::rules::checkpoint::{Entry, Kind};

/// Bytes read at a time; divides [`CHUNK`].
const BLOCK: u64 = 8 << 20;
/// Bytes of checkpoints in memory at most: eight parts.
const MEMORY: u64 = 256 << 20;
/// Between two looks whether a cap was lifted.
const LOOK_UP: Duration = Duration::from_millis(50);
/// They are counted in these; a small file counts as one.
const UNIT: u64 = 1 << 20;

/// Why a commit was given up.
pub(super) enum Stop {
    Changed(String),
    Fenced(Attempt),
    Failed(String),
    OutOfTime(String),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Stop {
        Stop::Failed(format!("{error}; it is not committed; what was before still is; {}", way_out(&error)))
    }
}

/// Where a file's bytes are read from while they are sent.
#[derive(Debug, Clone)]
pub(super) enum Held {
    /// Beneath the checkpoint directory: by its second name, or its own.
    Here(String),
    /// At the end of a link, where no second name could be had.
    Elsewhere(PathBuf),
}

impl Held {
    fn open(&self, dir: &Beneath) -> io::Result<File> {
        match self {
            Held::Here(path) => dir.read_file(path),
            Held::Elsewhere(real) => links::open(real),
        }
    }

    fn look(&self, dir: &Beneath) -> io::Result<Option<Entry>> {
        match self {
            Held::Here(path) => dir.look(path),
            Held::Elsewhere(real) => links::look("", real),
        }
    }
}

/// Second names of ours, so that the framework may delete its own meanwhile.
pub(super) struct Pins {
    /// Where they are; `None` where the file system has no hard links or does not let us.
    under: Option<String>,
    /// Files at the ends of links that have none: they lie on another file system.
    loose: HashSet<String>,
}

impl Pins {
    /// Where this file's bytes are to be read.
    pub(super) fn held(&self, entry: &Entry) -> Held {
        match (&self.under, &entry.through) {
            (Some(under), _) if !self.loose.contains(&entry.path) => Held::Here(format!("{under}/{}", entry.path)),
            (_, Some(real)) => Held::Elsewhere(real.clone()),
            (_, None) => Held::Here(entry.path.clone()),
        }
    }
}

/// Gives every file a second name.
pub(super) async fn pin(dir: &Arc<Beneath>, stamp: &Stamp, entries: &[Entry]) -> io::Result<Pins> {
    let (dir, under) = (Arc::clone(dir), format!("{PINS}/{stamp}"));
    let files = entries.iter().filter(|e| e.kind == Kind::File);
    let files: Vec<(String, Option<PathBuf>)> = files.map(|e| (e.path.clone(), e.through.clone())).collect();
    blocking(move || {
        dir.remove_tree(PINS)?;
        let mut loose = HashSet::new();
        for (path, through) in files {
            let to = format!("{under}/{path}");
            let linked = match &through {
                Some(real) => dir.link_in(real, &to),
                None => dir.link(&path, &to),
            };
            match linked {
                Ok(()) => {}
                // It vanished: the comparison that follows says so.
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(_) if through.is_some() => drop(loose.insert(path)),
                Err(_) => {
                    dir.remove_tree(PINS)?;
                    return Ok(Pins { under: None, loose });
                }
            }
        }
        Ok(Pins { under: Some(under), loose })
    })
    .await
}

/// Fails unless what is held still is what the walk saw.
pub(super) async fn unchanged(dir: &Arc<Beneath>, entries: &[Entry], pins: &Pins) -> Result<(), Stop> {
    let files = entries.iter().filter(|e| e.kind == Kind::File);
    let pairs: Vec<(Entry, Held)> = files.map(|e| (e.clone(), pins.held(e))).collect();
    let dir = Arc::clone(dir);
    let changed = blocking(move || {
        for (entry, held) in pairs {
            if !held.look(&dir)?.is_some_and(|now| entry.same_bytes(&now)) {
                return Ok(Some(entry.path));
            }
        }
        Ok(None)
    });
    match changed.await {
        Ok(None) => Ok(()),
        Ok(Some(path)) => Err(Stop::Changed(format!("{path} changed while it was copied"))),
        Err(error) => Err(Stop::Failed(format!("cannot look at the checkpoint again: {error}"))),
    }
}

/// Checksums of a file as it goes by, in order.
#[derive(Default)]
struct Sums {
    whole: u32,
    chunk: u32,
    chunks: Vec<String>,
    seen: u64,
}

impl Sums {
    fn add(&mut self, bytes: &[u8]) {
        self.whole = crc32c::crc32c_append(self.whole, bytes);
        self.chunk = crc32c::crc32c_append(self.chunk, bytes);
        self.seen += bytes.len() as u64;
        if !bytes.is_empty() && self.seen.is_multiple_of(CHUNK) {
            self.chunks.push(hex(self.chunk));
            self.chunk = 0;
        }
    }

    fn finish(mut self) -> (String, Option<Chunks>) {
        if !self.seen.is_multiple_of(CHUNK) {
            self.chunks.push(hex(self.chunk));
        }
        (hex(self.whole), Some(Chunks { size: CHUNK, crc32c: self.chunks }))
    }
}

/// What the files of one commit share on their way out.
pub(super) struct Sending<'a> {
    pub(super) store: &'a Store,
    pub(super) dir: &'a Arc<Beneath>,
    /// What need not be sent.
    pub(super) known: &'a Known,
    /// A cap, while the trainer runs.
    pub(super) pace: Option<&'a Mutex<Pace>>,
    pub(super) habits: Habits,
    /// Bytes that may be in memory at once, in [`UNIT`]s.
    pub(super) budget: Semaphore,
    pub(super) clock: Clock,
    /// Hears how many bytes more are through.
    pub(super) told: &'a dyn Fn(u64),
}

impl Sending<'_> {
    /// So much may be in memory at once.
    pub(super) fn budget() -> Semaphore {
        Semaphore::new((MEMORY / UNIT) as usize)
    }

    /// Copies one file to its key, or finds the key under which its bytes lie already.
    pub(super) async fn send(&self, entry: &Entry, from: Held, key: String) -> Result<Sent, Stop> {
        let dir = Arc::clone(self.dir);
        let unreadable = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Stop::Changed(format!("{} vanished while it was copied", entry.path)),
            _ => Stop::Failed(format!("cannot read {}: {error}", entry.path)),
        };
        let size = entry.size;
        if size <= self.habits.whole {
            self.take_turn(size).await;
            let _held = self.hold(size).await;
            let read = blocking(move || {
                let (blocks, sums) = read_blocks(&from.open(&dir)?, 0, size, Sums::default(), true)?;
                let strong = (size <= BLOCK).then(|| hash(&blocks));
                Ok((blocks, sums, strong))
            });
            let (blocks, sums, strong) = read.await.map_err(unreadable)?;
            entire(&blocks, size, entry)?;
            let crc32c = sums.whole;
            let mut item = item_of(entry, key, sums);
            if !self.find(entry, &mut item, strong.as_ref()) {
                item.etag = self.store.put(&item.key, blocks, crc32c).await?;
            }
            (self.told)(size);
            return Ok(Sent { entry: entry.clone(), item, strong });
        }
        let file = blocking(move || from.open(&dir)).await.map_err(unreadable)?;
        if self.known.may_hold(entry) {
            let reader = file.try_clone().map_err(unreadable)?;
            let sums = blocking(move || sums_of(&reader, size)).await.map_err(unreadable)?;
            let mut item = item_of(entry, key.clone(), sums);
            if self.find(entry, &mut item, None) {
                (self.told)(size);
                return Ok(Sent { entry: entry.clone(), item, strong: None });
            }
        }
        let mut upload = self.store.begin(&key).await?;
        match self.send_parts(&mut upload, file, entry).await {
            Ok(sums) => {
                let etag = upload.finish(sums.whole).await?;
                let item = Item { etag, ..item_of(entry, key, sums) };
                Ok(Sent { entry: entry.clone(), item, strong: None })
            }
            Err(stop) => {
                upload.abort().await;
                Err(stop)
            }
        }
    }

    /// Names the old key where the store holds these bytes.
    fn find(&self, entry: &Entry, item: &mut Item, strong: Option<&blake3::Hash>) -> bool {
        let old = self.known.same(entry, item, strong);
        if let Some(old) = old {
            item.key.clone_from(&old.key);
            item.etag.clone_from(&old.etag);
        }
        old.is_some()
    }

    /// Waits until the cap lets so many bytes through, or is lifted.
    async fn take_turn(&self, bytes: u64) {
        let Some(pace) = self.pace else { return };
        let lock = || pace.lock().unwrap_or_else(PoisonError::into_inner);
        let at = lock().admit(self.clock.now(), bytes);
        while lock().is_capped() {
            let left = at.saturating_sub(self.clock.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LOOK_UP)).await;
        }
    }

    /// Reads in order, sends as many parts at once as memory allows.
    async fn send_parts(&self, upload: &mut Upload<'_>, file: File, entry: &Entry) -> Result<Sums, Stop> {
        let part = self.habits.part_of(entry.size);
        let mut sums = Sums::default();
        let mut under_way = FuturesUnordered::new();
        let mut at = 0;
        while at < entry.size {
            let wanted = part.min(entry.size - at);
            // Waiting for memory is waiting for a part to be through.
            let held = async {
                self.take_turn(wanted).await;
                self.hold(wanted).await
            };
            tokio::pin!(held);
            let held = loop {
                tokio::select! {
                    biased;
                    Some(done) = under_way.next(), if !under_way.is_empty() => (self.told)(done?),
                    held = &mut held => break held,
                }
            };
            let failed = |error: io::Error| Stop::Failed(format!("cannot read {}: {error}", entry.path));
            let (reader, is_last) = (file.try_clone().map_err(failed)?, at + wanted == entry.size);
            let so_far = std::mem::take(&mut sums);
            let read = blocking(move || read_blocks(&reader, at, wanted, so_far, is_last));
            tokio::pin!(read);
            let read = loop {
                tokio::select! {
                    biased;
                    read = &mut read => break read,
                    Some(done) = under_way.next(), if !under_way.is_empty() => (self.told)(done?),
                }
            };
            let (blocks, new) = read.map_err(failed)?;
            sums = new;
            entire(&blocks, wanted, entry)?;
            let sent = upload.part(blocks);
            under_way.push(async move {
                let _held = held;
                sent.await.map(|()| wanted)
            });
            at += wanted;
        }
        while let Some(done) = under_way.next().await {
            (self.told)(done?);
        }
        Ok(sums)
    }

    /// Waits until so many bytes may be in memory.
    async fn hold(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let units = bytes.div_ceil(UNIT).clamp(1, MEMORY / UNIT);
        // It is never closed.
        self.budget.acquire_many(units as u32).await.ok()
    }
}

/// Reads a run of a file, summed, in blocks that are given back one by one.
fn read_blocks(file: &File, from: u64, length: u64, mut sums: Sums, is_last: bool) -> io::Result<(Vec<Bytes>, Sums)> {
    let mut blocks = Vec::new();
    let mut at = from;
    while at < from + length {
        let wanted = BLOCK.min(from + length - at);
        let bytes = read_at(file, at, wanted as usize)?;
        sums.add(&bytes);
        at += wanted;
        blocks.push(Bytes::from(bytes));
    }
    if is_last {
        forget(file);
    }
    Ok((blocks, sums))
}

/// The checksums of a file.
fn sums_of(file: &File, size: u64) -> io::Result<Sums> {
    let (mut sums, mut at) = (Sums::default(), 0);
    while at < size {
        let bytes = read_at(file, at, BLOCK.min(size - at) as usize)?;
        if bytes.is_empty() {
            break;
        }
        sums.add(&bytes);
        at += bytes.len() as u64;
    }
    Ok(sums)
}

fn hash(blocks: &[Bytes]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for block in blocks {
        hasher.update(block);
    }
    hasher.finalize()
}

fn item_of(entry: &Entry, key: String, sums: Sums) -> Item {
    let (crc32c, chunks) = sums.finish();
    Item {
        path: entry.path.clone(),
        kind: ItemKind::File,
        size: entry.size,
        mode: entry.mode,
        mtime_ns: entry.mtime_ns,
        key,
        target: None,
        etag: None,
        generation: None,
        crc32c,
        chunks,
    }
}

/// Fails where a file has become shorter.
fn entire(blocks: &[Bytes], wanted: u64, entry: &Entry) -> Result<(), Stop> {
    if blocks.iter().map(|b| b.len() as u64).sum::<u64>() == wanted {
        Ok(())
    } else {
        Err(Stop::Changed(format!("{} became shorter while it was copied", entry.path)))
    }
}

/// Every object is there with its size, those of earlier commits too.
pub(super) async fn verify(store: &Store, items: &[Item]) -> Result<(), Stop> {
    let there = sizes(store, items.iter()).await?;
    match items.iter().find(|i| there.get(&i.key) != Some(&i.size)) {
        Some(item) => Err(Stop::Failed(format!(
            "the store acknowledged {} and does not hold it whole; the checkpoint is not committed",
            item.key
        ))),
        None => Ok(()),
    }
}

/// What the store holds beside the objects of these files, with sizes: every commit that they come from is listed.
pub(super) async fn sizes(
    store: &Store,
    items: impl Iterator<Item = &Item>,
) -> Result<HashMap<String, u64>, StoreError> {
    let prefixes: BTreeSet<&str> = items.map(|i| prefix_of_data(&i.key)).collect();
    let mut there = HashMap::new();
    for prefix in prefixes {
        there.extend(store.list(prefix).await?.into_iter().map(|o| (o.key, o.size)));
    }
    Ok(there)
}

/// Symbolic links, and directories that nothing in the manifest would make.
pub(super) fn without_data(entries: &[Entry]) -> Vec<Item> {
    let parents: BTreeSet<&str> = entries.iter().map(|e| parent_of(&e.path)).collect();
    let item = |entry: &Entry, kind: ItemKind, target: Option<String>| Item {
        path: entry.path.clone(),
        kind,
        size: 0,
        mode: entry.mode,
        mtime_ns: entry.mtime_ns,
        key: String::new(),
        target,
        etag: None,
        generation: None,
        crc32c: String::new(),
        chunks: None,
    };
    let mut items = Vec::new();
    for entry in entries {
        match &entry.kind {
            Kind::Symlink(target) => items.push(item(entry, ItemKind::Symlink, Some(target.clone()))),
            Kind::Directory if !parents.contains(entry.path.as_str()) => {
                items.push(item(entry, ItemKind::Directory, None));
            }
            _ => {}
        }
    }
    items
}

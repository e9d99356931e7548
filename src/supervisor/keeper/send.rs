//! The files of one commit on their way out: read once, summed and sent. Which checkpoint, when, and whether it
//! becomes a commit is decided in `commit`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, FuturesUnordered};
use futures_util::{StreamExt, TryStreamExt};

use super::known::{Known, Sent};
use super::made::Made;
use super::mirror::blocking;
use super::pieces::{Pieces, is_streamed};
use super::pins::Held;
use super::retention::lack;
use super::sums::Sums;
use super::vigil::LONG_PATIENCE;
use crate::edge::beneath::Beneath;
use crate::edge::clock::Clock;
use crate::edge::lanes::Lanes;
use crate::edge::limits;
use crate::edge::store::{Content, Habits, Source, Store, StoreError, Trouble, Upload};
use crate::rules::checkpoint::listing::parent_of;
use crate::rules::checkpoint::manifest::{CHUNK, Item, ItemKind, ORDINARY};
use crate::rules::checkpoint::names::{Attempt, prefix_of_data};
use crate::rules::checkpoint::pace::Pace;
use crate::rules::checkpoint::{Entry, Kind};

/// A file of no more is hashed, to be found again whatever it is called.
const HASHED: u64 = 8 << 20;
/// Between two looks whether a cap was lifted.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Why a copy was given up.
pub(super) enum Stop {
    Changed(String),
    Fenced(Attempt),
    Failed(String),
    /// The store does not hold what it said that it took.
    Lost(String),
    Store(StoreError),
    OutOfTime(String),
}

impl Stop {
    /// Whether what was sent came damaged or was not kept, the answer means nothing to us, or who signed may sign otherwise:
    /// sent again it may be through.
    pub(super) fn may_pass(&self) -> bool {
        matches!(
            self,
            Stop::Lost(_)
                | Stop::Store(StoreError {
                    trouble: Trouble::Other | Trouble::Limit(_) | Trouble::Absent | Trouble::Outdated,
                    ..
                })
        )
    }

    /// Whether the connection to a store that is only slow was lost, and nobody below tries it again after so long.
    pub(super) fn broke_off(&self, after: Duration, has_moved: bool) -> bool {
        let is_away = matches!(self, Stop::Store(StoreError { trouble: Trouble::Unreachable, .. }));
        is_away && has_moved && after >= LONG_PATIENCE
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Stop {
        Stop::Store(error)
    }
}

/// What the files of one commit share on their way out.
pub(super) struct Sending<'a> {
    pub(super) store: &'a Arc<Store>,
    pub(super) dir: &'a Arc<Beneath>,
    /// What need not be sent.
    pub(super) known: &'a Known,
    /// A cap, while the trainer runs.
    pub(super) pace: Option<&'a Mutex<Pace>>,
    /// Whether the manifest shall have a BLAKE3 of each file.
    pub(super) strong: bool,
    /// Whether another commit may follow, for which small files are hashed.
    pub(super) goes_on: bool,
    pub(super) habits: Habits,
    pub(super) pieces: Pieces,
    /// For what is put.
    pub(super) lanes: Lanes,
    pub(super) clock: Clock,
    /// Hears how many bytes more are through.
    pub(super) told: &'a dyn Fn(u64),
    pub(super) made: &'a Made,
}

/// For what files of these sizes keep whoever puts them busy with.
pub(super) async fn lanes_for(store: &Store, habits: Habits, sizes: impl Iterator<Item = u64>) -> Lanes {
    let is_straight = |size| store.is_plain() && is_streamed(habits.streams, size);
    let puts: u64 = sizes.filter(|size| !is_straight(*size)).map(|size| habits.puts_of(size)).sum();
    Lanes::open_several(habits.at_once.min(puts as usize)).await
}

impl Sending<'_> {
    /// Copies one file to its key, or finds the key under which its bytes lie already.
    pub(super) async fn send(&self, entry: &Entry, from: Held, key: String) -> Result<Sent, Stop> {
        let dir = Arc::clone(self.dir);
        let unreadable = |error: io::Error| unread(entry, &error);
        let size = entry.size;
        if size <= self.habits.whole {
            self.take_turn(size).await;
            let _held = self.pieces.hold(size).await;
            let sums = Sums::new(self.strong || self.goes_on && size <= HASHED);
            let read = self.pieces.read(move || from.open(&dir), 0, size, sums, true);
            let (content, sums) = read.await.map_err(unreadable)?;
            let (crc32c, strong) = (sums.whole(), sums.strong());
            let mut item = self.item_of(entry, key, sums);
            if !self.find(entry, &mut item, strong.as_ref()) {
                let source = content.source();
                self.made.begin(&item.key);
                let put = self.put(&item.key, content, crc32c).await;
                item.etag = judged(entry, source, self.made.end(&item.key, put))?;
            }
            (self.told)(size);
            return Ok(Sent { entry: entry.clone(), item, strong });
        }
        let file = blocking(move || from.open(&dir)).await.map_err(unreadable)?;
        if self.known.may_hold(entry) {
            let _held = self.pieces.hold_one().await;
            let sums = self.sums_of(&file, size).await.map_err(unreadable)?;
            let mut item = self.item_of(entry, key.clone(), sums);
            if self.find(entry, &mut item, None) {
                (self.told)(size);
                return Ok(Sent { entry: entry.clone(), item, strong: None });
            }
        }
        let mut upload = self.store.begin(&key).await?;
        match self.send_parts(&mut upload, file, entry).await {
            Ok(sums) => {
                self.made.begin(&key);
                let etag = self.made.end(&key, upload.finish(sums.whole()).await)?;
                let item = Item { etag, ..self.item_of(entry, key, sums) };
                Ok(Sent { entry: entry.clone(), item, strong: None })
            }
            Err(stop) => {
                upload.abort().await;
                Err(stop)
            }
        }
    }

    pub(super) async fn put(&self, key: &str, content: Content, crc32c: u32) -> Result<Option<String>, StoreError> {
        let (store, to) = (Arc::clone(self.store), key.to_owned());
        let is_straight = self.is_straight(&content);
        self.carry(key, is_straight, async move { store.put(&to, content, crc32c).await }).await
    }

    /// Whether the kernel sends it, and nobody is kept busy.
    fn is_straight(&self, content: &Content) -> bool {
        self.store.is_plain() && content.source().is_some()
    }

    /// Lets another thread see to it, where there are some for that and it keeps one busy.
    async fn carry<T: Send + 'static>(
        &self,
        key: &str,
        is_straight: bool,
        put: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        if is_straight {
            return put.await;
        }
        let put = self.lanes.carry(|_| async move { Ok(put.await) });
        put.await.unwrap_or_else(|error| Err(self.store.useless("write", key, &error.to_string())))
    }

    /// The checksums of a file; each stretch of it is told of.
    async fn sums_of(&self, file: &File, size: u64) -> io::Result<Sums> {
        let mut sums = Sums::default();
        for from in (0..size).step_by(CHUNK as usize) {
            sums = self.pieces.sum(file.try_clone()?, from, size.min(from + CHUNK), sums).await?;
            (self.told)(0);
        }
        Ok(sums)
    }

    /// Names the old key where the store holds these bytes.
    pub(super) fn find(&self, entry: &Entry, item: &mut Item, strong: Option<&blake3::Hash>) -> bool {
        let old = self.known.same(entry, item, strong);
        if let Some(old) = old {
            item.key.clone_from(&old.key);
            item.etag.clone_from(&old.etag);
            item.offset = old.offset;
            // The same bytes, hashed when they were sent.
            item.blake3.clone_from(&old.blake3);
        }
        old.is_some()
    }

    /// Waits until the cap lets so many bytes through, or is lifted.
    pub(super) async fn take_turn(&self, bytes: u64) {
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
    async fn send_parts(&self, upload: &mut Upload, file: File, entry: &Entry) -> Result<Sums, Stop> {
        let part = self.habits.part_of(entry.size);
        let mut sums = Sums::new(self.strong);
        let mut under_way = FuturesUnordered::new();
        let mut at = 0;
        while at < entry.size {
            let wanted = part.min(entry.size - at);
            // Waiting for memory is waiting for a part to be through.
            let held = async {
                self.take_turn(wanted).await;
                self.pieces.hold(wanted).await
            };
            tokio::pin!(held);
            let held = loop {
                tokio::select! {
                    biased;
                    Some(done) = under_way.next(), if !under_way.is_empty() => (self.told)(done?),
                    held = &mut held => break held,
                }
            };
            let failed = |error: io::Error| unread(entry, &error);
            let (reader, is_last) = (file.try_clone().map_err(failed)?, at + wanted == entry.size);
            let so_far = std::mem::take(&mut sums);
            let read = self.pieces.read(move || Ok(reader), at, wanted, so_far, is_last);
            tokio::pin!(read);
            let read = loop {
                tokio::select! {
                    biased;
                    read = &mut read => break read,
                    Some(done) = under_way.next(), if !under_way.is_empty() => (self.told)(done?),
                }
            };
            let (content, new) = read.map_err(failed)?;
            sums = new;
            let (source, is_straight) = (content.source(), self.is_straight(&content));
            let sent = self.carry(&entry.path, is_straight, upload.part(content));
            under_way.push(async move {
                let _held = held;
                judged(entry, source, sent.await).map(|()| wanted)
            });
            at += wanted;
        }
        while let Some(done) = under_way.next().await {
            (self.told)(done?);
        }
        Ok(sums)
    }

    pub(super) fn item_of(&self, entry: &Entry, key: String, sums: Sums) -> Item {
        let blake3 = sums.strong().filter(|_| self.strong).map(|hash| hash.to_hex().to_string());
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
            offset: None,
            generation: None,
            crc32c,
            chunks,
            blake3,
        }
    }
}

/// What a file that cannot be read means for what it is a part of.
pub(super) fn unread(entry: &Entry, error: &io::Error) -> Stop {
    let path = &entry.path;
    match error.kind() {
        io::ErrorKind::NotFound => Stop::Changed(format!("{path} vanished while it was copied")),
        io::ErrorKind::UnexpectedEof => Stop::Changed(format!("{path} became shorter while it was copied")),
        io::ErrorKind::InvalidData => Stop::Changed(format!("{path} was written to while it was copied")),
        kind => {
            let way_out = match kind {
                io::ErrorKind::PermissionDenied => "trainit's user must be allowed to read what the trainer writes",
                _ => limits::way_out(error, "see that its disk is sound"),
            };
            Stop::Failed(format!("cannot read {path}: {error}; without it no copy is whole; {way_out}"))
        }
    }
}

/// What became of a write: where the file was at fault, that.
fn judged<T>(entry: &Entry, source: Option<Arc<Source>>, sent: Result<T, StoreError>) -> Result<T, Stop> {
    sent.map_err(|error| match source.and_then(|source| source.take_fault()) {
        Some(fault) => unread(entry, &fault),
        None => error.into(),
    })
}

/// Every object is there with its size, those of earlier commits too.
pub(super) async fn verify(store: &Store, sent: &[Sent]) -> Result<(), Stop> {
    let items = || sent.iter().map(|sent| &sent.item);
    let there = sizes(store, items()).await?;
    match items().find(|item| lack(item, &there).is_some()) {
        Some(item) => Err(Stop::Lost(format!(
            "the store acknowledged {} and does not hold it whole; the checkpoint is not committed; what was before still \
             is; see that this is the store and nothing between, then start again",
            item.key
        ))),
        None => Ok(()),
    }
}

/// What the store holds beside the objects of these files, with sizes: every commit that they come from is listed, and
/// what no listing shows is asked for by its name, since a listing may have lost a page.
pub(super) async fn sizes(
    store: &Store,
    items: impl Iterator<Item = &Item> + Clone,
) -> Result<HashMap<String, u64>, StoreError> {
    let mut prefixes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for item in items.clone() {
        prefixes.entry(prefix_of_data(&item.key)).or_default().insert(&item.key);
    }
    let mut there = HashMap::new();
    for (prefix, keys) in prefixes {
        let listed = store.list_along(prefix, &Vec::from_iter(keys)).await?;
        there.extend(listed.into_iter().map(|o| (o.key, o.size)));
    }
    let lost: BTreeSet<&String> = items.map(|i| &i.key).filter(|key| !there.contains_key(*key)).collect();
    let asked = lost.into_iter().map(|key| async move { Ok::<_, StoreError>((store.size(key).await?, key.clone())) });
    let found: Vec<_> = stream::iter(asked).buffer_unordered(store.habits().at_once).try_collect().await?;
    there.extend(found.into_iter().filter_map(|(size, key)| Some((key, size?))));
    Ok(there)
}

/// Symbolic links, and directories that nothing in the manifest would make, or not so.
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
        offset: None,
        generation: None,
        crc32c: String::new(),
        chunks: None,
        blake3: None,
    };
    let mut items = Vec::new();
    for entry in entries {
        match &entry.kind {
            Kind::Symlink(target) => items.push(item(entry, ItemKind::Symlink, Some(target.clone()))),
            Kind::Directory if !parents.contains(entry.path.as_str()) || entry.mode != ORDINARY => {
                items.push(item(entry, ItemKind::Directory, None));
            }
            _ => {}
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::super::budget::Budget;
    use super::*;
    use crate::edge::store::Access;
    use crate::rules::checkpoint::address::Address;
    use std::cell::Cell;
    use std::os::unix::fs::FileExt;

    #[tokio::test]
    async fn a_long_file_is_told_of_while_it_is_summed() {
        let place = tempfile::tempdir().expect("temporary directory");
        let address = Address::Directory(place.path().to_owned());
        let store = Arc::new(Store::open(&address, true, &Access::default()).await.expect("opens"));
        let (made, known, told) = (Made::default(), Known::default(), Cell::new(0));
        let sending = Sending {
            store: &store,
            dir: &Arc::new(Beneath::open(place.path()).expect("opens")),
            known: &known,
            pace: None,
            strong: false,
            goes_on: true,
            habits: store.habits(),
            pieces: Pieces::new(Budget::now(), false),
            lanes: Lanes::open(0).await,
            clock: Clock::start(),
            told: &|more| {
                assert_eq!(more, 0, "no byte is through");
                told.set(told.get() + 1);
            },
            made: &made,
        };
        let file = tempfile::tempfile().expect("makes a file");
        file.write_all_at(b"weights", CHUNK - 3).expect("writes");
        let reader = file.try_clone().expect("duplicates");
        let at_once = sending.pieces.read(move || Ok(reader), 0, CHUNK + 4, Sums::default(), false).await;
        let (_, at_once) = at_once.expect("reads");
        let in_stretches = sending.sums_of(&file, CHUNK + 4).await.expect("reads");
        assert_eq!(in_stretches.finish(), at_once.finish());
        assert_eq!(told.get(), 2);
    }
    #[tokio::test]
    async fn a_slow_line_that_breaks_is_told_from_a_store_that_is_away() {
        let place = tempfile::tempdir().expect("temporary directory");
        let address = Address::Directory(place.path().to_owned());
        let store = Store::open(&address, true, &Access::default()).await.expect("opens");
        let stop = |trouble| {
            let mut error = store.useless("write", "w.bin", "the connection was closed");
            error.trouble = trouble;
            Stop::Store(error)
        };
        let (soon, late) = (LONG_PATIENCE / 2, LONG_PATIENCE);
        assert!(stop(Trouble::Unreachable).broke_off(late, true));
        assert!(!stop(Trouble::Unreachable).broke_off(late, false), "nothing was taken");
        assert!(!stop(Trouble::Unreachable).broke_off(soon, true), "it was tried again below");
        assert!(!stop(Trouble::Denied).broke_off(late, true));
    }
}

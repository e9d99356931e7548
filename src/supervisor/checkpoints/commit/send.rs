//! Sends the files of one commit. Each file is read once, summed and uploaded; many small files share one object. The caller
//! decides which files are sent and whether they become a commit.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{TryStreamExt, stream};

use crate::edge::clock::Clock;
use crate::edge::fs::rooted_dir::{RootedDir, forget, read_into};
use crate::edge::host::limits;
use crate::edge::store::{PartSizes, Store, StoreError, Upload};
use crate::edge::transfer::blocking::blocking;
use crate::edge::transfer::threads::TransferThreads;
use crate::rules::checkpoint::listing::parent_of;
use crate::rules::checkpoint::{Entry, Kind};
use crate::rules::store::archive::{END, Load, Member};
use crate::rules::store::manifest::{Item, ItemKind, ORDINARY, hex};
use crate::rules::store::pace::Pace;
use crate::supervisor::checkpoints::commit::dedup::Sent;
use crate::supervisor::checkpoints::commit::hard_links::Held;
use crate::supervisor::checkpoints::commit::memory::Memory;
use crate::supervisor::checkpoints::directory::sums::Sums;
use crate::supervisor::checkpoints::failure::Stop;

/// Between two checks whether the rate limit was lifted.
const POLL: Duration = Duration::from_millis(50);

/// The state that the files of one commit share while they are sent.
pub(crate) struct Sending<'a> {
    pub(crate) store: &'a Arc<Store>,
    pub(crate) dir: &'a Arc<RootedDir>,
    /// The rate limit while the trainer runs.
    pub(crate) pace: Option<&'a Mutex<Pace>>,
    pub(crate) sizes: PartSizes,
    pub(crate) memory: Memory,
    threads: TransferThreads,
    clock: Clock,
    /// Called with the number of bytes that were sent.
    report: &'a dyn Fn(u64),
    /// Keys that the store was asked to write.
    uncommitted: &'a RefCell<Vec<String>>,
}

impl<'a> Sending<'a> {
    /// For files of these lengths, within the free memory. With a rate limit the pieces are small.
    pub(crate) async fn begin(
        (dir, store): (&'a Arc<RootedDir>, &'a Arc<Store>),
        pace: Option<&'a Mutex<Pace>>,
        lengths: impl Iterator<Item = u64>,
        report: &'a dyn Fn(u64),
        uncommitted: &'a RefCell<Vec<String>>,
    ) -> Sending<'a> {
        let memory = Memory::now();
        let sizes = memory.fit(store.part_sizes());
        let sizes = if pace.is_some() { sizes.for_background() } else { sizes };
        let puts: u64 = lengths.map(|length| sizes.puts_of(length)).sum();
        let threads = TransferThreads::open_several(sizes.at_once.min(puts as usize)).await;
        let clock = Clock::start();
        Sending { store, dir, pace, sizes, memory, threads, clock, report, uncommitted }
    }

    pub(crate) async fn end(self) {
        self.threads.close().await;
    }

    pub(crate) async fn send(&self, entry: &Entry, from: Held, key: String) -> Result<Sent, Stop> {
        let dir = Arc::clone(self.dir);
        let unreadable = |error: io::Error| unread(entry, &error);
        self.uncommitted.borrow_mut().push(key.clone());
        if entry.size <= self.sizes.whole {
            self.wait_for_rate_limit(entry.size).await;
            let _held = self.memory.hold(entry.size).await;
            let read = self.memory.read(move || from.open(&dir), 0, entry.size, Sums::default(), true);
            let (blocks, sums) = read.await.map_err(unreadable)?;
            let etag = self.put(&key, blocks, sums.whole()).await?;
            (self.report)(entry.size);
            return Ok(self.sent(entry, key, etag, sums));
        }
        let file = blocking(move || from.open(&dir)).await.map_err(unreadable)?;
        let mut upload = self.store.begin(&key).await?;
        let sums = self.send_parts(&mut upload, file, entry).await?;
        let etag = upload.finish(sums.whole()).await?;
        Ok(self.sent(entry, key, etag, sums))
    }

    /// Reads in order and sends as many parts at once as memory allows.
    async fn send_parts(&self, upload: &mut Upload, file: File, entry: &Entry) -> Result<Sums, Stop> {
        let (part, size, file) = (self.sizes.part_of(entry.size), entry.size, &file);
        let all = Cell::new(Sums::default());
        let all = &all;
        let reads = stream::try_unfold(0, |at| async move {
            if at == size {
                return Ok(None);
            }
            let wanted = part.min(size - at);
            self.wait_for_rate_limit(wanted).await;
            // Waiting for memory means waiting until a part was sent.
            let held = self.memory.hold(wanted).await;
            let failed = |error: io::Error| unread(entry, &error);
            let reader = file.try_clone().map_err(failed)?;
            let read = self.memory.read(move || Ok(reader), at, wanted, all.take(), at + wanted == size);
            let (blocks, sums) = read.await.map_err(failed)?;
            all.set(sums);
            Ok(Some(((blocks, held, wanted), at + wanted)))
        });
        let sent = reads.map_ok(|(blocks, held, wanted)| {
            let sent = self.run(&entry.path, upload.part(blocks));
            async move {
                let _held = held;
                sent.await?;
                (self.report)(wanted);
                Ok::<(), Stop>(())
            }
        });
        sent.try_buffer_unordered(self.sizes.at_once).try_collect::<()>().await?;
        Ok(all.take())
    }

    pub(crate) async fn send_load(
        &self,
        load: Load<'_>,
        held: impl Fn(&Entry) -> Held,
        key: String,
    ) -> Result<Vec<Sent>, Stop> {
        match load {
            Load::Alone(entry) => Ok(vec![self.send(entry, held(entry), key).await?]),
            Load::Together(members) => self.send_archive(&members, held, key).await,
        }
    }

    async fn send_archive(
        &self,
        members: &[Member<'_>],
        held: impl Fn(&Entry) -> Held,
        key: String,
    ) -> Result<Vec<Sent>, Stop> {
        self.uncommitted.borrow_mut().push(key.clone());
        self.wait_for_rate_limit(members.iter().map(Member::length).sum()).await;
        let _held = self.memory.hold_archive().await;
        let (archive, sums) = self.gather(members, held).await?;
        let crc32c = crc32c::crc32c(&archive);
        let etag = self.put(&key, vec![archive], crc32c).await?;
        let (mut sent, mut at) = (Vec::with_capacity(members.len()), 0);
        for (member, sums) in members.iter().zip(sums) {
            let mut one = self.sent(member.entry, key.clone(), etag.clone(), sums);
            one.item.offset = Some(at + member.own().start);
            at += member.length();
            sent.push(one);
        }
        (self.report)(members.iter().map(|member| member.entry.size).sum());
        Ok(sent)
    }

    async fn gather(&self, members: &[Member<'_>], held: impl Fn(&Entry) -> Held) -> Result<(Bytes, Vec<Sums>), Stop> {
        let (dir, pool) = (Arc::clone(self.dir), self.memory.archives.clone());
        let length = members.iter().map(Member::length).sum::<u64>() + END.len() as u64;
        // Owned, for another thread.
        let owned = members.iter().map(|member| (held(member.entry), *member.header(), member.own(), member.length()));
        let owned: Vec<_> = owned.collect();
        let gathered = blocking(move || {
            let (mut archive, mut all, mut at) = (pool.take()?, Vec::with_capacity(owned.len()), 0);
            let filled = archive.fill(length, |room| {
                room.fill(0);
                let (size, mut rest) = (room.len(), room);
                for (number, (held, header, own, length)) in owned.into_iter().enumerate() {
                    at = number;
                    let (place, more) = mem::take(&mut rest).split_at_mut(length as usize);
                    rest = more;
                    place[..own.start as usize].copy_from_slice(&header);
                    let (place, mut sums) = (&mut place[own.start as usize..own.end as usize], Sums::default());
                    read_whole(&held.open(&dir)?, place, &mut sums)?;
                    all.push(sums);
                }
                Ok(size)
            });
            Ok(match filled {
                Ok(()) => Ok((Bytes::from_owner(archive), all)),
                Err(error) => Err((at, error)),
            })
        });
        match gathered.await {
            Ok(Ok(gathered)) => Ok(gathered),
            Ok(Err((number, error))) => Err(unread(members[number].entry, &error)),
            Err(error) => Err(unread(members[0].entry, &error)),
        }
    }

    async fn put(&self, key: &str, blocks: Vec<Bytes>, crc32c: u32) -> Result<Option<String>, StoreError> {
        let (store, to) = (Arc::clone(self.store), key.to_owned());
        self.run(key, async move { store.put(&to, blocks, crc32c).await }).await
    }

    /// Runs the upload on a transfer thread, if there is one.
    async fn run<T: Send + 'static>(
        &self,
        key: &str,
        put: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let put = self.threads.run(|_| async move { Ok(put.await) });
        put.await.unwrap_or_else(|error| Err(self.store.useless("write", key, &error.to_string())))
    }

    /// Waits until the rate limit allows these bytes, or is lifted.
    async fn wait_for_rate_limit(&self, bytes: u64) {
        let Some(pace) = self.pace else { return };
        let lock = || pace.lock().unwrap_or_else(PoisonError::into_inner);
        let at = lock().admit(self.clock.now(), bytes);
        while lock().is_capped() {
            let left = at.saturating_sub(self.clock.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(POLL)).await;
        }
    }

    fn sent(&self, entry: &Entry, key: String, etag: Option<String>, sums: Sums) -> Sent {
        let Sent { entry, item } = Sent::of(entry, ItemKind::File);
        Sent { entry, item: Item { key, etag, crc32c: hex(sums.whole()), chunks: Some(sums.chunks()), ..item } }
    }
}

/// Fills `place` from a file. Errors: as pread(2); [`io::ErrorKind::UnexpectedEof`] if the file is shorter.
fn read_whole(file: &File, place: &mut [u8], sums: &mut Sums) -> io::Result<()> {
    let read = read_into(file, 0, place, |bytes| sums.add(bytes))?;
    forget(file);
    if read < place.len() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// The error for a file that cannot be read.
fn unread(entry: &Entry, error: &io::Error) -> Stop {
    let path = &entry.path;
    let way_out = match error.kind() {
        io::ErrorKind::NotFound => return Stop::Changed(format!("{path} vanished while it was copied")),
        io::ErrorKind::UnexpectedEof => return Stop::Changed(format!("{path} became shorter while it was copied")),
        io::ErrorKind::PermissionDenied => "trainit's user must be allowed to read what the trainer writes",
        _ => limits::way_out(error, "see that its disk is sound"),
    };
    Stop::Failed(format!("cannot read {path}: {error}; without it no copy is whole; {way_out}"))
}

/// Symbolic links, and directories that are empty or have unusual modes.
pub(crate) fn without_data(entries: &[&Entry]) -> Vec<Sent> {
    let parents: BTreeSet<&str> = entries.iter().map(|e| parent_of(&e.path)).collect();
    let sent = |entry: &&Entry| match &entry.kind {
        Kind::Symlink(target) => {
            let mut sent = Sent::of(entry, ItemKind::Symlink);
            sent.item.target = Some(target.clone());
            Some(sent)
        }
        Kind::Directory if !parents.contains(entry.path.as_str()) || entry.mode != ORDINARY => {
            Some(Sent::of(entry, ItemKind::Directory))
        }
        _ => None,
    };
    entries.iter().filter_map(sent).collect()
}

pub(crate) fn unusual_directories(entries: &[&Entry]) -> Vec<Sent> {
    let unusual = entries.iter().filter(|entry| entry.kind == Kind::Directory && entry.mode != ORDINARY);
    unusual.map(|entry| Sent::of(entry, ItemKind::Directory)).collect()
}

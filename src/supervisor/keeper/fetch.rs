//! The files of one commit on their way in: fetched part by part, summed, written beside their place. Which commit, and
//! where the files end up, is decided in `restore`.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::mem;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::Semaphore;

use super::budget::Budget;
use super::in_place::is_strongly_equal;
use super::mirror::{Mirror, MirrorError, blocking};
use super::retention::lack;
use super::send::sizes;
use super::sums::Compared;
use crate::edge::beneath::{Beneath, finish_file, write_sparsely};
use crate::edge::clock::Clock;
use crate::edge::lanes::Lanes;
use crate::edge::pool::{Buffer, Pool};
use crate::edge::store::{Store, StoreError};
use crate::rules::checkpoint::archive::{RUN, runs};
use crate::rules::checkpoint::listing::is_below;
use crate::rules::checkpoint::manifest::{Item, ItemKind, Manifest, SMALL, hex, joined};

/// Bytes written at a time; a file of no more is small.
pub(super) const BLOCK: u64 = SMALL;

/// Where a file takes as many bytes a second, and this long beside, what comes is written where it comes in. Elsewhere, where
/// many writes at once may be quicker than one, they are given threads of their own.
const QUICK: f64 = (256 << 20) as f64;
const PAUSE: Duration = Duration::from_millis(20);

/// Chunks of one file under way at once.
const CHUNKS_AT_ONCE: usize = 8;

/// What the files of one commit share on their way in.
struct Ways {
    /// Small files that may be under way at once.
    streams: Semaphore,
    /// So many of those does a chunk of a large one stand for.
    turns: u32,
    /// And so many does a run of an archive.
    turns_of_a_run: u32,
    pool: Pool,
    /// For runs of archives.
    runs: Pool,
    /// For chunks of large files.
    lanes: Lanes,
}

/// Bytes of one file to come.
struct Chunk {
    store: Arc<Store>,
    file: Arc<File>,
    key: String,
    run: Range<u64>,
    /// Whether the file has nothing there.
    sparsely: bool,
}

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
        store: &Arc<Store>,
        dir: &Arc<Beneath>,
        manifest: &Manifest,
        equal: &HashSet<String>,
        temporary: &str,
    ) -> Result<(), Stop> {
        let local = |error: io::Error| Stop::Fatal(self.unusable(&error));
        let whole_unit = manifest.is_directory();
        let directories = manifest.directories();
        let is_inside = |path: &str| directories.iter().any(|directory| is_below(path, directory));
        let habits = Budget::now().fit(store.habits());
        let is_large = |item: &&Item| item.size > BLOCK;
        let ways = Ways {
            streams: Semaphore::new(habits.at_once),
            turns: habits.small_for_a_part(),
            turns_of_a_run: habits.small_for_a_part().max((RUN / BLOCK) as u32).min(habits.at_once as u32),
            pool: Pool::new(BLOCK),
            runs: Pool::new(RUN),
            lanes: Lanes::open(manifest.regular().filter(is_large).count()).await,
        };
        let shared = &ways;
        let wanted = manifest.regular().filter(|f| is_inside(&f.path) || !equal.contains(&f.path));
        let (archived, others): (Vec<&Item>, Vec<&Item>) =
            wanted.partition(|f| f.offset.is_some() && !equal.contains(&f.path));
        let others = others.into_iter().map(|item| vec![item]);
        let loads = runs(archived).into_iter().chain(others).map(|load| async move {
            if let [item] = load[..] {
                let to = format!("{temporary}/{}", item.path);
                // What is here already gets a second name; where that cannot be, it is fetched like the rest.
                if !(equal.contains(&item.path) && link(dir, &item.path, &to).await) {
                    self.fetch_file(store, dir, item, &to, shared).await?;
                }
            } else {
                self.fetch_run(store, dir, &load, temporary, shared).await?;
            }
            self.config.faults.point(21);
            Ok(())
        });
        stream::iter(loads).buffer_unordered(habits.at_once).try_collect::<()>().await?;
        ways.lanes.close().await;
        let others = manifest.files.iter().filter(|f| f.kind != ItemKind::File);
        let others: Vec<_> = others
            .map(|f| (format!("{temporary}/{}", f.path), f.kind, f.mode, f.target.clone().filter(|_| whole_unit)))
            .collect();
        let mode = manifest.unit_mode.filter(|_| whole_unit);
        let unit = mode.map(|mode| (format!("{temporary}/{}", manifest.unit), mode));
        let dir = Arc::clone(dir);
        let flushed = blocking(move || {
            for (to, kind, mode, target) in &others {
                match (kind, target) {
                    (ItemKind::Symlink, Some(target)) => dir.link_symbolically(to, target)?,
                    (ItemKind::Directory, _) => dir.create_directory(to).and_then(|()| dir.set_mode(to, *mode))?,
                    _ => {}
                }
            }
            unit.map_or(Ok(()), |(unit, mode)| dir.set_mode(&unit, mode))?;
            dir.sync_all()
        });
        flushed.await.map_err(local)
    }

    async fn fetch_file(
        &self,
        store: &Arc<Store>,
        dir: &Arc<Beneath>,
        item: &Item,
        to: &str,
        ways: &Ways,
    ) -> Result<(), Stop> {
        let local = |error: io::Error| self.unwritable(item, &error);
        if item.size <= BLOCK {
            let _turn = ways.streams.acquire().await;
            return self.fetch_small(store, dir, item, to, &ways.pool).await;
        }
        let (there, path) = (Arc::clone(dir), to.to_owned());
        let file = Arc::new(blocking(move || there.create_file(&path)).await.map_err(local)?);
        let (size, sums) = match &item.chunks {
            Some(chunks) => (chunks.size, chunks.crc32c.clone()),
            None => (item.size.max(1), vec![item.crc32c.clone(); usize::from(item.size > 0)]),
        };
        let (file, sums) = (&file, &sums);
        let chunks = sums.iter().enumerate().map(|(number, wanted)| async move {
            let _turn = ways.streams.acquire_many(ways.turns).await;
            let from = number as u64 * size;
            let length = size.min(item.size - from);
            let fetch = async |sparsely| {
                let (store, file, key) = (Arc::clone(store), Arc::clone(file), item.key.clone());
                let chunk = Chunk { store, file, key, run: from..from + length, sparsely };
                ways.lanes.carry(|may_wait| fetch_chunk(chunk, may_wait)).await.map_err(local)
            };
            let mut came = fetch(true).await?;
            // Written without holes over what the first try left.
            if is_spoilt(&came, wanted) {
                came = fetch(false).await?;
            }
            Ok((proven(self, store, item, came, wanted).await?, length))
        });
        let mut chunks = pin!(stream::iter(chunks).buffered(CHUNKS_AT_ONCE));
        let mut whole = 0;
        while let Some((crc, length)) = chunks.next().await.transpose()? {
            whole = joined(whole, crc, length);
            self.transfer.moved(length);
        }
        if hex(whole) != item.crc32c {
            return Err(Stop::Reject(format!("{} does not match its checksum in the manifest", item.path)));
        }
        let (written, wanted) = (Arc::clone(file), item.clone());
        let is_equal = blocking(move || {
            finish_file(&written, wanted.size, wanted.mode, wanted.mtime_ns)?;
            is_strongly_equal(&written, &wanted)
        });
        if is_equal.await.map_err(local)? { Ok(()) } else { Err(other_hash(item)) }
    }

    /// A file that is fetched before it is written, and written in one go.
    async fn fetch_small(
        &self,
        store: &Store,
        dir: &Arc<Beneath>,
        item: &Item,
        to: &str,
        pool: &Pool,
    ) -> Result<(), Stop> {
        let mut bytes = pool.take().map_err(|error| self.unwritable(item, &error))?;
        let mut came = whole(store, item, &mut bytes).await;
        if is_spoilt(&came, &item.crc32c) {
            came = whole(store, item, &mut bytes).await;
        }
        proven(self, store, item, came, &item.crc32c).await?;
        if item.blake3.as_ref().is_some_and(|wanted| blake3::hash(bytes.as_ref()).to_hex().as_str() != wanted) {
            return Err(other_hash(item));
        }
        let (dir, to) = (Arc::clone(dir), to.to_owned());
        let (size, mode, mtime_ns) = (item.size, item.mode, item.mtime_ns);
        let written = blocking(move || write_small(&dir, &to, bytes.as_ref(), (size, mode, mtime_ns)));
        written.await.map_err(|error| self.unwritable(item, &error))?;
        self.transfer.moved(item.size);
        Ok(())
    }

    /// Small files that lie side by side in an archive. One that comes damaged is fetched by itself.
    async fn fetch_run(
        &self,
        store: &Store,
        dir: &Arc<Beneath>,
        run: &[&Item],
        temporary: &str,
        ways: &Ways,
    ) -> Result<(), Stop> {
        let _turn = ways.streams.acquire_many(ways.turns_of_a_run).await;
        let mut bytes = ways.runs.take().map_err(|error| self.unwritable(run[0], &error))?;
        let from = run[0].run().start;
        let until = run.iter().map(|item| item.run().end).max().unwrap_or(from);
        let came = gather(store, &run[0].key, from..until, &mut bytes).await;
        if let Err(error) = came
            && !error.is_doubtful()
        {
            return Err(unreadable(self, store, run[0], &error).await);
        }
        let (there, to) = (Arc::clone(dir), temporary.to_owned());
        let items: Vec<Item> = run.iter().map(|item| (*item).clone()).collect();
        let written = blocking(move || {
            let mut spoilt = Vec::new();
            for (number, item) in items.into_iter().enumerate() {
                let own = item.run();
                let own = bytes.as_ref().get((own.start - from) as usize..(own.end - from) as usize);
                let Some(own) = own.filter(|own| is_whole(&item, own)) else {
                    spoilt.push(number);
                    continue;
                };
                let written =
                    write_small(&there, &format!("{to}/{}", item.path), own, (item.size, item.mode, item.mtime_ns));
                if let Err(error) = written {
                    return Ok(Err((number, error)));
                }
            }
            Ok(Ok(spoilt))
        });
        let spoilt = match written.await {
            Ok(Ok(spoilt)) => spoilt,
            Ok(Err((number, error))) => return Err(self.unwritable(run[number], &error)),
            Err(error) => return Err(self.unwritable(run[0], &error)),
        };
        for (number, item) in run.iter().enumerate() {
            if spoilt.contains(&number) {
                self.fetch_small(store, dir, item, &format!("{temporary}/{}", item.path), &ways.pool).await?;
            } else {
                self.transfer.moved(item.size);
            }
        }
        Ok(())
    }

    fn unwritable(&self, item: &Item, error: &io::Error) -> Stop {
        Stop::Fatal(match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => MirrorError::store(format!(
                "no space left in {} while restoring {}; what was written of it is removed, nothing else; free space there",
                self.config.dir.display(),
                item.path
            )),
            _ => self.unusable(error),
        })
    }
}

/// Gives what is here a second name; whether that could be.
async fn link(dir: &Arc<Beneath>, path: &str, to: &str) -> bool {
    let (dir, path, to) = (Arc::clone(dir), path.to_owned(), to.to_owned());
    blocking(move || dir.link(&path, &to)).await.is_ok()
}

/// Fetches and writes a run of bytes; returns their checksum. The outer error is the disk's.
async fn fetch_chunk(chunk: Chunk, mut may_wait: bool) -> io::Result<Result<u32, StoreError>> {
    let Chunk { store, file, key, run, sparsely } = chunk;
    let (mut crc, mut at) = (0, run.start);
    let mut reading = match store.read(&key, at, run.end - run.start).await {
        Ok(reading) => reading,
        Err(error) => return Ok(Err(error)),
    };
    let (mut pieces, mut held, mut waited) = (Vec::new(), 0, Duration::ZERO);
    loop {
        let piece = match reading.next().await {
            Ok(piece) => piece,
            Err(error) => return Ok(Err(error)),
        };
        let is_over = piece.is_none();
        held += piece.as_ref().map_or(0, Bytes::len) as u64;
        pieces.extend(piece);
        if may_wait || is_over || held >= BLOCK {
            let (file, pieces, clock) = (Arc::clone(&file), mem::take(&mut pieces), Clock::start());
            let write = move || write(&file, at, pieces, crc, sparsely);
            crc = if may_wait { write()? } else { blocking(write).await? };
            at += mem::take(&mut held);
            waited += clock.now();
            may_wait = may_wait && is_quick(at - run.start, waited);
        }
        if is_over {
            return Ok(Ok(crc));
        }
    }
}

/// Whether a file that has taken so many bytes in that time does not keep others waiting.
fn is_quick(bytes: u64, taken: Duration) -> bool {
    taken < PAUSE + Duration::from_secs_f64(bytes as f64 / QUICK)
}

/// Writes what came, piece after piece, at its place; returns the checksum of what was written before with theirs.
fn write(file: &File, mut at: u64, pieces: Vec<Bytes>, mut crc: u32, sparsely: bool) -> io::Result<u32> {
    for piece in pieces {
        if sparsely {
            write_sparsely(file, at, &piece)?;
        } else {
            file.write_all_at(&piece, at)?;
        }
        crc = crc32c::crc32c_append(crc, &piece);
        at += piece.len() as u64;
    }
    Ok(crc)
}

fn other_hash(item: &Item) -> Stop {
    Stop::Reject(format!("{} does not match its blake3 in the manifest", item.path))
}

/// The bytes of a small file; returns their checksum.
async fn whole(store: &Store, item: &Item, bytes: &mut Buffer) -> Result<u32, StoreError> {
    gather(store, &item.key, item.run(), bytes).await?;
    Ok(crc32c::crc32c(bytes.as_ref()))
}

/// A run of an object's bytes.
async fn gather(store: &Store, key: &str, run: Range<u64>, bytes: &mut Buffer) -> Result<(), StoreError> {
    bytes.clear();
    let mut reading = store.read(key, run.start, run.end - run.start).await?;
    while let Some(piece) = reading.next().await? {
        bytes.gather(&piece);
    }
    Ok(())
}

/// Whether these are the bytes of a file.
fn is_whole(item: &Item, bytes: &[u8]) -> bool {
    let mut sums = Compared::with(item);
    sums.add(bytes);
    sums.found().is_of(item)
}

/// Writes a file with its size, permission bits and modification time.
fn write_small(dir: &Beneath, to: &str, bytes: &[u8], (size, mode, mtime_ns): (u64, u32, i64)) -> io::Result<()> {
    let file = dir.create_file(to)?;
    write_sparsely(&file, 0, bytes)?;
    finish_file(&file, size, mode, mtime_ns)
}

/// Whether it is fetched once more: it came damaged, or not at all.
fn is_spoilt(came: &Result<u32, StoreError>, wanted: &str) -> bool {
    match came {
        Ok(crc) => hex(*crc) != wanted,
        Err(error) => error.is_doubtful(),
    }
}

/// The checksum of what came in the end, where it is the one that is wanted.
async fn proven(
    mirror: &Mirror,
    store: &Store,
    item: &Item,
    came: Result<u32, StoreError>,
    wanted: &str,
) -> Result<u32, Stop> {
    match came {
        Ok(crc) if hex(crc) == wanted => Ok(crc),
        Ok(_) => Err(Stop::Reject(format!("{} does not match its checksum in the store", item.path))),
        Err(error) => Err(unreadable(mirror, store, item, &error).await),
    }
}

/// What it means that an object did not come. Where the store lists it whole, and where it lists nothing, an older commit
/// must not be taken for the newest: the next that is committed would outlive this one.
async fn unreadable(mirror: &Mirror, store: &Store, item: &Item, error: &StoreError) -> Stop {
    if !error.is_doubtful() {
        return Stop::Fatal(mirror.away(error));
    }
    match sizes(store, std::iter::once(item)).await.map(|there| lack(item, &there)) {
        Ok(Some(why)) => Stop::Reject(why),
        Ok(None) => Stop::Fatal(MirrorError::store(format!(
            "{error}, twice, and the store lists it whole: no older checkpoint is taken in its place; {} again, or name an older step with --restore-step if it stays so",
            if mirror.is_by_hand() { "pull" } else { "start" }
        ))),
        Err(error) => Stop::Fatal(mirror.away(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_takes_long_is_told_from_one_that_paused() {
        let ms = Duration::from_millis;
        assert!(is_quick(0, ms(19)) && is_quick(256 << 20, ms(1019)));
        assert!(!is_quick(0, ms(20)) && !is_quick(1 << 20, ms(30)) && !is_quick(256 << 20, ms(1021)));
    }
}

//! Fetches files of one commit to a temporary directory and checks their checksums. The caller chooses the commit and installs
//! the files.
//!
//! Data is fetched in runs of bytes of one object. A chunk of a large file is written while it arrives. A small file, or
//! neighbours in an archive, are written when the whole run has arrived.

use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::Semaphore;

use crate::edge::fs::rooted_dir::{RootedDir, finish_file, write_sparsely};
use crate::edge::store::{Store, StoreError};
use crate::edge::transfer::blocking::blocking;
use crate::edge::transfer::buffer_pool::{Buffer, Pool};
use crate::edge::transfer::ranges::{BLOCK, fetch_range};
use crate::edge::transfer::threads::TransferThreads;
use crate::rules::store::archive::{RUN, runs};
use crate::rules::store::manifest::{Item, hex, joined};
use crate::supervisor::checkpoints::commit::memory::Memory;
use crate::supervisor::checkpoints::config::Config;
use crate::supervisor::checkpoints::directory::sums::Sums;
use crate::supervisor::checkpoints::failure::{Failure, Refusal};
use crate::supervisor::checkpoints::progress::Listeners;
use crate::supervisor::checkpoints::store::commits::{lack, sizes};

const CHUNKS_AT_ONCE: usize = 8;

/// The resources that the files of one commit share.
struct Resources {
    /// The limit of small files in transfer at once.
    streams: Semaphore,
    /// Permits for a chunk of a large file.
    turns: u32,
    /// Permits for a run of an archive.
    turns_of_a_run: u32,
    pool: Pool,
    runs: Pool,
    /// For chunks of large files.
    threads: TransferThreads,
}

/// The source and the destination of a fetch.
#[derive(Clone, Copy)]
pub(crate) struct Fetching<'a> {
    pub(crate) store: &'a Arc<Store>,
    pub(crate) dir: &'a Arc<RootedDir>,
    pub(crate) config: &'a Config,
    pub(crate) listeners: &'a Listeners,
}

impl Fetching<'_> {
    /// Fetches these files into the temporary place, durably.
    pub(crate) async fn fetch(self, wanted: Vec<&Item>, temporary: &str) -> Result<(), Refusal> {
        let sizes = Memory::now().fit(self.store.part_sizes());
        let resources = Resources {
            streams: Semaphore::new(sizes.at_once),
            turns: sizes.small_for_a_part(),
            turns_of_a_run: sizes.small_for_a_part().max((RUN / BLOCK) as u32).min(sizes.at_once as u32),
            pool: Pool::new(BLOCK),
            runs: Pool::new(RUN),
            threads: TransferThreads::open(wanted.iter().filter(|item| item.size > BLOCK).count()).await,
        };
        let shared = &resources;
        let (archived, others): (Vec<&Item>, Vec<&Item>) = wanted.into_iter().partition(|f| f.offset.is_some());
        let others = others.into_iter().map(|item| vec![item]);
        let loads = runs(archived).into_iter().chain(others).map(|load| async move {
            match load[..] {
                [item] if item.size > BLOCK => {
                    self.fetch_large(item, &format!("{temporary}/{}", item.path), shared).await?
                }
                _ => self.fetch_run(&load, temporary, shared).await?,
            }
            self.config.faults.point(21);
            Ok(())
        });
        stream::iter(loads).buffer_unordered(sizes.at_once).try_collect::<()>().await?;
        resources.threads.close().await;
        let dir = Arc::clone(self.dir);
        let flushed = blocking(move || dir.sync_all()).await;
        flushed.map_err(|error| Refusal::Fatal(self.config.unusable(&error)))
    }

    async fn fetch_large(self, item: &Item, to: &str, shared: &Resources) -> Result<(), Refusal> {
        let local = |error: io::Error| self.config.unwritable(&item.path, &error);
        let (dir, path) = (Arc::clone(self.dir), to.to_owned());
        let file = Arc::new(blocking(move || dir.create_file(&path)).await.map_err(local)?);
        let (size, sums) = match &item.chunks {
            Some(chunks) => (chunks.size, chunks.crc32c.clone()),
            None => (item.size, vec![item.crc32c.clone()]),
        };
        let (file, sums) = (&file, &sums);
        let chunks = sums.iter().enumerate().map(|(number, wanted)| async move {
            let _turn = shared.streams.acquire_many(shared.turns).await;
            let from = number as u64 * size;
            let run = from..item.size.min(from + size);
            let fetch = async |sparsely| {
                let (store, file, key) = (Arc::clone(self.store), Arc::clone(file), item.key.clone());
                let chunk = fetch_range(store, file, key, run.clone(), sparsely);
                shared.threads.run(|_| chunk).await.map_err(local)
            };
            let mut fetched = fetch(true).await?;
            // Without holes, because the first try has written bytes.
            if fetched.as_ref().map_or_else(StoreError::is_doubtful, |fetched| hex(fetched.crc32c) != *wanted) {
                fetched = fetch(false).await?;
            }
            match fetched {
                Ok(fetched) if hex(fetched.crc32c) == *wanted => Ok((fetched.crc32c, run.end - run.start)),
                Ok(_) => Err(damaged(item)),
                Err(error) => Err(self.unreadable(item, &error).await),
            }
        });
        let mut chunks = pin!(stream::iter(chunks).buffered(CHUNKS_AT_ONCE));
        let mut whole = 0;
        while let Some((crc, length)) = chunks.next().await.transpose()? {
            whole = joined(whole, crc, length);
            self.listeners.moved(length);
        }
        if hex(whole) != item.crc32c {
            return Err(Refusal::Reject(format!("{} does not match its checksum in the manifest", item.path)));
        }
        let (written, wanted) = (Arc::clone(file), item.clone());
        let finished = blocking(move || finish_file(&written, wanted.size, wanted.mode, wanted.mtime_ns));
        finished.await.map_err(local)
    }

    /// Fetches small files that are neighbours in an object. Damaged files are fetched once more, one by one.
    async fn fetch_run(self, run: &[&Item], temporary: &str, shared: &Resources) -> Result<(), Refusal> {
        let (turns, pool) = if run.len() > 1 { (shared.turns_of_a_run, &shared.runs) } else { (1, &shared.pool) };
        let _turn = shared.streams.acquire_many(turns).await;
        for (item, _) in self.try_run(run, temporary, pool).await? {
            match self.try_run(&[item], temporary, &shared.pool).await?.pop() {
                None => {}
                Some((_, Some(error))) => return Err(self.unreadable(item, &error).await),
                Some((_, None)) => return Err(damaged(item)),
            }
        }
        Ok(())
    }

    /// Returns the files that are damaged or missing, the first with the error.
    async fn try_run<'b>(
        self,
        run: &[&'b Item],
        temporary: &str,
        pool: &Pool,
    ) -> Result<Vec<(&'b Item, Option<StoreError>)>, Refusal> {
        let unwritable = |number: usize, error: io::Error| self.config.unwritable(&run[number].path, &error);
        let mut bytes = pool.take().map_err(|error| unwritable(0, error))?;
        let from = run[0].run().start;
        let until = run.iter().map(|item| item.run().end).max().unwrap_or(from);
        let mut failed = match gather(self.store, &run[0].key, from..until, &mut bytes).await {
            Err(error) if !error.is_doubtful() => return Err(self.unreadable(run[0], &error).await),
            fetched => fetched.err(),
        };
        let (dir, to) = (Arc::clone(self.dir), temporary.to_owned());
        let items: Vec<Item> = run.iter().map(|item| (*item).clone()).collect();
        let written = blocking(move || {
            let mut damaged = Vec::new();
            for (number, item) in items.into_iter().enumerate() {
                let own = item.run();
                let own = bytes.as_ref().get((own.start - from) as usize..(own.end - from) as usize);
                let Some(own) = own.filter(|own| is_whole(&item, own)) else {
                    damaged.push(number);
                    continue;
                };
                if let Err(error) = write_small(&dir, &format!("{to}/{}", item.path), own, &item) {
                    return Ok(Err((number, error)));
                }
            }
            Ok(Ok(damaged))
        });
        let damaged = match written.await {
            Ok(Ok(damaged)) => damaged,
            Ok(Err((number, error))) => return Err(unwritable(number, error)),
            Err(error) => return Err(unwritable(0, error)),
        };
        let whole = run.iter().enumerate().filter(|(number, _)| !damaged.contains(number));
        self.listeners.moved(whole.map(|(_, item)| item.size).sum());
        Ok(damaged.into_iter().map(|number| (run[number], failed.take())).collect())
    }

    /// The error for an object that cannot be read. It is fatal if the store lists the object as complete, or cannot list it:
    /// an older commit must not replace the newest, because later commits would expire it.
    async fn unreadable(self, item: &Item, error: &StoreError) -> Refusal {
        if !error.is_doubtful() {
            return Refusal::Fatal(self.config.away(error));
        }
        match sizes(self.store, std::iter::once(item)).await.map(|sizes| lack(item, &sizes)) {
            Ok(Some(why)) => Refusal::Reject(why),
            Ok(None) => Refusal::Fatal(Failure::store(format!(
                "{error}, twice, and the store lists it whole: no older checkpoint is taken in its place; {} again, or name an older step with --restore-step if it stays so",
                if self.config.is_by_hand() { "pull" } else { "start" }
            ))),
            Err(error) => Refusal::Fatal(self.config.away(&error)),
        }
    }
}

fn damaged(item: &Item) -> Refusal {
    Refusal::Reject(format!("{} does not match its checksum in the store", item.path))
}

async fn gather(store: &Store, key: &str, run: Range<u64>, bytes: &mut Buffer) -> Result<(), StoreError> {
    let mut reading = store.read(key, run.start, run.end - run.start).await?;
    while let Some(piece) = reading.next().await? {
        bytes.gather(&piece);
    }
    Ok(())
}

fn is_whole(item: &Item, bytes: &[u8]) -> bool {
    let mut sums = Sums::default();
    sums.add(bytes);
    sums.are_of(item)
}

fn write_small(dir: &RootedDir, to: &str, bytes: &[u8], item: &Item) -> io::Result<()> {
    let file = dir.create_file(to)?;
    write_sparsely(&file, 0, bytes)?;
    finish_file(&file, item.size, item.mode, item.mtime_ns)
}

//! Fetches training data before the first start (`--fetch`). `rules/store/fetch` decides which objects are fetched.
//!
//! A file is written to a hidden temporary file in the same directory and renamed when it is complete. Then a line is
//! appended to the index.
//! After a kill, the next fetch continues with the missing files. Deliberately absent: flushing small files to the device. A
//! file that a crash of the machine has cut differs in its size, so it is fetched again.

mod transfer;

use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::edge::fs::rooted_dir::RootedDir;
use crate::edge::host::limits;
use crate::edge::store::{self, Access, Store, StoreError, Trouble};
use crate::edge::transfer::blocking::blocking;
use crate::rules::checkpoint::listing::Kind;
use crate::rules::job::Event;
use crate::rules::process::exit;
use crate::rules::store::address::Address;
use crate::rules::store::fetch::index::{INDEX, Index, LONGEST_LINE};
use crate::rules::store::fetch::plan::{Object, Plan, plan};
use crate::rules::store::fetch::source::Source;
use crate::rules::text::safe_text::counted;
use crate::rules::text::transfer_progress::{amount, summary};
use crate::supervisor::checkpoints::failure::{Failure, IN_THE_WAY, way_out};
use transfer::{Transfer, Wrong};

/// The pause between two tries to lock the directory.
const LOCK_PAUSE: Duration = Duration::from_millis(250);

/// Why a job without its data does not start.
const NOT_STARTED: &str = "nothing was started, because the training data are not complete";

/// One source, and the directory for its data.
#[derive(Debug, Clone)]
pub struct Fetch {
    /// The source.
    pub source: Source,
    /// The directory.
    pub dir: PathBuf,
    /// The options to open the store.
    pub access: Access,
}

/// Fetches one source after the other.
pub(super) async fn all(fetches: Vec<Fetch>) -> Event {
    for fetch in &fetches {
        if let Err(Failure { message, code }) = fetch.run().await {
            return Event::NotFetched { code, detail: message };
        }
    }
    Event::Fetched
}

impl Fetch {
    async fn run(&self) -> Result<(), Failure> {
        let clock = Clock::start();
        let dir = self.dir.clone();
        let opened = blocking(move || RootedDir::create(&dir).map(Arc::new)).await;
        let dir = opened.map_err(|error| self.unwritable(&error))?;
        self.lock(&dir).await?;
        let (store, listed) = self.list().await?;
        let mut plan = self.plan(&dir, listed).await?;
        let (files, bytes) = (counted(plan.fetch.len(), "file"), plan.bytes());
        let unchanged = format!("{} unchanged", plan.unchanged.len());
        let (source, to) = (&self.source, self.dir.display());
        if !plan.gone.is_empty() {
            let gone = counted(plan.gone.len(), "file");
            tracing::warn!(
                code = "fetch",
                "{gone} in {to} came from {source}, which no longer has them: they are kept"
            );
        }
        if plan.fetch.is_empty() {
            tracing::info!(code = "fetch", "{source} is in {to} already: {unchanged}");
            return Ok(());
        }
        self.fits(&dir, bytes).await?;
        tracing::info!(code = "fetch", "fetching {source} into {to}: {files}, {}, {unchanged}", amount(bytes));
        let transfer = Transfer::begin(self, store, dir, &plan).await.map_err(|error| self.unwritable(&error))?;
        let objects = std::mem::take(&mut plan.fetch);
        drop(plan);
        transfer.run(objects, bytes).await?;
        tracing::info!(
            code = "fetch",
            "fetched {source} into {to}: {files}, {}, {unchanged}",
            summary(bytes, clock.now())
        );
        Ok(())
    }

    /// Waits until no other process fetches into the directory: several trainits of a node may have the same setting.
    async fn lock(&self, dir: &Arc<RootedDir>) -> Result<(), Failure> {
        let mut is_logged = false;
        loop {
            let locked = Arc::clone(dir);
            if blocking(move || locked.try_lock()).await.map_err(|error| self.unwritable(&error))? {
                return Ok(());
            }
            if !std::mem::replace(&mut is_logged, true) {
                let dir = self.dir.display();
                tracing::info!(code = "fetch", "waiting for another process that fetches into {dir}");
            }
            tokio::time::sleep(LOCK_PAUSE).await;
        }
    }

    /// The store, and its objects: those under the URL, or the one object that the URL names.
    async fn list(&self) -> Result<(Arc<Store>, Vec<Object>), Failure> {
        let is_missing = |error: &StoreError| matches!(error.trouble, Trouble::Absent | Trouble::NoDirectory);
        let open = async |address: &Address| match Store::open(address, false, &self.access).await {
            Ok(store) => Ok(Some(store)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(self.away(&error)),
        };
        if let Some(store) = open(&self.source.address).await? {
            let listed = store.list("").await.map_err(|error| self.away(&error))?;
            if !listed.is_empty() {
                return Ok((Arc::new(store), listed.into_iter().map(object).collect()));
            }
        }
        if let Some((around, name)) = self.source.as_object()
            && let Some(store) = open(&around).await?
            && let Some(found) = store.look(&name).await.map_err(|error| self.away(&error))?
        {
            return Ok((Arc::new(store), vec![object(found)]));
        }
        Err(self.refused("it has no objects"))
    }

    async fn plan(&self, dir: &Arc<RootedDir>, listed: Vec<Object>) -> Result<Plan, Failure> {
        let (dir, source) = (Arc::clone(dir), self.source.clone());
        let planned = blocking(move || {
            let index = read_index(&dir, &source.to_string())?;
            let local = |path: &str| {
                dir.look(path).ok().flatten().filter(|entry| entry.kind == Kind::File).map(|entry| entry.size)
            };
            Ok(plan(listed, &source, index, local))
        });
        planned.await.map_err(|error| self.unwritable(&error))?.map_err(|why| self.refused(&why))
    }

    /// Checks that the free space is large enough. A file system that does not report its free space is not checked.
    async fn fits(&self, dir: &Arc<RootedDir>, bytes: u64) -> Result<(), Failure> {
        let dir = Arc::clone(dir);
        match blocking(move || dir.free_bytes()).await {
            Ok(free) if free > 0 && free < bytes => Err(self.failure(
                exit::NOT_STARTED,
                &format!("{} are to be fetched and {} are free there", amount(bytes), amount(free)),
                "free space there, or name a directory on a larger disk",
            )),
            _ => Ok(()),
        }
    }

    fn failure(&self, code: u8, why: &str, way_out: &str) -> Failure {
        let message =
            format!("cannot fetch {} into {}: {why}; {NOT_STARTED}; {way_out}", self.source, self.dir.display());
        Failure { message, code }
    }

    /// The failure for a listing that cannot be used.
    fn refused(&self, why: &str) -> Failure {
        self.failure(exit::NOT_STARTED, why, "check the URL and the objects under it")
    }

    /// The failure for an error of the store.
    fn away(&self, error: &StoreError) -> Failure {
        let code = if error.trouble == Trouble::OddName { exit::NOT_STARTED } else { exit::STORE };
        self.failure(code, &error.to_string(), way_out(error))
    }

    /// The failure for a directory or file that cannot be written.
    fn unwritable(&self, error: &io::Error) -> Failure {
        let way_out = match error.raw_os_error() {
            Some(libc::ENOTDIR | libc::ELOOP | libc::EISDIR) => IN_THE_WAY,
            Some(libc::ENOSPC | libc::EDQUOT) => "free space there, or name a directory on a larger disk",
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => "make it writable for this user",
            _ => limits::way_out(error, "check its disk"),
        };
        self.failure(exit::NOT_STARTED, &error.to_string(), way_out)
    }

    fn wrong(&self, path: &str, wrong: Wrong) -> Failure {
        match wrong {
            Wrong::Disk(error) => self.unwritable(&error),
            Wrong::Store(error) => self.away(&error),
            Wrong::Corrupt(why) => self.failure(
                exit::STORE,
                &format!("{path} came twice, and {why}"),
                "check the store and the network to it, then start again",
            ),
        }
    }
}

fn object(found: store::Object) -> Object {
    let modified = found.modified.as_nanos();
    let tag = found.tag.unwrap_or_else(|| format!("modified {modified}"));
    Object { path: found.key, size: found.size, tag, modified_ns: i64::try_from(modified).unwrap_or(i64::MAX) }
}

/// Errors: as open(2), read(2).
fn read_index(dir: &RootedDir, url: &str) -> io::Result<Index> {
    let mut index = Index::default();
    let file = match dir.read_file(INDEX) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(index),
        file => file?,
    };
    let (mut reader, mut line) = (BufReader::new(file), Vec::new());
    while reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? > 0 {
        if let Ok(text) = std::str::from_utf8(&line) {
            index.read(url, text);
        }
        line.clear();
    }
    Ok(index)
}

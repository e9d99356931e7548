//! Copies the model of a finished job, file by file and unchanged, because a server expects the files of the trainer (Vertex
//! AI looks for `saved_model.pb` at the root). The target of a symbolic link is copied under the link's name, because stores
//! have no links.
//!
//! It is committed like checkpoints: data first, the manifest (`.trainit/model.json`) last. Without the manifest the model is
//! not complete. An older model is replaced file by file: first its manifest is deleted, then the files that only it has. A run
//! that finds another run's manifest at its end deletes it and fails, because the files may be a mixture.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use crate::edge::fs::links::{self, Files};
use crate::edge::fs::rooted_dir::RootedDir;
use crate::edge::fs::{real_path, walk};
use crate::edge::store::{Access, Created, Store, StoreError, Trouble};
use crate::edge::transfer::blocking::blocking;
use crate::rules::checkpoint::ends::whole;
use crate::rules::checkpoint::listing::{Listing, OWN};
use crate::rules::checkpoint::{Entry, Kind};
use crate::rules::job::COPY_AGAIN as AGAIN;
use crate::rules::store::address::{Address, Nearness};
use crate::rules::store::manifest::{Item, LIMIT};
use crate::rules::store::names::unfit;
use crate::rules::text::safe_text::and_more;
use crate::supervisor::checkpoints::commit::hard_links::Held;
use crate::supervisor::checkpoints::commit::send::Sending;
use crate::supervisor::checkpoints::failure::Stop;
use crate::supervisor::checkpoints::progress::{make_durable, with_progress};
use crate::supervisor::checkpoints::store::claim::Remote;

/// The pause before another try; it doubles each time.
const PAUSE: Duration = Duration::from_millis(500);
/// A file is sent this many times if another try may succeed.
const TRIES: u32 = 4;
const MANIFEST: &str = ".trainit/model.json";
const SCHEMA: &str = "trainit.model/1";

/// A model and its destination.
#[derive(Debug)]
pub struct LeftModel {
    /// The directory in which the trainer wrote it.
    pub dir: PathBuf,
    /// Its destination.
    pub store: Address,
    /// Whether links out of the directory are followed, too.
    pub follow: bool,
    /// The options to open the store.
    pub access: Access,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Manifest {
    schema: String,
    files: Vec<File>,
}

#[derive(Debug, Serialize, Deserialize)]
struct File {
    path: String,
    size: u64,
    crc32c: String,
}

impl LeftModel {
    /// The message for a copy that ran out of time.
    pub(crate) fn cut_off(&self) -> String {
        let (dir, store) = (self.dir.display(), &self.store);
        format!(
            "the time was up before the model in {dir} was in {store}; the copy there is complete only with {MANIFEST}; {AGAIN}"
        )
    }
}

/// Copies it. `remote`: the checkpoints' store, which shows whether a newer run has taken over; `progress` gets the bytes done
/// and the total. Errors: a newer run, or one line. The local model is unchanged.
pub(crate) async fn publish(
    model: &LeftModel,
    remote: Option<&Remote>,
    progress: &dyn Fn(u64, u64),
) -> Result<(), Stop> {
    let (dir, store) = (model.dir.display(), &model.store);
    let (at, address) = (model.dir.clone(), store.clone());
    let found = blocking(move || Ok(nearness(&at, &address))).await;
    let prepared = match found.map_err(|error| Stop::Failed(format!("{dir} cannot be read: {error}; {AGAIN}")))? {
        Nearness::Same => {
            tracing::info!("{store} is where the trainer wrote the model ({dir}): there is nothing to copy");
            return Ok(());
        }
        Nearness::Nested => {
            Err(Stop::Failed(store.nested("the place", &model.dir, "a copy of the model would be part of the model")))
        }
        Nearness::Apart => prepare(model).await,
    };
    let (listing, opened) = prepared.map_err(|stop| {
        Stop::Failed(format!(
            "the model in {dir} is not in {store}: {}; nothing there was changed; {AGAIN}",
            stop.words()
        ))
    })?;
    let (files, bytes) = (listing.files().count(), listing.files().map(|f| f.size).sum());
    let (sent, done) = (Cell::new(0), Cell::new(0));
    let report = |more: u64| {
        done.set(done.get() + more);
        progress(done.get(), bytes);
    };
    let mut before = model.access.moved();
    let moves = || {
        let now = model.access.moved();
        now != std::mem::replace(&mut before, now)
    };
    let copying = copy(&model.dir, &listing, &opened, remote, &sent, &report);
    let copied = with_progress(copying, moves, &report).await;
    // An upload that failed removes its temporary file.
    opened.wait_for_aborts().await;
    copied.map_err(|stop| match stop {
        Stop::Fenced(by) => Stop::Fenced(by),
        stop => Stop::Failed(format!(
            "the model in {dir} is not in {store}: {}; {} of its {files} files are there now, the rest is what was there \
             before; it is whole only with {MANIFEST}; {AGAIN}",
            stop.words(),
            sent.get()
        )),
    })?;
    tracing::info!(files, bytes, "the model is in {store}");
    Ok(())
}

/// The relation of the two places after the trainer has created its files. Without the mount, a directory with the name
/// of a bucket's is an ordinary local directory.
fn nearness(dir: &Path, store: &Address) -> Nearness {
    let is_bucket = matches!(store, Address::Bucket(_));
    match store.nearness(dir, &real_path::real) {
        _ if is_bucket && !real_path::is_mounted(dir) => Nearness::Apart,
        nearness => nearness,
    }
}

/// The files to copy, and the opened store, which is still unchanged.
async fn prepare(model: &LeftModel) -> Result<(Listing, Arc<Store>), Stop> {
    let listing = listed(model).await.map_err(Stop::Failed)?;
    if listing.files().next().is_none() {
        return Err(Stop::Failed("there is no file in it".to_owned()));
    }
    for file in listing.files() {
        if let Some(why) = unfit(&file.path, &model.store) {
            return Err(Stop::Failed(format!("{} cannot keep its name: {why}; rename it", file.path)));
        }
    }
    Ok((listing, Arc::new(Store::open(&model.store, true, &model.access).await?.replacing())))
}

/// `count` gets the number of copied files, `report` gets the number of sent bytes.
async fn copy(
    at: &Path,
    listing: &Listing,
    store: &Arc<Store>,
    remote: Option<&Remote>,
    count: &Cell<usize>,
    report: &dyn Fn(u64),
) -> Result<(), Stop> {
    check_not_fenced(remote).await?;
    let at = at.to_owned();
    let dir =
        blocking(move || RootedDir::open(&at).map(Arc::new)).await.map_err(|error| Stop::Failed(error.to_string()))?;
    if let Some(before) = before(store).await? {
        store.delete(MANIFEST).await?;
        // Obsolete files are deleted first, because a file may have become a directory, or the reverse.
        for old in before.files.iter().filter(|old| listing.file(&old.path).is_none()) {
            store.delete(&old.path).await?;
        }
    }
    let uncommitted = RefCell::default();
    let sending = Sending::begin((&dir, store), None, listing.files().map(|f| f.size), report, &uncommitted).await;
    let mut items: Vec<Item> = Vec::new();
    // The files at the root come last: other programs look for them.
    let (deeper, top): (Vec<&Entry>, Vec<&Entry>) = listing.files().partition(|f| f.path.contains('/'));
    for group in [deeper, top] {
        let sent = group.into_iter().map(|entry| async {
            let item = send(&sending, entry).await?;
            count.set(count.get() + 1);
            Ok::<Item, Stop>(item)
        });
        items.extend(stream::iter(sent).buffer_unordered(sending.sizes.at_once).try_collect::<Vec<_>>().await?);
    }
    sending.end().await;
    let keys: Vec<String> = items.iter().map(|i| i.key.clone()).collect();
    make_durable(store, &keys, items.iter().map(|i| i.size).sum(), report).await?;
    items.sort_by(|a, b| a.path.cmp(&b.path));
    let files = items.into_iter().map(|i| File { path: i.path, size: i.size, crc32c: i.crc32c }).collect();
    let manifest = Manifest { schema: SCHEMA.to_owned(), files };
    let text = serde_json::to_vec(&manifest).map_err(|error| Stop::Failed(error.to_string()))?;
    check_not_fenced(remote).await?;
    if store.create(MANIFEST, text).await? == Created::Own {
        return Ok(());
    }
    store.delete(MANIFEST).await?;
    Err(Stop::Failed("another run has copied its model there at the same time".to_owned()))
}

/// Fails if a newer run has taken over, because its model must not be replaced.
async fn check_not_fenced(remote: Option<&Remote>) -> Result<(), Stop> {
    match remote {
        Some(remote) => remote.check_not_fenced(None).await,
        None => Ok(()),
    }
}

/// Sends one file, with several tries if another try may succeed.
async fn send(sending: &Sending<'_>, entry: &Entry) -> Result<Item, Stop> {
    let (path, mut pause) = (&entry.path, PAUSE);
    for left in (0..TRIES).rev() {
        let sent = match sending.send(entry, Held::loosely(entry), path.clone()).await {
            Ok(sent) if sending.store.size(path).await? == Some(entry.size) => return Ok(sent.item),
            Ok(_) => Stop::Lost(format!("the store acknowledged {path} but does not hold it whole")),
            Err(stop) => stop,
        };
        if left == 0 || !sent.may_pass() {
            return Err(sent);
        }
        tracing::warn!(code = "model", "{path} of the model is sent again: {}", sent.words());
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Err(Stop::Failed(format!("{path} was not sent")))
}

/// The files to copy, links followed. Errors: links lead out of the directory, and following them was not requested.
async fn listed(model: &LeftModel) -> Result<Listing, String> {
    let (root, may_leave) = (model.dir.clone(), model.follow);
    let walked = blocking(move || {
        let walked = without_own_files(walk::walk(&root)?);
        let out = if may_leave { BTreeSet::new() } else { links::leading_out(&root, &walked) };
        let all = walked.entries().iter().filter(|e| matches!(e.kind, Kind::Symlink(_)));
        let all = all.map(|e| e.path.clone()).collect();
        // If no link leads out, none is reached through other links either.
        let followed = if out.is_empty() { links::follow(&root, &walked, &all) } else { walked };
        let listing = without_own_files(followed);
        let rooted_dir = RootedDir::open(&root)?;
        let peek = Files { rooted_dir: &rooted_dir, listing: &listing };
        let cut = listing.files().filter(|file| whole(&peek, file).is_err()).map(|file| file.path.clone());
        let cut = cut.collect::<Vec<_>>();
        Ok((listing, out, cut))
    });
    let (listing, out, cut) = walked.await.map_err(|error| error.to_string())?;
    if let Some(first) = out.first() {
        return Err(format!(
            "the symbolic link {} leads out of it, so a copy would lack its target; --follow-symlinks copies that, too",
            and_more(first, out.len())
        ));
    }
    for entry in listing.entries() {
        if let Kind::Uncopyable(why) = entry.kind {
            return Err(format!("{} cannot be copied, and without it the model would not be whole: {why}", entry.path));
        }
        if let Some(why) = entry.refused() {
            tracing::warn!("{} in {} is not copied: {why}", entry.path, model.dir.display());
        }
    }
    // They are copied nevertheless, because they may be a checkpoint in the same directory.
    if let Some(first) = cut.first() {
        tracing::warn!(
            code = "model",
            "{} in the model in {} ends before its own end, so no program can load it: a process was still writing it as the \
             command ended, or its disk was full; it is copied as it is; save it again and copy it by hand",
            and_more(first, cut.len()),
            model.dir.display()
        );
    }
    Ok(listing)
}

/// A checkpoint directory inside the model has a `.trainit` too, which is not part of the model.
fn without_own_files(listing: Listing) -> Listing {
    let is_other = |entry: &&Entry| !entry.path.split('/').any(|part| part == OWN);
    Listing::new(listing.entries().iter().filter(is_other).cloned().collect())
}

/// The manifest of an earlier run; `None` if there is none, an empty one if it cannot be read.
async fn before(store: &Store) -> Result<Option<Manifest>, StoreError> {
    match store.get(MANIFEST, LIMIT).await {
        Ok(text) => {
            let manifest: Manifest = serde_json::from_slice(&text).unwrap_or_default();
            Ok(Some(if manifest.schema == SCHEMA { manifest } else { Manifest::default() }))
        }
        Err(error) if error.trouble == Trouble::Absent => Ok(None),
        Err(error) => Err(error),
    }
}

//! Copies the model that a finished job leaves, file by file as it is, so that whoever serves it finds what the trainer
//! wrote (Vertex AI looks for `saved_model.pb` at the root); what a symbolic link leads to under the link's name, since
//! stores have no links.
//!
//! The commit is the checkpoints': data first, the manifest (`.trainit/model.json`) last, and without it the model is not
//! whole. What an earlier run left there is replaced, file by file; its manifest goes before the first, and what it alone
//! named when all of ours is there. Of two runs that copy at once, the one that finds the other's manifest at its end has
//! written over files of the other's: it copies again.

use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use super::budget::Budget;
use super::claim::{others_create, probe, take_away};
use super::flush::{LAST_LOOK_PAUSE, LAST_TRIES};
use super::guard::SOON;
use super::known::{Known, Sent};
use super::made::Made;
use super::mirror::{Mirror, beneath, blocking, way_out};
use super::pieces::Pieces;
use super::pins::Held;
use super::send::{Sending, Stop, lanes_for};
use super::transfer::{going_on, make_durable};
use crate::edge::clock::Clock;
use crate::edge::links::Files;
use crate::edge::store::{Access, Created, Store, StoreError, Trouble};
use crate::edge::{links, places, walk};
use crate::rules::checkpoint::address::{Address, Nearness};
use crate::rules::checkpoint::check::is_cut;
use crate::rules::checkpoint::listing::Listing;
use crate::rules::checkpoint::manifest::{Item, LIMIT};
use crate::rules::checkpoint::names::{OWN, unfit};
use crate::rules::checkpoint::{Entry, Kind};
use crate::rules::job::COPY_AGAIN as AGAIN;

const MANIFEST: &str = ".trainit/model.json";
const SCHEMA: &str = "trainit.model/1";

/// Between two looks whether another that is putting its manifest has done so.
const OTHERS_PAUSE: Duration = Duration::from_millis(200);

/// A model and where it goes.
#[derive(Debug)]
pub struct LeftModel {
    /// Where the trainer wrote it.
    pub dir: PathBuf,
    /// Where it goes.
    pub store: Address,
    /// Whether links that lead out of the directory are followed too.
    pub follow: bool,
    /// What the environment says about stores.
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
    /// The line for a copy that was given up as somebody does not answer.
    pub(super) fn kept_waiting(&self, why: &str) -> String {
        let (dir, store) = (self.dir.display(), &self.store);
        format!("the model in {dir} is not in {store}: {why}; what lies there is whole only with {MANIFEST}; {AGAIN}")
    }

    /// The line for a copy that the clock cut off.
    pub(super) fn cut_off(&self) -> String {
        let (dir, store) = (self.dir.display(), &self.store);
        format!(
            "the time was up before the model in {dir} was in {store}; what lies there is whole only with {MANIFEST}; {AGAIN}"
        )
    }
}

/// Copies it. `mirror`: whose checkpoints say whether a newer run has taken over; `progress` hears bytes done and bytes in
/// all. Errors: that, or one line; the local model is as it was.
pub(super) async fn publish(
    model: &LeftModel,
    mirror: Option<&Mirror>,
    progress: &dyn Fn(u64, u64),
) -> Result<(), Stop> {
    let (dir, store) = (model.dir.display(), &model.store);
    let (at, there) = (model.dir.clone(), store.clone());
    let lie = blocking(move || Ok(lies(&at, &there))).await;
    let plan = match lie.map_err(|error| Stop::Failed(format!("{dir} cannot be looked at: {error}; {AGAIN}")))? {
        Nearness::Same => {
            tracing::info!("{store} is where the trainer wrote the model ({dir}): there is nothing to copy");
            return Ok(());
        }
        Nearness::Nested => {
            Err(Stop::Failed(store.nested("the place", &model.dir, "a copy of the model would be part of the model")))
        }
        Nearness::Apart => prepare(model).await,
    };
    let mut plan = plan.map_err(|stop| {
        Stop::Failed(format!(
            "the model in {dir} is not in {store}: {}; nothing there was changed; {AGAIN}",
            words(stop)
        ))
    })?;
    let (files, bytes) = (plan.listing.files().count(), plan.listing.files().map(|f| f.size).sum());
    let (made, done, there) = (Made::default(), Cell::new(0), Arc::clone(&plan.store));
    let told = |more: u64| {
        done.set(done.get() + more);
        progress(done.get(), bytes);
    };
    let mut before = there.motion();
    let moves = || {
        let now = there.motion();
        now.has_moved_since(std::mem::replace(&mut before, now))
    };
    let copying = async {
        for _ in 0..LAST_TRIES {
            if copy(&plan, mirror, bytes, &made, &told).await? {
                return Ok(());
            }
            made.take();
            done.set(0);
            plan = plan.anew().await?;
        }
        // It is over a mixture now.
        plan.store.delete(MANIFEST).await?;
        Err(Stop::Failed("another run has copied its model there meanwhile".to_owned()))
    };
    going_on(copying, moves, &told).await.map_err(|stop| match stop {
        Stop::Fenced(by) => Stop::Fenced(by),
        stop => Stop::Failed(format!(
            "the model in {dir} is not in {store}: {}; {} of its {files} files are there now, the rest is what was there \
             before; it is whole only with {MANIFEST}; {AGAIN}",
            words(stop),
            made.count()
        )),
    })?;
    tracing::info!(files, bytes, "the model is in {store}");
    Ok(())
}

/// How the two places lie to each other, now that the trainer has made what it makes. Without the mount a directory that
/// is named like a bucket's is one of this machine's own.
fn lies(dir: &Path, store: &Address) -> Nearness {
    let is_bucket = matches!(store, Address::Bucket(_));
    match store.nearness(dir, &places::real) {
        _ if is_bucket && !places::is_mounted(dir) => Nearness::Apart,
        nearness => nearness,
    }
}

/// What is to be done, found out before anything is.
struct Plan {
    dir: PathBuf,
    listing: Listing,
    store: Arc<Store>,
    /// What an earlier run says it left, where one has left its word.
    before: Option<Manifest>,
    /// Of that, what must go before ours can be written: files in the place of directories, and the reverse.
    in_the_way: BTreeSet<String>,
}

async fn prepare(model: &LeftModel) -> Result<Plan, Stop> {
    let listing = listed(model).await.map_err(Stop::Failed)?;
    if listing.files().next().is_none() {
        return Err(Stop::Failed("there is no file in it".to_owned()));
    }
    let listing = tell_of_cut_ones(model, listing).await.map_err(|error| Stop::Failed(error.to_string()))?;
    for file in listing.files() {
        if let Some(why) = unfit(&file.path, &model.store) {
            return Err(Stop::Failed(format!("{} cannot keep its name: {why}; rename it", file.path)));
        }
    }
    let store = Arc::new(Store::open(&model.store, true, &model.access).await?.replacing());
    Plan { dir: model.dir.clone(), listing, store, before: None, in_the_way: BTreeSet::new() }.anew().await
}

impl Plan {
    /// As things are there now.
    async fn anew(self) -> Result<Plan, Stop> {
        let before = before(&self.store).await?;
        let in_the_way = self.store.in_the_way(self.listing.files().map(|f| f.path.clone()).collect()).await?;
        let old: HashSet<&str> = before.iter().flat_map(|before| &before.files).map(|f| f.path.as_str()).collect();
        if let Some(path) = in_the_way.iter().find(|path| !old.contains(path.as_str())) {
            return Err(Stop::Failed(format!(
                "{path} is in the way there and belongs to no whole model; take it away"
            )));
        }
        Ok(Plan { before, in_the_way, ..self })
    }
}

/// `made` has the files that are there, `told` hears how many bytes more are through, of so many. Whether no other run has
/// ended a copy meanwhile.
async fn copy(plan: &Plan, mirror: Option<&Mirror>, bytes: u64, made: &Made, told: &dyn Fn(u64)) -> Result<bool, Stop> {
    give_way(mirror).await?;
    let Plan { listing, store, before, in_the_way, .. } = plan;
    let at = plan.dir.clone();
    let dir = blocking(move || beneath(&at)).await.map_err(|error| Stop::Failed(error.to_string()))?;
    if before.is_some() {
        store.delete(MANIFEST).await?;
    }
    for old in in_the_way {
        store.delete(old).await?;
    }
    let known = Known::default();
    let budget = Budget::now();
    let habits = budget.fit(store.habits());
    let sending = Sending {
        strong: false,
        goes_on: false,
        store,
        dir: &dir,
        known: &known,
        pace: None,
        habits,
        pieces: Pieces::new(budget, habits.streams),
        lanes: lanes_for(store, habits, listing.files().map(|f| f.size)).await,
        clock: Clock::start(),
        told,
        made,
    };
    let mut items: Vec<Item> = Vec::new();
    // What lies at the root comes last: it is what others look for.
    let (deeper, top): (Vec<&Entry>, Vec<&Entry>) = listing.files().partition(|f| f.path.contains('/'));
    for group in [deeper, top] {
        let sent = group.into_iter().map(|entry| {
            let from = entry.through.clone().map_or_else(|| Held::Here(entry.path.clone()), Held::Elsewhere);
            send(&sending, entry, from)
        });
        let sent: Vec<Sent> = stream::iter(sent).buffer_unordered(sending.habits.at_once).try_collect().await?;
        items.extend(sent.into_iter().map(|sent| sent.item));
    }
    sending.lanes.close().await;
    let keys: Vec<String> = items.iter().map(|i| i.key.clone()).collect();
    make_durable(store, &keys, bytes, told).await?;
    let ours: HashSet<&str> = items.iter().map(|i| i.path.as_str()).collect();
    let is_left = |old: &&File| !ours.contains(old.path.as_str()) && !in_the_way.contains(&old.path);
    for old in before.iter().flat_map(|before| &before.files).filter(is_left) {
        store.delete(&old.path).await?;
    }
    items.sort_by(|a, b| a.path.cmp(&b.path));
    let files = items.into_iter().map(|i| File { path: i.path, size: i.size, crc32c: i.crc32c }).collect();
    let manifest = Manifest { schema: SCHEMA.to_owned(), files };
    let text = serde_json::to_vec(&manifest).map_err(|error| Stop::Failed(error.to_string()))?;
    give_way(mirror).await?;
    Ok(create_alone(store, text).await?)
}

/// Creates the manifest; whether it is the one that stays, or was deleted by one that copies after us.
async fn create_alone(store: &Store, text: Vec<u8>) -> Result<bool, StoreError> {
    let probe = probe();
    store.create(&probe, probe.clone().into_bytes()).await?;
    let created = store.create(MANIFEST, text.clone()).await;
    take_away(store, &probe).await;
    if created? == Created::Taken {
        return Ok(false);
    }
    let others_end = async {
        while others_create(store, &probe).await? {
            tokio::time::sleep(OTHERS_PAUSE).await;
        }
        Ok(())
    };
    tokio::time::timeout(SOON, others_end).await.unwrap_or(Ok(()))?;
    match store.get(MANIFEST, text.len() as u64 + 1).await {
        Ok(there) => Ok(there == text),
        Err(error) if error.trouble == Trouble::Absent => Ok(true),
        Err(error) => Err(error),
    }
}

/// What a newer run leaves is not for us to replace.
async fn give_way(mirror: Option<&Mirror>) -> Result<(), Stop> {
    match mirror {
        Some(mirror) => mirror.give_way(None).await,
        None => Ok(()),
    }
}

/// Sends one file until it is there, some times where another try may do it.
async fn send(sending: &Sending<'_>, entry: &Entry, from: Held) -> Result<Sent, Stop> {
    let (path, store) = (&entry.path, sending.store);
    let try_to_send = || async {
        let sent = sending.send(entry, from.clone(), path.clone()).await?;
        match store.size(path).await? {
            Some(size) if size == entry.size => Ok(sent),
            _ => Err(Stop::Lost(format!("the store acknowledged {path} and does not hold it whole"))),
        }
    };
    let mut pause = LAST_LOOK_PAUSE;
    for _ in 1..LAST_TRIES {
        let (clock, before) = (Clock::start(), store.motion());
        match try_to_send().await {
            Err(stop) if stop.may_pass() || stop.broke_off(clock.now(), store.motion().has_moved_since(before)) => {
                tracing::warn!(code = "model", "{path} of the model is sent again: {}", words(stop));
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            sent => return sent,
        }
    }
    try_to_send().await
}

/// What is to be copied, links followed. Errors: some lead out, and that was not asked for.
async fn listed(model: &LeftModel) -> Result<Listing, String> {
    let (root, may_leave) = (model.dir.clone(), model.follow);
    let walked = blocking(move || {
        let walked = without_corners(walk::walk(&root)?);
        let out = if may_leave { BTreeSet::new() } else { links::leading_out(&root, &walked) };
        let all = walked.entries().iter().filter(|e| matches!(e.kind, Kind::Symlink(_)));
        let all = all.map(|e| e.path.clone()).collect();
        // Where there are none that lead out, none is reached through the others either.
        let followed = if out.is_empty() { links::follow(&root, &walked, &all) } else { walked };
        Ok((without_corners(followed), out))
    });
    let (listing, out) = walked.await.map_err(|error| error.to_string())?;
    if let Some(first) = out.first() {
        let more = if out.len() > 1 { format!(" (and {} more)", out.len() - 1) } else { String::new() };
        return Err(format!(
            "the symbolic link {first}{more} leads out of it, so a copy would lack what is there; \
             --follow-symlinks copies that too"
        ));
    }
    for entry in listing.entries() {
        if let Kind::Lost(why) = entry.kind {
            return Err(format!("{} cannot be copied, and without it the model would not be whole: {why}", entry.path));
        }
        if let Some(why) = entry.refused() {
            tracing::warn!("{} in {} is not copied: {why}", entry.path, model.dir.display());
        }
    }
    Ok(listing)
}

/// Warns of files that nobody can load. They are copied all the same: it may be a checkpoint beside the model.
async fn tell_of_cut_ones(model: &LeftModel, listing: Listing) -> io::Result<Listing> {
    let at = model.dir.clone();
    let looked_at = blocking(move || {
        let dir = beneath(&at)?;
        let peek = Files { beneath: &dir, listing: &listing };
        let cut = listing.files().filter(|file| is_cut(&peek, file)).map(|file| file.path.clone());
        Ok((cut.collect::<Vec<_>>(), listing))
    });
    let (cut, listing) = looked_at.await?;
    if let Some(first) = cut.first() {
        let more = if cut.len() > 1 { format!(" (and {} more)", cut.len() - 1) } else { String::new() };
        tracing::warn!(
            code = "model",
            "{first}{more} in the model in {} ends before its own end, so nobody can load it: somebody was still writing it as the \
             command ended, or its disk was full; it is copied as it is; save it again and copy it by hand",
            model.dir.display()
        );
    }
    Ok(listing)
}

/// A checkpoint directory that lies in the model has a corner of ours too, which is nobody's model.
fn without_corners(listing: Listing) -> Listing {
    let corners = listing.entries().iter().filter(|e| e.name() == OWN);
    listing.without(&corners.map(|e| e.path.as_str()).collect())
}

/// What an earlier run says it left; `None` where there is no such word, nothing where it cannot be read.
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

pub(super) fn words(stop: Stop) -> String {
    match stop {
        Stop::Changed(why) | Stop::Failed(why) | Stop::Lost(why) | Stop::OutOfTime(why) => why,
        Stop::Store(error) => format!("{error}; {}", way_out(&error)),
        Stop::Fenced(by) => format!("a newer run (incarnation {by}) has taken over"),
    }
}

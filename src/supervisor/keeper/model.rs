//! Copies the model that a finished job leaves, file by file as it is, so that whoever serves it finds what the trainer
//! wrote (Vertex AI looks for `saved_model.pb` at the root); what a symbolic link leads to under the link's name, since
//! stores have no links.
//!
//! The commit is the checkpoints': data first, the manifest (`.trainit/model.json`) last, and without it the model is not
//! whole. What an earlier run left there is written over; then its manifest goes first, and what it alone named last.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use super::known::{Known, Sent};
use super::mirror::{beneath, blocking};
use super::pins::Held;
use super::send::{Pools, Sending, Stop};
use crate::edge::clock::Clock;
use crate::edge::store::{Access, Store, StoreError, Trouble};
use crate::edge::{links, places, walk};
use crate::rules::checkpoint::address::{Address, Nearness};
use crate::rules::checkpoint::listing::Listing;
use crate::rules::checkpoint::manifest::{Item, LIMIT};
use crate::rules::checkpoint::names::unfit;
use crate::rules::checkpoint::{Entry, Kind};

const MANIFEST: &str = ".trainit/model.json";
const SCHEMA: &str = "trainit.model/1";

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

/// Copies it. `progress` hears bytes done and bytes in all. Errors: one line; the local model is as it was.
pub(super) async fn publish(model: &LeftModel, progress: &dyn Fn(u64, u64)) -> Result<(), String> {
    let copied = match lies(model) {
        Nearness::Same => {
            let (dir, store) = (model.dir.display(), &model.store);
            tracing::info!("{store} is where the trainer wrote the model ({dir}): there is nothing to copy");
            return Ok(());
        }
        Nearness::Nested => {
            Err(model.store.nested("the place", &model.dir, "a copy of the model would be part of the model"))
        }
        Nearness::Apart => copy(model, progress).await,
    };
    copied.map_err(|why| {
        format!(
            "the model in {} is not in {}: {why}; the job is done but for that, start it again or copy it by hand",
            model.dir.display(),
            model.store
        )
    })
}

/// How the two places lie to each other, now that the trainer has made what it makes. Without the mount a directory that
/// is named like a bucket's is one of this machine's own.
fn lies(model: &LeftModel) -> Nearness {
    let is_bucket = matches!(model.store, Address::Bucket(_));
    match model.store.nearness(&model.dir, places::real) {
        _ if is_bucket && !places::is_mounted(&model.dir) => Nearness::Apart,
        nearness => nearness,
    }
}

async fn copy(model: &LeftModel, progress: &dyn Fn(u64, u64)) -> Result<(), String> {
    let listing = listed(model).await?;
    let files: Vec<&Entry> = listing.files().collect();
    let bytes = files.iter().map(|f| f.size).sum();
    if files.is_empty() {
        return Err("there is no file in it".to_owned());
    }
    for file in &files {
        if let Some(why) = unfit(&file.path, &model.store) {
            return Err(format!("{} cannot keep its name: {why}; rename it", file.path));
        }
    }
    let told_store = |error: StoreError| error.to_string();
    let store = Store::open(&model.store, true, &model.access).await.map_err(told_store)?;
    let before = before(&store).await.map_err(told_store)?;
    store.delete(MANIFEST).await.map_err(told_store)?;
    let there = sizes(&store).await.map_err(told_store)?;
    let dir = beneath(&model.dir).map_err(|error| error.to_string())?;
    let done = std::cell::Cell::new(0);
    let told = |more: u64| {
        done.set(done.get() + more);
        progress(done.get(), bytes);
    };
    let known = Known::default();
    let sending = Sending {
        strong: false,
        store: &store,
        dir: &dir,
        known: &known,
        pace: None,
        habits: store.habits(),
        budget: Sending::budget(),
        pools: Pools::new(),
        clock: Clock::start(),
        told: &told,
        made: &RefCell::default(),
    };
    let mut items: Vec<Item> = Vec::new();
    // What lies at the root comes last: it is what others look for.
    let (deeper, top): (Vec<&Entry>, Vec<&Entry>) = files.into_iter().partition(|f| f.path.contains('/'));
    for group in [deeper, top] {
        let sent = group.into_iter().map(|entry| {
            let (sending, store, is_there) = (&sending, &store, there.contains_key(&entry.path));
            async move {
                if is_there {
                    store.delete(&entry.path).await?;
                }
                let from = entry.through.clone().map_or_else(|| Held::Here(entry.path.clone()), Held::Elsewhere);
                sending.send(entry, from, entry.path.clone()).await
            }
        });
        let sent = stream::iter(sent).buffer_unordered(store.habits().at_once);
        let sent = sent.try_collect::<Vec<Sent>>().await.map_err(words)?;
        items.extend(sent.into_iter().map(|sent| sent.item));
    }
    let ours: HashSet<&str> = items.iter().map(|i| i.path.as_str()).collect();
    for old in before.files.iter().filter(|old| !ours.contains(old.path.as_str())) {
        store.delete(&old.path).await.map_err(told_store)?;
    }
    let keys: Vec<String> = items.iter().map(|i| i.key.clone()).collect();
    store.make_durable(&keys).await.map_err(told_store)?;
    let there = sizes(&store).await.map_err(told_store)?;
    if let Some(item) = items.iter().find(|i| there.get(&i.key) != Some(&i.size)) {
        return Err(format!("the store acknowledged {} and does not hold it whole", item.key));
    }
    items.sort_by(|a, b| a.path.cmp(&b.path));
    let count = items.len();
    let files = items.into_iter().map(|i| File { path: i.path, size: i.size, crc32c: i.crc32c }).collect();
    let manifest = Manifest { schema: SCHEMA.to_owned(), files };
    let text = serde_json::to_vec(&manifest).map_err(|error| error.to_string())?;
    store.create(MANIFEST, text).await.map_err(told_store)?;
    tracing::info!(files = count, bytes, "the model is in {}", model.store);
    Ok(())
}

/// What is to be copied, links followed. Errors: some lead out, and that was not asked for.
async fn listed(model: &LeftModel) -> Result<Listing, String> {
    let (root, may_leave) = (model.dir.clone(), model.follow);
    let walked = blocking(move || {
        let walked = walk::walk(&root)?;
        let out = if may_leave { BTreeSet::new() } else { links::leading_out(&root, &walked) };
        let all = walked.entries().iter().filter(|e| matches!(e.kind, Kind::Symlink(_)));
        let all = all.map(|e| e.path.clone()).collect();
        // Where there are none that lead out, none is reached through the others either.
        let followed = if out.is_empty() { links::follow(&root, &walked, &all) } else { walked };
        Ok((followed, out))
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
        if let Kind::Odd(why) = entry.kind {
            tracing::warn!("{} in {} is not copied: {why}", entry.path, model.dir.display());
        }
    }
    Ok(listing)
}

/// Every object of the place, with its bytes.
async fn sizes(store: &Store) -> Result<HashMap<String, u64>, StoreError> {
    Ok(store.list("").await?.into_iter().map(|o| (o.key, o.size)).collect())
}

/// What an earlier run says it left; nothing where there is no such word, or none that can be read.
async fn before(store: &Store) -> Result<Manifest, StoreError> {
    match store.get(MANIFEST, LIMIT).await {
        Ok(text) => {
            let manifest: Manifest = serde_json::from_slice(&text).unwrap_or_default();
            Ok(if manifest.schema == SCHEMA { manifest } else { Manifest::default() })
        }
        Err(error) if error.trouble == Trouble::Absent => Ok(Manifest::default()),
        Err(error) => Err(error),
    }
}

fn words(stop: Stop) -> String {
    match stop {
        Stop::Changed(why) | Stop::Failed(why) | Stop::Away(why) | Stop::OutOfTime(why) => why,
        Stop::Fenced(by) => format!("a newer run (attempt {by}) has taken over"),
    }
}

//! Reads attempts and commits from a store, and checks whether it holds what a manifest names. Changes nothing.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::edge::store::{Object, Store, StoreError};
use crate::rules::store::manifest::{Item, LIMIT, Manifest};
use crate::rules::store::names::{ATTEMPTS, Attempt, COMMITS, CommitName, prefix_of_data};
use crate::supervisor::checkpoints::failure::Stop;

pub(crate) async fn attempts(store: &Store) -> Result<Vec<Attempt>, StoreError> {
    let objects = store.list(ATTEMPTS).await?;
    Ok(objects.iter().filter_map(|o| Attempt::from_key(&o.key)).collect())
}

/// Every commit's name, newest first, in the order of (attempt, sequence).
pub(crate) async fn commits(store: &Store) -> Result<Vec<CommitName>, StoreError> {
    Ok(commits_among(&store.list(COMMITS).await?))
}

/// The commits among these objects, newest first.
pub(crate) fn commits_among(objects: &[Object]) -> Vec<CommitName> {
    let mut names: Vec<CommitName> = objects.iter().filter_map(|o| CommitName::from_key(&o.key)).collect();
    names.sort_by(|a, b| b.cmp(a));
    names.dedup();
    names
}

/// Reads a manifest and checks that all its objects exist with their sizes. The inner error says why the commit must be
/// skipped.
pub(crate) async fn judge(store: &Store, name: &CommitName) -> Result<Result<Manifest, String>, StoreError> {
    match read(store, name).await? {
        Ok(manifest) => Ok(lacks(store, &manifest).await?.map_or(Ok(manifest), Err)),
        Err(why) => Ok(Err(why)),
    }
}

/// Reads a manifest. The inner error says why the commit must be skipped. A damaged response is an outer error.
pub(crate) async fn read(store: &Store, name: &CommitName) -> Result<Result<Manifest, String>, StoreError> {
    let key = name.key();
    let is_damaged = |got: &Result<Bytes, StoreError>| match got {
        Ok(bytes) => CommitName::of(name.stamp.clone(), Some(name.step), bytes) != *name,
        Err(error) => error.is_doubtful(),
    };
    let mut got = store.get(&key, LIMIT + 1).await;
    if is_damaged(&got) {
        got = store.get(&key, LIMIT + 1).await;
    }
    if !is_damaged(&got) {
        return got.map(|bytes| Manifest::read(name, &bytes));
    }
    match (store.size(&key).await?, got) {
        (None, _) => Ok(Err("its manifest has just been deleted".to_owned())),
        (Some(size), Ok(bytes)) if size.min(LIMIT + 1) != bytes.len() as u64 => {
            Err(store.useless("read", &key, &format!("{} of its {size} bytes came", bytes.len())))
        }
        (Some(_), got) => got.map(|bytes| Manifest::read(name, &bytes)),
    }
}

/// The first commit from index `from` on whose manifest can be read, with its index.
pub(crate) async fn readable(
    store: &Store,
    names: &[CommitName],
    from: usize,
) -> Result<Option<(usize, Manifest)>, StoreError> {
    for (at, name) in names.iter().enumerate().skip(from) {
        if let Ok(manifest) = read(store, name).await? {
            return Ok(Some((at, manifest)));
        }
    }
    Ok(None)
}

/// What the store lacks of a manifest; `None`: nothing.
pub(crate) async fn lacks(store: &Store, manifest: &Manifest) -> Result<Option<String>, StoreError> {
    let sizes = sizes(store, manifest.regular()).await?;
    Ok(manifest.regular().find_map(|item| lack(item, &sizes)))
}

/// The problem of a file, by the sizes of the store's objects.
pub(crate) fn lack(item: &Item, sizes: &HashMap<String, u64>) -> Option<String> {
    match sizes.get(&item.key) {
        Some(size) if item.fits(*size) => None,
        Some(size) if item.offset.is_some() => {
            Some(format!("{}, in which {} lies, has only {size} bytes in the store", item.key, item.path))
        }
        Some(size) => Some(format!("{} has {size} bytes in the store, not {}", item.path, item.size)),
        None => Some(format!("{} is missing from the store", item.path)),
    }
}

/// Fails unless every object exists with its size, also those of earlier commits.
pub(crate) async fn verify<'a>(store: &Store, items: impl Iterator<Item = &'a Item> + Clone) -> Result<(), Stop> {
    let items = items.filter(|item| !item.key.is_empty());
    let sizes = sizes(store, items.clone()).await?;
    match items.into_iter().find(|item| lack(item, &sizes).is_some()) {
        Some(item) => Err(Stop::Lost(format!(
            "the store acknowledged {} and does not hold it whole; the checkpoint is not committed; earlier commits \
             remain; see that this is the store and nothing between, then start again",
            item.key
        ))),
        None => Ok(()),
    }
}

/// Deletes as many of these as possible. Errors: the first.
pub(crate) async fn delete_all(store: &Store, keys: &[String], each: impl Fn()) -> Result<(), StoreError> {
    let deletions = keys.iter().map(|key| async {
        store.delete(key).await?;
        each();
        Ok(())
    });
    let deleted = stream::iter(deletions).buffer_unordered(store.part_sizes().at_once);
    deleted.fold(Ok(()), async |so_far, done| so_far.and(done)).await
}

/// The sizes of the objects of these files: the data of each commit is listed, and objects that no listing shows are requested
/// by key, because a listing may have lost a page.
pub(crate) async fn sizes(
    store: &Store,
    items: impl Iterator<Item = &Item> + Clone,
) -> Result<HashMap<String, u64>, StoreError> {
    let prefixes: BTreeSet<&str> = items.clone().map(|item| prefix_of_data(&item.key)).collect();
    let mut found = HashMap::new();
    for prefix in prefixes {
        let listed = store.list(prefix).await?;
        found.extend(listed.into_iter().map(|o| (o.key, o.size)));
    }
    let lost: BTreeSet<&String> = items.map(|i| &i.key).filter(|key| !found.contains_key(*key)).collect();
    let asked = lost.into_iter().map(|key| async move { Ok::<_, StoreError>((store.size(key).await?, key.clone())) });
    let looked_up: Vec<_> = stream::iter(asked).buffer_unordered(store.part_sizes().at_once).try_collect().await?;
    found.extend(looked_up.into_iter().filter_map(|(size, key)| Some((key, size?))));
    Ok(found)
}

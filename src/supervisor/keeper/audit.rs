//! Every commit of the store with all that is wrong with it, by the sizes of its objects or by every byte of them. For
//! people: restores and retention ask only whether a commit is whole.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};

use futures_util::{StreamExt, stream};

use super::mirror::Mirror;
use super::retention::{commits, lack, read};
use super::send::sizes;
use super::sums::{Compared, Found};
use crate::edge::store::{Store, StoreError, Trouble};
use crate::rules::checkpoint::manifest::{Item, Manifest};
use crate::rules::checkpoint::names::{BAD, CommitName};

/// Objects that are read at once.
const AT_ONCE: usize = 8;

/// A commit and what was found of it.
#[derive(Debug)]
pub struct Audited {
    /// Its name.
    pub name: CommitName,
    /// What it says; `None` where that cannot be used.
    pub manifest: Option<Manifest>,
    /// All that is wrong with it; empty: it can be restored.
    pub problems: Vec<Problem>,
    /// A note says that a trainer failed twice soon after going on from it. A new start heeds none.
    pub is_poisoned: bool,
}

/// What is wrong with a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, relative to the checkpoint directory; `None`: the manifest itself.
    pub path: Option<String>,
    /// One clause.
    pub what: String,
}

impl Mirror {
    /// Every commit, newest first, its objects there with their sizes or not.
    pub async fn listed(&self) -> Result<Vec<Audited>, StoreError> {
        let mut all = Vec::new();
        let Some(store) = &self.store else { return Ok(all) };
        let (names, notes) = (commits(store).await?, store.list(BAD).await?);
        for name in names {
            let is_poisoned = notes.iter().any(|note| note.key == name.stamp.bad_key());
            all.push(match read(store, &name).await? {
                Ok(manifest) => {
                    let there = sizes(store, manifest.regular()).await?;
                    let problem =
                        |item: &Item| Some(Problem { path: Some(item.path.clone()), what: lack(item, &there)? });
                    let problems = manifest.regular().filter_map(problem).collect();
                    Audited { name, manifest: Some(manifest), problems, is_poisoned }
                }
                Err(what) => {
                    Audited { name, manifest: None, problems: vec![Problem { path: None, what }], is_poisoned }
                }
            });
        }
        Ok(all)
    }

    /// As [`Mirror::listed`], every byte read and summed; an object that several commits name is read once. `progress`
    /// hears bytes done and bytes in all. Errors: the store cannot be asked at all.
    pub async fn verified(&self, progress: &dyn Fn(u64, u64)) -> Result<Vec<Audited>, StoreError> {
        let mut all = self.listed().await?;
        let Some(store) = &self.store else { return Ok(all) };
        let mut wanted = BTreeMap::new();
        for audited in &all {
            let lacking: HashSet<&str> = audited.problems.iter().filter_map(|p| p.path.as_deref()).collect();
            let items = audited.manifest.iter().flat_map(Manifest::regular);
            for item in items.filter(|item| !lacking.contains(item.path.as_str())) {
                let first = wanted.entry(item.key.clone()).or_insert_with(|| item.clone());
                first.blake3 = first.blake3.take().or_else(|| item.blake3.clone());
            }
        }
        let (bytes, done, mut found) = (wanted.values().map(|item| item.size).sum(), Cell::new(0), BTreeMap::new());
        let told = &|more: u64| {
            done.set(done.get() + more);
            progress(done.get(), bytes);
        };
        let reads = wanted.values().map(|item| async move { (item, summed(store, item, told).await) });
        let mut reads = stream::iter(reads).buffer_unordered(AT_ONCE);
        while let Some((item, sum)) = reads.next().await {
            found.insert(item.key.as_str(), sum?);
        }
        for audited in &mut all {
            let lacking: HashSet<String> = audited.problems.iter().filter_map(|p| p.path.clone()).collect();
            let items = audited.manifest.iter().flat_map(Manifest::regular);
            let problems = items.filter(|item| !lacking.contains(&item.path)).filter_map(|item| {
                let what = differs(item, found.get(item.key.as_str())?)?;
                Some(Problem { path: Some(item.path.clone()), what })
            });
            audited.problems.extend(problems.collect::<Vec<_>>());
        }
        Ok(all)
    }
}

/// What is wrong with a file whose object was read.
fn differs(item: &Item, read: &Result<Found, String>) -> Option<String> {
    match read {
        Ok(found) if found.crc32c != item.crc32c => Some(format!(
            "{} does not match its checksum: crc32c {} in the store, {} when it was committed",
            item.path, found.crc32c, item.crc32c
        )),
        Ok(found) => match (&found.blake3, &item.blake3) {
            (Some(now), Some(then)) if now != then => Some(format!(
                "{} does not match its hash: blake3 {now} in the store, {then} when it was committed",
                item.path
            )),
            _ => None,
        },
        Err(why) => Some(format!("{}: {why}", item.path)),
    }
}

/// Reads an object through; `told` hears of all its bytes, those too that cannot be read. The inner error is this object's
/// alone.
async fn summed(store: &Store, item: &Item, told: &dyn Fn(u64)) -> Result<Result<Found, String>, StoreError> {
    let left = Cell::new(item.size);
    let sum = async {
        let (mut sums, mut reading) = (Compared::with(item), store.read(&item.key, 0, item.size).await?);
        while let Some(bytes) = reading.next().await? {
            sums.add(&bytes);
            let more = left.get().min(bytes.len() as u64);
            left.set(left.get() - more);
            told(more);
        }
        Ok::<Found, StoreError>(sums.found())
    };
    let sum = sum.await;
    told(left.get());
    match sum {
        Ok(found) => Ok(Ok(found)),
        Err(error) => match error.trouble {
            Trouble::Unreachable | Trouble::NoCredentials | Trouble::NotBelieved | Trouble::NoBucket => Err(error),
            _ => Ok(Err(error.to_string())),
        },
    }
}

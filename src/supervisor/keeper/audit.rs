//! Every commit of the store with all that is wrong with it, by the sizes of its objects or by every byte of them. For
//! people: restores and retention ask only whether a commit is whole.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};

use futures_util::{StreamExt, stream};

use super::budget::Budget;
use super::mirror::Mirror;
use super::retention::{commits, lack, read};
use super::send::sizes;
use super::sums::{Compared, Found};
use crate::edge::store::{Store, StoreError, Trouble};
use crate::rules::checkpoint::manifest::{Item, Manifest};
use crate::rules::checkpoint::names::{BAD, CommitName};

/// Objects that are read at once, at most.
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
    /// Every commit, newest first, its objects there with their sizes or not. What is let go meanwhile is left out.
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
        leave_out_gone(store, &mut all).await?;
        Ok(all)
    }

    /// As [`Mirror::listed`], every byte read and summed; what several commits name is read once. `progress`
    /// hears bytes done and bytes in all. Errors: the store cannot be asked at all.
    pub async fn verified(&self, progress: &dyn Fn(u64, u64)) -> Result<Vec<Audited>, StoreError> {
        let mut all = self.listed().await?;
        let Some(store) = &self.store else { return Ok(all) };
        let mut wanted = BTreeMap::new();
        for audited in &all {
            let lacking: HashSet<&str> = audited.problems.iter().filter_map(|p| p.path.as_deref()).collect();
            let items = audited.manifest.iter().flat_map(Manifest::regular);
            for item in items.filter(|item| !lacking.contains(item.path.as_str())) {
                let first = wanted.entry((item.key.clone(), item.offset)).or_insert_with(|| item.clone());
                first.blake3 = first.blake3.take().or_else(|| item.blake3.clone());
            }
        }
        let (bytes, done, mut found) = (wanted.values().map(|item| item.size).sum(), Cell::new(0), BTreeMap::new());
        let told = &|more: u64| {
            done.set(done.get() + more);
            progress(done.get(), bytes);
        };
        let reads = wanted.values().map(|item| async move { (item, summed(store, item, told).await) });
        let mut reads = stream::iter(reads).buffer_unordered(Budget::now().fit(store.habits()).at_once.min(AT_ONCE));
        while let Some((item, sum)) = reads.next().await {
            found.insert((item.key.as_str(), item.offset), sum?);
        }
        for audited in &mut all {
            let lacking: HashSet<String> = audited.problems.iter().filter_map(|p| p.path.clone()).collect();
            let items = audited.manifest.iter().flat_map(Manifest::regular);
            let problems = items.filter(|item| !lacking.contains(&item.path)).filter_map(|item| {
                let what = differs(item, found.get(&(item.key.as_str(), item.offset))?)?;
                Some(Problem { path: Some(item.path.clone()), what })
            });
            audited.problems.extend(problems.collect::<Vec<_>>());
        }
        leave_out_gone(store, &mut all).await?;
        Ok(all)
    }
}

/// Takes out the commits that lack something because retention has let go of them meanwhile: the manifest goes first. A
/// listing alone may have lost a page, and an answer alone may be spoilt.
async fn leave_out_gone(store: &Store, all: &mut Vec<Audited>) -> Result<(), StoreError> {
    if all.iter().all(|audited| audited.problems.is_empty()) {
        return Ok(());
    }
    let mut still: HashSet<CommitName> = commits(store).await?.into_iter().collect();
    for audited in all.iter().filter(|audited| !audited.problems.is_empty()) {
        if !still.contains(&audited.name) && store.size(&audited.name.key()).await?.is_some() {
            still.insert(audited.name.clone());
        }
    }
    all.retain(|audited| audited.problems.is_empty() || still.contains(&audited.name));
    Ok(())
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
        let (mut sums, mut reading) = (Compared::with(item), store.read(&item.key, item.run().start, item.size).await?);
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
            Trouble::Unreachable
            | Trouble::NoCredentials
            | Trouble::NotBelieved
            | Trouble::Outdated
            | Trouble::NoBucket => Err(error),
            _ => Ok(Err(error.to_string())),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::future::poll_fn;
    use std::path::Path;
    use std::pin::pin;

    use super::super::tests::config;
    use super::*;

    /// As retention does it: the manifest, then the data.
    fn let_go(store: &Path, stamp: &str, step: u64) {
        for entry in fs::read_dir(store.join(".trainit/commits")).expect("reads").flatten() {
            if entry.file_name().to_string_lossy().starts_with(stamp) {
                fs::remove_file(entry.path()).expect("is there");
            }
        }
        fs::remove_dir_all(store.join(format!("step-{step}/{stamp}"))).expect("is there");
    }

    /// A store with a commit of step 9, and a newer one of step 1 with more files than are read at once.
    async fn two_commits(place: &Path) -> Mirror {
        for (step, files) in [(9, 1), (1, AT_ONCE + 1)] {
            let unit = place.join(format!("checkpoints/step-{step}"));
            fs::create_dir_all(&unit).expect("mkdir");
            (0..files).for_each(|file| fs::write(unit.join(format!("{file}.bin")), [7; 100]).expect("writes"));
            let mut mirror = Mirror::open(config(place)).await.expect("opens");
            mirror.commit_newest(None, None, &|_, _| {}).await;
            fs::remove_dir_all(unit).expect("removes");
        }
        let mut plain = config(place);
        plain.claim = false;
        Mirror::open(plain).await.expect("opens")
    }

    const OLDER: &str = "0000000001-000001";

    #[tokio::test]
    async fn what_is_let_go_while_it_is_verified_is_not_called_bad() {
        let place = tempfile::tempdir().expect("temporary directory");
        let (mirror, store) = (two_commits(place.path()).await, place.path().join("store"));
        let is_there = Cell::new(true);
        // The newer one's objects come first: some of them are under way, and the older one's is not.
        let progress = |_: u64, _: u64| {
            if is_there.replace(false) {
                let_go(&store, OLDER, 9);
            }
        };
        let found = mirror.verified(&progress).await.expect("the store answers");
        assert_eq!(found.iter().map(|a| (a.name.step, a.problems.len())).collect::<Vec<_>>(), [(1, 0)]);
    }

    #[tokio::test]
    async fn what_lacks_its_data_and_was_not_let_go_is_bad() {
        let place = tempfile::tempdir().expect("temporary directory");
        let mirror = two_commits(place.path()).await;
        fs::remove_dir_all(place.path().join(format!("store/step-9/{OLDER}"))).expect("is there");
        for found in [mirror.listed().await, mirror.verified(&|_, _| {}).await] {
            let found = found.expect("the store answers");
            assert_eq!(found.iter().map(|a| (a.name.step, a.problems.len())).collect::<Vec<_>>(), [(1, 0), (9, 1)]);
        }
    }

    #[tokio::test]
    async fn whenever_it_is_let_go_a_list_does_not_call_it_bad() {
        for turns in 0..12 {
            let place = tempfile::tempdir().expect("temporary directory");
            let mirror = two_commits(place.path()).await;
            let (mut deed, mut left) = (pin!(mirror.listed()), Some(turns));
            let found = poll_fn(|context| {
                if left == Some(0) {
                    let_go(&place.path().join("store"), OLDER, 9);
                }
                left = left.and_then(|left: u32| left.checked_sub(1));
                deed.as_mut().poll(context)
            });
            let found = found.await.expect("the store answers");
            assert!(found.iter().all(|audited| audited.problems.is_empty()), "after {turns} turns: {found:?}");
        }
    }
}

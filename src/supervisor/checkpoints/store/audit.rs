//! Checks every commit of the store, by the sizes of its objects or by every byte, and lists all problems.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};

use futures_util::{StreamExt, stream};

use crate::edge::store::{Store, StoreError, Trouble};
use crate::rules::store::manifest::{Item, Manifest, hex};
use crate::rules::store::names::{BAD, CommitName};
use crate::supervisor::checkpoints::commit::memory::Memory;
use crate::supervisor::checkpoints::directory::sums::Sums;
use crate::supervisor::checkpoints::mirror::Mirror;
use crate::supervisor::checkpoints::store::commits::{commits, lack, read, sizes};

const AT_ONCE: usize = 8;

/// The audit of one commit.
#[derive(Debug)]
pub struct Audited {
    /// Its name.
    pub name: CommitName,
    /// Its manifest; `None` if it cannot be used.
    pub manifest: Option<Manifest>,
    /// All problems; empty: it can be restored.
    pub problems: Vec<Problem>,
    /// Whether a note says that a trainer failed twice soon after resuming from it. A new start ignores the note.
    pub is_poisoned: bool,
}

/// A problem of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, relative to the checkpoint directory; `None`: the manifest itself.
    pub path: Option<String>,
    /// One clause.
    pub what: String,
}

impl Mirror {
    /// Every commit, newest first, checked by the sizes of its objects. Commits that are deleted meanwhile are left out.
    pub async fn listed(&self) -> Result<Vec<Audited>, StoreError> {
        let mut all = Vec::new();
        let Some(store) = self.remote.as_ref().map(|remote| &remote.store) else { return Ok(all) };
        let (names, notes) = (commits(store).await?, store.list(BAD).await?);
        for name in names {
            let is_poisoned = notes.iter().any(|note| note.key == name.stamp.bad_key());
            let (manifest, problems) = match read(store, &name).await? {
                Ok(manifest) => {
                    let sizes = sizes(store, manifest.regular()).await?;
                    let problem = |item: &Item| Some(Problem::of(item, lack(item, &sizes)?));
                    let problems = manifest.regular().filter_map(problem).collect();
                    (Some(manifest), problems)
                }
                Err(what) => (None, vec![Problem { path: None, what }]),
            };
            all.push(Audited { name, manifest, problems, is_poisoned });
        }
        leave_out_gone(store, &mut all).await?;
        Ok(all)
    }

    /// [`Mirror::listed`], with every byte read and checked. Shared objects are read once. Calls `progress` with the bytes
    /// done and the bytes in all. Errors: the store does not answer.
    pub async fn verified(&self, progress: &dyn Fn(u64, u64)) -> Result<Vec<Audited>, StoreError> {
        let mut all = self.listed().await?;
        let Some(store) = self.remote.as_ref().map(|remote| &remote.store) else { return Ok(all) };
        let mut wanted = BTreeMap::new();
        for item in all.iter().flat_map(Audited::to_read) {
            wanted.entry((item.key.clone(), item.offset)).or_insert_with(|| item.clone());
        }
        let (bytes, done, mut found) = (wanted.values().map(|item| item.size).sum(), Cell::new(0), BTreeMap::new());
        let report = &|more: u64| {
            done.set(done.get() + more);
            progress(done.get(), bytes);
        };
        let reads = wanted.values().map(|item| async move { (item, checksum_object(store, item, report).await) });
        let at_once = Memory::now().fit(store.part_sizes()).at_once.min(AT_ONCE);
        let mut reads = stream::iter(reads).buffer_unordered(at_once);
        while let Some((item, sum)) = reads.next().await {
            found.insert((item.key.clone(), item.offset), sum?);
        }
        for audited in &mut all {
            let problem =
                |item: &Item| Some(Problem::of(item, differs(item, found.get(&(item.key.clone(), item.offset))?)?));
            let problems: Vec<Problem> = audited.to_read().filter_map(problem).collect();
            audited.problems.extend(problems);
        }
        leave_out_gone(store, &mut all).await?;
        Ok(all)
    }
}

impl Audited {
    /// Files without a known problem.
    fn to_read(&self) -> impl Iterator<Item = &Item> {
        let lacking: HashSet<&str> = self.problems.iter().filter_map(|p| p.path.as_deref()).collect();
        let items = self.manifest.iter().flat_map(Manifest::regular);
        items.filter(move |item| !lacking.contains(item.path.as_str()))
    }
}

impl Problem {
    fn of(item: &Item, what: String) -> Problem {
        Problem { path: Some(item.path.clone()), what }
    }
}

/// Removes commits that retention has deleted meanwhile: their manifests are gone. Both the listing and the object must say so,
/// because a listing may have lost a page and a response may be damaged.
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

fn differs(item: &Item, read: &Result<Sums, String>) -> Option<String> {
    let path = &item.path;
    let (now, then) = match read {
        Ok(sums) => (hex(sums.whole()), &item.crc32c),
        Err(why) => return Some(format!("{path}: {why}")),
    };
    (now != *then)
        .then(|| format!("{path} does not match its checksum: crc32c {now} in the store, {then} when it was committed"))
}

/// Reads an object to its end. Calls `report` for all its bytes, also for those that cannot be read. The inner error concerns
/// only this object.
async fn checksum_object(store: &Store, item: &Item, report: &dyn Fn(u64)) -> Result<Result<Sums, String>, StoreError> {
    let left = Cell::new(item.size);
    let sum = async {
        let (mut sums, mut reading) = (Sums::default(), store.read(&item.key, item.run().start, item.size).await?);
        while let Some(bytes) = reading.next().await? {
            sums.add(&bytes);
            let more = left.get().min(bytes.len() as u64);
            left.set(left.get() - more);
            report(more);
        }
        Ok::<Sums, StoreError>(sums)
    };
    let sum = sum.await;
    report(left.get());
    match sum {
        Ok(found) => Ok(Ok(found)),
        Err(error) => match error.trouble {
            Trouble::Unreachable
            | Trouble::NoCredentials
            | Trouble::InvalidCredentials
            | Trouble::StaleCredentials
            | Trouble::NoBucket => Err(error),
            _ => Ok(Err(error.to_string())),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::rules::store::address::Address;
    use crate::supervisor::checkpoints::commit::outcome::Ask;
    use crate::supervisor::checkpoints::config::{Config, Role};

    /// A store with a commit of step 9, and a newer one of step 1 with more files than are read at once.
    async fn two_commits(place: &Path) -> Mirror {
        let config = || Config::new(place.join("checkpoints"), Some(Address::Directory(place.join("store"))));
        for (step, files) in [(9, 1), (1, AT_ONCE + 1)] {
            let unit = place.join(format!("checkpoints/step-{step}"));
            fs::create_dir_all(&unit).expect("mkdir");
            (0..files).for_each(|file| fs::write(unit.join(format!("{file}.bin")), [7; 100]).expect("writes"));
            let mut mirror = Mirror::open(config()).await.expect("opens");
            mirror.commit(&Ask::at_rest(), &|_, _| {}).await;
            fs::remove_dir_all(unit).expect("removes");
        }
        Mirror::open(Config { role: Role::Looks, ..config() }).await.expect("opens")
    }

    /// Deletes the older commit as retention does, or only its data.
    fn delete_older(place: &Path, all: bool) {
        let (stamp, store) = ("0000000001-000001", place.join("store"));
        for entry in fs::read_dir(store.join(".trainit/commits")).expect("reads").flatten() {
            if all && entry.file_name().to_string_lossy().starts_with(stamp) {
                fs::remove_file(entry.path()).expect("is there");
            }
        }
        fs::remove_dir_all(store.join(format!("step-9/{stamp}"))).expect("is there");
    }

    fn problems(found: Result<Vec<Audited>, StoreError>) -> Vec<(u64, usize)> {
        found.expect("the store answers").iter().map(|a| (a.name.step, a.problems.len())).collect()
    }

    #[tokio::test]
    async fn a_commit_without_its_data_is_bad_and_one_pruned_during_verify_is_not() {
        let place = tempfile::tempdir().expect("temporary directory");
        let mirror = two_commits(place.path()).await;
        let is_there = Cell::new(true);
        // The newer commit's objects are read first, so the older one's object is not open yet.
        let progress = |_: u64, _: u64| {
            if is_there.replace(false) {
                delete_older(place.path(), true);
            }
        };
        assert_eq!(problems(mirror.verified(&progress).await), [(1, 0)]);
        let place = tempfile::tempdir().expect("temporary directory");
        let mirror = two_commits(place.path()).await;
        delete_older(place.path(), false);
        for found in [mirror.listed().await, mirror.verified(&|_, _| {}).await] {
            assert_eq!(problems(found), [(1, 0), (9, 1)]);
        }
    }
}

//! What the store holds, judged commit by commit, and what may leave it.
//!
//! The manifest goes first, then its data, so that a kill leaves orphans, never a commit without its data. Nothing local
//! is ever deleted here.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::claim::attempts;
use super::mirror::Mirror;
use super::send::sizes;
use crate::edge::store::{Object, Store, StoreError};
use crate::rules::checkpoint::manifest::{Item, LIMIT, Manifest};
use crate::rules::checkpoint::names::{
    BAD, COMMITS, CommitName, OWN, Stamp, is_of_ours, stamp_of_data, store_of_corner, stores_below,
};
use crate::rules::checkpoint::plan::{self, Retention};

/// What was written half is left alone for this long: somebody may be writing it.
pub(super) const STAGED: Duration = Duration::from_secs(600);
/// A store that owes an answer and moves nothing for so long is not waited for where nothing is lost by it.
const STUCK: Duration = Duration::from_secs(5);

/// So many turns without an end are told of: about a minute.
const MANY_TURNS: u32 = 3;

/// How far it is.
#[derive(Debug, Default)]
pub(super) struct Retiring {
    /// Whether there was a commit since it was last looked after.
    pub(super) is_due: bool,
    /// How many turns it has had without coming to its end.
    turns: u32,
    /// What was said of its trouble, without figures.
    told: String,
    /// Commits that are being let go of, and the keys of their data.
    left_over: RefCell<BTreeMap<CommitName, Vec<String>>>,
}

/// What was or would be deleted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Commits, oldest first.
    pub commits: Vec<CommitName>,
    /// Data objects of no commit.
    pub orphans: Vec<String>,
    /// Files of a directory store that were written half.
    pub swept: u64,
    /// How many commits stay.
    pub kept: usize,
}

/// Commits that retention lets go of.
#[derive(Debug, Default)]
struct Going {
    commits: Vec<CommitName>,
    /// Their data, where it is only said that it would go.
    left: HashSet<String>,
}

/// Every commit's name, newest first: the largest (attempt, sequence), whatever step or time says. Errors: besides, what
/// lies in the place of their directory, as training would begin from scratch beside commits that nobody sees.
pub async fn commits(store: &Store) -> Result<Vec<CommitName>, StoreError> {
    let names = commits_among(&store.list(COMMITS).await?);
    if names.is_empty()
        && let Some(path) = store.in_the_way(vec![format!("{COMMITS}/any")]).await?.first()
    {
        return Err(store.useless("list", path, "it is a file or leads nowhere, where the commits' directory must be"));
    }
    Ok(names)
}

/// The commits among these objects, newest first.
fn commits_among(objects: &[Object]) -> Vec<CommitName> {
    let mut names: Vec<CommitName> = objects.iter().filter_map(|o| CommitName::from_key(&o.key)).collect();
    names.sort_by(|a, b| b.cmp(a));
    names.dedup();
    names
}

/// Reads a manifest and looks whether all its objects are there with their sizes. The inner error says why the commit
/// must be passed over.
pub async fn judge(store: &Store, name: &CommitName) -> Result<Result<Manifest, String>, StoreError> {
    match read(store, name).await? {
        Ok(manifest) => Ok(lacks(store, &manifest).await?.map_or(Ok(manifest), Err)),
        Err(why) => Ok(Err(why)),
    }
}

/// The manifest alone. The inner error says why the commit must be passed over: an answer that is spoilt is no reason.
pub(super) async fn read(store: &Store, name: &CommitName) -> Result<Result<Manifest, String>, StoreError> {
    let key = name.key();
    let is_spoilt = |got: &Result<Bytes, StoreError>| match got {
        Ok(bytes) => CommitName::of(name.stamp.clone(), Some(name.step), bytes) != *name,
        Err(error) => error.is_doubtful(),
    };
    let mut got = store.get(&key, LIMIT + 1).await;
    if is_spoilt(&got) {
        got = store.get(&key, LIMIT + 1).await;
    }
    if !is_spoilt(&got) {
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

/// The first of these commits, from this one on, whose manifest can be read, and where it stands.
async fn readable(store: &Store, names: &[CommitName], from: usize) -> Result<Option<(usize, Manifest)>, StoreError> {
    for (at, name) in names.iter().enumerate().skip(from) {
        if let Ok(manifest) = read(store, name).await? {
            return Ok(Some((at, manifest)));
        }
    }
    Ok(None)
}

/// What the store does not hold as the manifest has it; `None`: nothing.
pub(super) async fn lacks(store: &Store, manifest: &Manifest) -> Result<Option<String>, StoreError> {
    let there = sizes(store, manifest.regular()).await?;
    Ok(manifest.regular().find_map(|item| lack(item, &there)))
}

/// What is wrong with a file, from the sizes of the objects that are there.
pub(super) fn lack(item: &Item, there: &HashMap<String, u64>) -> Option<String> {
    match there.get(&item.key) {
        Some(size) if item.fits(*size) => None,
        Some(size) if item.offset.is_some() => {
            Some(format!("{}, in which {} lies, has only {size} bytes in the store", item.key, item.path))
        }
        Some(size) => Some(format!("{} has {size} bytes in the store, not {}", item.path, item.size)),
        None => Some(format!("{} is missing from the store", item.path)),
    }
}

impl Mirror {
    /// After a commit: lets go of what retention no longer keeps, for as long as this `turn`, and twice as long each time
    /// that was not enough. What is left is to be done still, but for a store that stands still or refuses, which is left
    /// alone until the next commit.
    pub async fn retire(&mut self, turn: Duration, is_last: bool) {
        let Some(store) = self.store.clone().filter(|_| self.retiring.is_due) else { return };
        let place = self.config.store.as_ref().map_or(String::new(), ToString::to_string);
        let turn = if is_last { turn } else { turn.saturating_mul(2_u32.saturating_pow(self.retiring.turns)) };
        let done = tokio::time::timeout(turn, unless_stuck(&store, self.tidy(&store))).await;
        self.retiring.is_due = done.is_err();
        self.retiring.turns = if done.is_err() { self.retiring.turns.saturating_add(1) } else { 0 };
        let why = match done {
            Ok(Some(Ok(()))) => {
                self.retiring.told.clear();
                None
            }
            Ok(Some(Err(error))) => Some(error.to_string()),
            Ok(None) => Some(format!("{place} does not answer what retention asks of it")),
            Err(_) if is_last || self.retiring.turns == MANY_TURNS => Some(format!("{place} takes long to delete")),
            Err(_) => None,
        };
        // The keys differ each time.
        let gist: String = why.iter().flat_map(|why| why.chars()).filter(|c| !c.is_ascii_digit()).collect();
        if let Some(why) = why.filter(|_| gist != self.retiring.told) {
            self.note(format!(
                "{why}; what --keep-last lets go of stays for now, in part or whole; see that this run may delete there; trainit checkpoint prune takes it away"
            ));
            self.retiring.told = gist;
        }
        self.config.faults.point(12);
    }

    async fn tidy(&self, store: &Store) -> Result<(), StoreError> {
        let left: Vec<CommitName> = self.retiring.left_over.borrow().keys().cloned().collect();
        let mut trouble = Ok(());
        for name in left {
            // One that is there after all is judged anew, with the others.
            let keys = self.retiring.left_over.borrow().get(&name).cloned().unwrap_or_default();
            let done = match store.size(&name.key()).await {
                Ok(None) => self.delete_data(store, keys).await,
                Ok(Some(_)) => Ok(()),
                Err(error) => Err(error),
            };
            // What is refused for good is left to a prune.
            if !done.as_ref().is_err_and(|error| error.trouble.may_pass()) {
                self.retiring.left_over.borrow_mut().remove(&name);
            }
            trouble = trouble.and(done);
        }
        self.prune_commits(false).await?;
        trouble
    }

    /// Whether something was deleted that retention does not keep.
    pub(super) async fn make_room(&self) -> bool {
        self.prune_commits(false).await.is_ok_and(|gone| !gone.commits.is_empty())
    }

    /// Deletes what retention does not keep, and data of no commit and what was written half, old enough; `dry` only says
    /// what.
    pub async fn prune(&self, dry: bool) -> Result<Pruned, StoreError> {
        let Some(store) = &self.store else { return Ok(Pruned::default()) };
        let before = commits(store).await?.len();
        let gone = self.prune_commits(dry).await?;
        let age = self.config.retention.orphan_age;
        let orphans = orphans(store, age, &gone).await?;
        // First, so that directories are empty when their last object goes.
        let swept = store.sweep(age.max(STAGED), is_of_ours, dry).await;
        if !dry {
            let deletions = orphans.iter().map(|key| store.delete(key));
            stream::iter(deletions).buffer_unordered(store.habits().at_once).try_collect::<()>().await?;
        }
        let kept = before.saturating_sub(gone.commits.len());
        Ok(Pruned { kept, commits: gone.commits, orphans, swept: swept? })
    }

    async fn prune_commits(&self, dry: bool) -> Result<Going, StoreError> {
        let Some(store) = &self.store else { return Ok(Going::default()) };
        let retention: Retention = self.config.retention;
        let names = commits(store).await?;
        let keep = usize::try_from(retention.last.max(1)).unwrap_or(usize::MAX);
        if names.len() <= keep {
            return Ok(Going::default());
        }
        let notes = store.list(BAD).await?;
        let is_poisoned = |stamp: &Stamp| notes.iter().any(|note| note.key == stamp.bad_key());
        let (mut good, mut judged, mut newest) = (0, Vec::new(), None);
        for name in names {
            let manifest = if good < keep { judge(store, &name).await?.ok() } else { None };
            let is_good = manifest.is_some() && !is_poisoned(&name.stamp);
            newest = newest.or(manifest);
            good += usize::from(is_good);
            judged.push((name, is_good));
        }
        // Who prunes by hand has resumed from nothing; the run whose commits these are has.
        let resumed = newest.as_ref().and_then(|newest| Stamp::parse(newest.parent.as_deref()?));
        let spared = self.parent.clone().or(resumed);
        let best = newest.and_then(|newest| newest.best_step);
        let ours = match &self.attempt {
            Some(attempt) => Some(attempt.clone()),
            None => {
                let committed = judged.iter().map(|(name, _)| name.stamp.attempt.clone());
                attempts(store).await?.into_iter().chain(committed).max()
            }
        };
        let Some(ours) = ours else { return Ok(Going::default()) };
        let going = plan::expendable(&judged, retention, &ours, spared.as_ref(), best);
        let mut left = HashSet::new();
        if !going.is_empty() {
            // A file that did not change lies under the key of an older commit.
            let mut needed = HashSet::new();
            for (name, _) in judged.iter().filter(|(name, _)| !going.contains(name)) {
                // One that another run has just deleted needs nothing.
                if let Ok(manifest) = read(store, name).await? {
                    needed.extend(manifest.files.into_iter().map(|f| f.key));
                }
            }
            let mut next = readable(store, &going, 0).await?;
            for (at, name) in going.iter().enumerate() {
                // Not one that cannot be read just now: what data were its own, nobody would know any more.
                let manifest = next.take_if(|(of, _)| *of == at).map(|(_, manifest)| manifest);
                if manifest.is_some() {
                    next = readable(store, &going, at + 1).await?;
                }
                // What the next has of this one goes with the next: cut off in between, this leaves no torn commit.
                let shared: HashSet<&str> =
                    next.iter().flat_map(|(_, next)| next.regular()).map(|item| item.key.as_str()).collect();
                let stays = |key: &str| needed.contains(key) || shared.contains(key);
                let keys = data_of(name, manifest.as_ref(), stays);
                if dry {
                    left.extend(keys);
                } else {
                    self.delete(store, name, keys).await?;
                }
            }
        }
        Ok(Going { commits: going, left })
    }

    /// Deletes a commit, and this data of it.
    pub(super) async fn delete(&self, store: &Store, name: &CommitName, keys: Vec<String>) -> Result<(), StoreError> {
        // What this is cut off from is left over for the next time.
        self.retiring.left_over.borrow_mut().insert(name.clone(), keys.clone());
        store.delete(&name.key()).await?;
        self.config.faults.point(10);
        self.delete_data(store, keys).await?;
        self.retiring.left_over.borrow_mut().remove(name);
        Ok(())
    }

    /// Of a commit that is gone: all that can be. Errors: the first.
    async fn delete_data(&self, store: &Store, keys: Vec<String>) -> Result<(), StoreError> {
        let deletions = keys.into_iter().map(|key| async move {
            store.delete(&key).await?;
            self.config.faults.point(11);
            Ok(())
        });
        let deleted = stream::iter(deletions).buffer_unordered(store.habits().at_once);
        deleted.fold(Ok(()), async |so_far, done| so_far.and(done)).await
    }
}

/// The data that goes with a commit: its own, and what it had of earlier commits of its run, unless others have it too.
/// `manifest`: `None` where it is none, or gone: of that we do not know the data, which becomes an orphan; `stays`: whether
/// this key does.
pub(super) fn data_of(name: &CommitName, manifest: Option<&Manifest>, stays: impl Fn(&str) -> bool) -> Vec<String> {
    let is_its =
        |key: &str| stamp_of_data(key).is_some_and(|s| s.attempt == name.stamp.attempt && s.seq <= name.stamp.seq);
    let files = manifest.into_iter().flat_map(Manifest::regular);
    // One may hold many of its files.
    let keys: BTreeSet<&String> = files.map(|i| &i.key).filter(|key| is_its(key) && !stays(key)).collect();
    keys.into_iter().cloned().collect()
}

/// Does it; `None`: the store gives no answer any more.
pub(super) async fn unless_stuck<T>(store: &Store, deed: impl Future<Output = T>) -> Option<T> {
    let stuck = async {
        loop {
            let then = store.motion();
            tokio::time::sleep(STUCK).await;
            if store.motion().is_stuck_since(then) {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        done = deed => Some(done),
        () = stuck => None,
    }
}

/// Data that no commit names, of an attempt that is over, and old by the store's own clock, once this is gone.
async fn orphans(store: &Store, age: Duration, gone: &Going) -> Result<Vec<String>, StoreError> {
    let objects = store.list("").await?;
    let mut named: HashSet<String> = HashSet::new();
    let mut kept: HashSet<Stamp> = HashSet::new();
    // Either listing may have lost a page of them.
    for name in commits(store).await?.into_iter().chain(commits_among(&objects)) {
        if gone.commits.contains(&name) || !kept.insert(name.stamp.clone()) {
            continue;
        }
        // Torn commits' files too: some of them may be all that is left.
        if let Ok(manifest) = read(store, &name).await? {
            named.extend(manifest.files.into_iter().map(|f| f.key));
        }
    }
    // Claims may have been deleted.
    let committed = kept.iter().map(|stamp| stamp.attempt.clone());
    let Some(newest) = attempts(store).await?.into_iter().chain(committed).max() else { return Ok(Vec::new()) };
    // Never our own clock, which may be a day ahead. Of a store that does not say, the newest object's time: it was then
    // or later.
    let newest_object = objects.iter().map(|o| o.modified).max().unwrap_or_default();
    let now = store.time().await.unwrap_or(newest_object);
    let is_orphan = |key: &str| {
        stamp_of_data(key).is_some_and(|s| s.attempt < newest && !kept.contains(&s))
            && !named.contains(key)
            && !gone.left.contains(key)
    };
    let mut others: HashMap<String, bool> =
        objects.iter().filter_map(|o| Some((store_of_corner(&o.key)?.to_owned(), true))).collect();
    let mut orphans = Vec::new();
    for object in objects.into_iter().filter(|o| now.saturating_sub(o.modified) > age && is_orphan(&o.key)) {
        if !is_of_another(store, &object.key, &mut others).await? {
            orphans.push(object.key);
        }
    }
    Ok(orphans)
}

/// Whether it is the data of a store below this one. `others`: where one is, as far as it is known; a prefix of which it
/// is not is asked, as the listing may have lost its page.
async fn is_of_another(store: &Store, key: &str, others: &mut HashMap<String, bool>) -> Result<bool, StoreError> {
    for prefix in stores_below(key) {
        let is_store = match others.get(prefix) {
            Some(known) => *known,
            None => {
                let is_store = !store.list(&format!("{prefix}/{OWN}")).await?.is_empty();
                others.insert(prefix.to_owned(), is_store);
                is_store
            }
        };
        if is_store {
            return Ok(true);
        }
    }
    Ok(false)
}

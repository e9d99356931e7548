//! Deletes what retention no longer keeps in the store.
//!
//! The manifest is deleted first, then its data, so a kill leaves orphans, never a commit without its data. Nothing local is
//! deleted here.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use crate::edge::fault::Faults;
use crate::edge::store::{Store, StoreError};
use crate::rules::checkpoint::listing::OWN;
use crate::rules::gang::message::MOST_REMEMBERED;
use crate::rules::store::manifest::Manifest;
use crate::rules::store::names::{
    BAD, CommitName, PROBES, Stamp, is_trainits, nested_store_of, possible_nested_stores, stamp_of_data,
};
use crate::rules::store::plan::{self, Hold, Retention};
use crate::supervisor::checkpoints::directory::disk::nonce;
use crate::supervisor::checkpoints::store::claim::{Remote, STAGED};
use crate::supervisor::checkpoints::store::commits::{
    attempts, commits, commits_among, delete_all, judge, read, readable,
};

/// After this many unfinished turns, about a minute, a warning is logged.
const MANY_TURNS: u32 = 3;

/// The rule of retention and its progress.
#[derive(Debug)]
pub(crate) struct RetentionProgress {
    rule: Retention,
    /// The commits that a gang protects.
    pub(crate) hold: Hold,
    faults: Faults,
    /// Whether there was a commit since the last turn.
    pub(crate) is_due: bool,
    /// The number of unfinished turns.
    turns: u32,
    /// The last warning, without digits.
    last_reported: String,
    /// Commits that are being deleted, and the keys of their data.
    left_over: RefCell<BTreeMap<CommitName, Vec<String>>>,
}

/// The result of a prune, or its preview.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Commits, oldest first.
    pub commits: Vec<CommitName>,
    /// Data objects of no commit.
    pub orphans: Vec<String>,
    /// Temporary files of a directory store.
    pub swept: u64,
    /// How many commits stay.
    pub kept: usize,
}

/// Commits that retention deletes.
#[derive(Debug, Default)]
struct Deletions {
    commits: Vec<CommitName>,
    /// Their data, in a preview.
    left: HashSet<String>,
}

impl RetentionProgress {
    pub(crate) fn new(rule: Retention, hold: Hold, faults: Faults) -> RetentionProgress {
        RetentionProgress {
            rule,
            hold,
            faults,
            is_due: false,
            turns: 0,
            last_reported: String::new(),
            left_over: RefCell::default(),
        }
    }

    /// After a commit: deletes what retention no longer keeps, for one `turn`, which doubles each time that it was too short.
    /// `spared`: the commit that the run resumed from. Returns a warning, each one once.
    pub(crate) async fn retire(
        &mut self,
        remote: &Remote,
        spared: Option<&Stamp>,
        turn: Duration,
        is_last: bool,
    ) -> Option<String> {
        if !self.is_due {
            return None;
        }
        let turn = if is_last { turn } else { turn.saturating_mul(2_u32.saturating_pow(self.turns)) };
        let done = tokio::time::timeout(turn, self.tidy(remote, spared)).await;
        self.is_due = done.is_err();
        self.turns = if done.is_err() { self.turns.saturating_add(1) } else { 0 };
        let why = match done {
            Ok(Ok(())) => {
                self.last_reported.clear();
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) if is_last || self.turns == MANY_TURNS => Some(format!("{} takes long to delete", remote.address)),
            Err(_) => None,
        };
        self.faults.point(12);
        // Keys differ each time.
        let gist: String = why.iter().flat_map(|why| why.chars()).filter(|c| !c.is_ascii_digit()).collect();
        let why = why.filter(|_| gist != self.last_reported)?;
        self.last_reported = gist;
        Some(format!(
            "{why}; commits beyond --keep-last stay for now, in part or whole; see that this run may delete there; trainit checkpoint prune deletes them"
        ))
    }

    async fn tidy(&self, remote: &Remote, spared: Option<&Stamp>) -> Result<(), StoreError> {
        let left: Vec<CommitName> = self.left_over.borrow().keys().cloned().collect();
        let mut trouble = Ok(());
        for name in left {
            // A commit that still exists is judged again, with the others.
            let keys = self.left_over.borrow().get(&name).cloned().unwrap_or_default();
            let done = match remote.store.size(&name.key()).await {
                Ok(None) => delete_all(&remote.store, &keys, || self.faults.point(11)).await,
                Ok(Some(_)) => Ok(()),
                Err(error) => Err(error),
            };
            // A permanent refusal is left to a prune.
            if !done.as_ref().is_err_and(|error| error.trouble.may_pass()) {
                self.left_over.borrow_mut().remove(&name);
            }
            trouble = trouble.and(done);
        }
        self.prune_commits(remote, spared, false).await?;
        trouble
    }

    /// Whether something was deleted that retention does not keep.
    pub(crate) async fn make_room(&self, remote: &Remote, spared: Option<&Stamp>) -> bool {
        self.prune_commits(remote, spared, false).await.is_ok_and(|gone| !gone.commits.is_empty())
    }

    /// Deletes what retention does not keep, and old orphans and temporary files; `dry` only lists them.
    pub(crate) async fn prune(&self, remote: &Remote, dry: bool) -> Result<Pruned, StoreError> {
        let store = &remote.store;
        let before = commits(store).await?.len();
        let gone = self.prune_commits(remote, None, dry).await?;
        let age = self.rule.orphan_age;
        let now = store.time(&format!("{PROBES}/{}", nonce())).await;
        let orphans = orphans(store, (now, age), &gone).await?;
        // First, so that directories are empty when their last object is deleted.
        let until = now.map_or(Duration::ZERO, |now| now.saturating_sub(age.max(STAGED)));
        let swept = store.sweep(until, is_trainits, dry).await;
        if !dry {
            delete_all(store, &orphans, || {}).await?;
        }
        let kept = before.saturating_sub(gone.commits.len());
        Ok(Pruned { kept, commits: gone.commits, orphans, swept: swept? })
    }

    async fn prune_commits(&self, remote: &Remote, spared: Option<&Stamp>, dry: bool) -> Result<Deletions, StoreError> {
        let store = &remote.store;
        let names = commits(store).await?;
        let keep = usize::try_from(self.rule.last.max(1)).unwrap_or(usize::MAX);
        if names.len() <= keep {
            return Ok(Deletions::default());
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
        // A prune by hand did not resume, but the run of these commits may have.
        let resumed = newest.as_ref().and_then(|newest| Stamp::parse(newest.parent.as_deref()?));
        let spared = spared.cloned().or(resumed);
        // Nor is it a member of the gang.
        let recorded = || newest.as_ref().map_or(Hold::Nothing, |newest| Hold::of_record(newest.gang_kept));
        let hold = if remote.attempt().is_none() { recorded() } else { self.hold };
        // A run that was overtaken deletes nothing: the newer one may build on it.
        let attempts = attempts(store).await?;
        let own = match remote.attempt() {
            Some(attempt) if attempts.iter().any(|other| other > attempt) => return Ok(Deletions::default()),
            Some(attempt) => Some(attempt.clone()),
            None => attempts.into_iter().chain(judged.iter().map(|(name, _)| name.stamp.attempt.clone())).max(),
        };
        let Some(own) = own else { return Ok(Deletions::default()) };
        let mut going = plan::expendable(&judged, self.rule, &own, spared.as_ref());
        let offered: HashSet<&CommitName> = judged.iter().take(MOST_REMEMBERED).map(|(name, _)| name).collect();
        going.retain(|name| !hold.keeps(name.step, offered.contains(name)));
        let mut left = HashSet::new();
        if !going.is_empty() {
            // An unchanged file has the key of an older commit.
            let mut needed = HashSet::new();
            for (name, _) in judged.iter().filter(|(name, _)| !going.contains(name)) {
                // A commit that another run has just deleted needs nothing.
                if let Ok(manifest) = read(store, name).await? {
                    needed.extend(manifest.files.into_iter().map(|f| f.key));
                }
            }
            let mut next = readable(store, &going, 0).await?;
            for (at, name) in going.iter().enumerate() {
                // If the manifest cannot be read now, its data becomes orphans.
                let manifest = next.take_if(|(of, _)| *of == at).map(|(_, manifest)| manifest);
                if manifest.is_some() {
                    next = readable(store, &going, at + 1).await?;
                }
                // Data shared with the next commit is deleted with that one, so that a kill in between leaves no torn commit.
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
        Ok(Deletions { commits: going, left })
    }

    pub(crate) async fn delete(&self, store: &Store, name: &CommitName, keys: Vec<String>) -> Result<(), StoreError> {
        // After an interruption the next turn deletes the rest.
        self.left_over.borrow_mut().insert(name.clone(), keys.clone());
        store.delete(&name.key()).await?;
        self.faults.point(10);
        delete_all(store, &keys, || self.faults.point(11)).await?;
        self.left_over.borrow_mut().remove(name);
        Ok(())
    }
}

/// The data to delete with a commit: its own, and shared data that no other commit needs (`stays`). Without a manifest its data
/// becomes orphans.
pub(crate) fn data_of(name: &CommitName, manifest: Option<&Manifest>, stays: impl Fn(&str) -> bool) -> Vec<String> {
    let is_its = |key: &str| stamp_of_data(key).is_some_and(|stamp| stamp <= name.stamp);
    let files = manifest.into_iter().flat_map(Manifest::regular);
    let keys: BTreeSet<&String> = files.map(|i| &i.key).filter(|key| is_its(key) && !stays(key)).collect();
    keys.into_iter().cloned().collect()
}

/// Data that no commit names after the prune, of an earlier attempt, and old by the store's clock.
async fn orphans(
    store: &Store,
    (now, age): (Option<Duration>, Duration),
    gone: &Deletions,
) -> Result<Vec<String>, StoreError> {
    let objects = store.list("").await?;
    let mut named: HashSet<String> = HashSet::new();
    let mut kept: HashSet<Stamp> = HashSet::new();
    // Either listing may have lost a page of them.
    for name in commits(store).await?.into_iter().chain(commits_among(&objects)) {
        if gone.commits.contains(&name) || !kept.insert(name.stamp.clone()) {
            continue;
        }
        // Files of torn commits count too: they may be all that is left.
        if let Ok(manifest) = read(store, &name).await? {
            named.extend(manifest.files.into_iter().map(|f| f.key));
        }
    }
    // Claims may have been deleted.
    let committed = kept.iter().map(|stamp| stamp.attempt.clone());
    let Some(newest) = attempts(store).await?.into_iter().chain(committed).max() else { return Ok(Vec::new()) };
    // The local clock may be wrong. A store without a time has at least the time of its newest object.
    let newest_object = objects.iter().map(|o| o.modified).max().unwrap_or_default();
    let now = now.unwrap_or(newest_object);
    let is_orphan = |key: &str| {
        stamp_of_data(key).is_some_and(|s| s.attempt < newest && !kept.contains(&s))
            && !named.contains(key)
            && !gone.left.contains(key)
    };
    let mut others: HashMap<String, bool> =
        objects.iter().filter_map(|o| Some((nested_store_of(&o.key)?.to_owned(), true))).collect();
    let mut orphans = Vec::new();
    for object in objects.into_iter().filter(|o| now.saturating_sub(o.modified) > age && is_orphan(&o.key)) {
        if !is_nested(store, &object.key, &mut others).await? {
            orphans.push(object.key);
        }
    }
    Ok(orphans)
}

/// Whether the key is data of a nested store. `others`: known prefixes and whether they are stores; unknown ones are listed,
/// because the listing may have lost a page.
async fn is_nested(store: &Store, key: &str, others: &mut HashMap<String, bool>) -> Result<bool, StoreError> {
    for prefix in possible_nested_stores(key) {
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

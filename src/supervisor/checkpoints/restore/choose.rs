//! Chooses the commit to restore: the newest complete one, unless the directory has it or is newer.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use crate::edge::transfer::blocking::blocking;
use crate::rules::checkpoint::{Committed, Entry, Listing};
use crate::rules::job::Event;
use crate::rules::store::manifest::Manifest;
use crate::rules::store::names::CommitName;
use crate::rules::store::plan::ClaimState;
use crate::rules::text::safe_text::named;
use crate::supervisor::checkpoints::commit::dedup::{Known, Sent};
use crate::supervisor::checkpoints::directory::look::walked;
use crate::supervisor::checkpoints::directory::record::{self, Record};
use crate::supervisor::checkpoints::failure::{Failure, Refusal};
use crate::supervisor::checkpoints::mirror::{LastCommit, Mirror};
use crate::supervisor::checkpoints::store::claim::{Remote, expected_commits};
use crate::supervisor::checkpoints::store::commits::{commits, judge, read};

/// The maximum of steps in a message.
const NAMED: usize = 10;

/// Which commits may be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// Any, or those of a step: at the start of a run.
    First(Option<u64>),
    /// Those of this run, and earlier ones that it could have begun with.
    Later,
    /// Those before the bad ones.
    Older,
}

/// The result for one commit.
enum Considered {
    /// It is restored, or the directory is newer.
    Chosen,
    /// It has another step than requested.
    OfAnotherStep,
    Rejected(String),
}

impl Mirror {
    /// Fails if the store does not show this run's claim: it is another store, or its listings are incomplete.
    pub(crate) async fn check_claim(&self, remote: &Remote) -> Result<(), Failure> {
        let last = self.last.as_ref().map(|last| &last.stamp);
        match remote.standing(last).await.map_err(|error| self.config.away(&error))? {
            Some(ClaimState::Gone) => Err(Failure::store(remote.unclaimed())),
            _ => Ok(()),
        }
    }

    /// Restores the newest complete one of these commits, unless the directory is newer.
    pub(crate) async fn choose(
        &mut self,
        remote: &Remote,
        which: Which,
        record: Option<&Record>,
    ) -> Result<(), Failure> {
        let (mut names, mut tried, mut refused) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        loop {
            // Listed again each time: an earlier run may still commit, and delete older commits.
            names.extend(self.choices(remote, which).await?);
            self.config.faults.point(19);
            let Some(name) = names.difference(&tried).last().cloned() else { break };
            tried.insert(name.clone());
            match self.consider(remote, which, record, &name).await? {
                Considered::Chosen => return Ok(()),
                Considered::OfAnotherStep => {}
                Considered::Rejected(why) => {
                    self.note(format!("skipped commit {name}: {why}"));
                    refused.push(why);
                }
            }
        }
        if which == Which::Older {
            return Ok(());
        }
        // If there was a commit, starting from scratch is an error.
        let had_one = !refused.is_empty() || which == Which::Later && self.last.is_some();
        self.last = None;
        self.sender.known = Known::default();
        self.begin(None).await?;
        if had_one && self.local_resume().await?.is_none() {
            return Err(self.none_restorable(which, names.len(), refused.first()));
        }
        Ok(())
    }

    /// Restores this commit, unless the directory has it or it is damaged.
    async fn consider(
        &mut self,
        remote: &Remote,
        which: Which,
        record: Option<&Record>,
        name: &CommitName,
    ) -> Result<Considered, Failure> {
        let seen = record.filter(|record| has_seen(record, which, name));
        let judged = match seen.is_some() {
            true => judge(&remote.store, name).await,
            false => read(&remote.store, name).await,
        };
        let manifest = match judged.map_err(|error| self.config.away(&error))? {
            Ok(manifest) => manifest,
            Err(why) => return Ok(Considered::Rejected(why)),
        };
        // In a name, 0 may mean that there is no step.
        if matches!(which, Which::First(Some(step)) if manifest.step != Some(step)) {
            return Ok(Considered::OfAnotherStep);
        }
        self.listeners.emit(Event::Found { committed: manifest.step });
        if let Some(record) = seen
            && self.has_newest(record).await?
        {
            self.resume_from_directory(which, name, &manifest, record).await?;
            return Ok(Considered::Chosen);
        }
        match self.install_commit(remote, &manifest).await {
            Ok(()) => {
                self.set_parent(which, name, &manifest);
                self.remember(&manifest).await?;
                Ok(Considered::Chosen)
            }
            Err(Refusal::Reject(why)) => {
                self.listeners.emit(Event::Found { committed: None });
                Ok(Considered::Rejected(why))
            }
            Err(Refusal::Fatal(error)) => Err(error),
        }
    }

    /// Resumes from the directory, which has the commit or is newer.
    pub(crate) async fn resume_from_directory(
        &mut self,
        which: Which,
        name: &CommitName,
        manifest: &Manifest,
        record: &Record,
    ) -> Result<(), Failure> {
        self.set_parent(which, name, manifest);
        if record.stamp.as_ref() != Some(&name.stamp) {
            return self.begin(None).await;
        }
        self.sender.known = known(manifest, &record.committed.entries);
        self.begin(Some(record.committed.clone())).await
    }

    /// Whether the directory is at least as new as the commit of the record.
    pub(crate) async fn has_newest(&self, record: &Record) -> Result<bool, Failure> {
        let unusable = |error: io::Error| self.config.unusable(&error);
        self.begin(None).await?;
        let is_any = self.watcher.resume().await.map_err(unusable)?.is_some();
        let listing = self.followed().await.map_err(unusable)?;
        Ok(is_any && !record::lacks_the_newest(&record.committed, &record.beside, &listing, &self.config.options))
    }

    /// The directory's listing. Links are followed if the settings say so.
    pub(crate) async fn followed(&self) -> io::Result<Listing> {
        let (dir, options) = (self.config.dir.clone(), Arc::clone(&self.config.options));
        blocking(move || walked(&dir, &options)).await
    }

    /// Sets the commit from which the run resumes. If another run made it, this run may fall back to it and to older ones.
    pub(crate) fn set_parent(&mut self, which: Which, name: &CommitName, manifest: &Manifest) {
        if which != Which::Later && Some(&name.stamp.attempt) != self.attempt() {
            self.history.origin = Some(name.stamp.clone());
        }
        self.history.parent = Some(name.stamp.clone());
        self.last = Some(LastCommit::of(name, manifest.step));
    }

    pub(crate) async fn choices(&mut self, remote: &Remote, which: Which) -> Result<Vec<CommitName>, Failure> {
        let saw_commits = remote.claim.as_ref().is_some_and(|claim| claim.saw_commits);
        let listed = match which {
            Which::First(_) if saw_commits => expected_commits(&remote.store).await,
            _ => commits(&remote.store).await,
        };
        let mut names = listed.map_err(|error| self.config.away(&error))?;
        self.history.known = names.iter().map(|name| name.stamp.clone()).collect();
        let (history, own) = (&self.history, self.attempt());
        match which {
            Which::First(step) => names.retain(|n| step.is_none_or(|step| n.step == step)),
            Which::Later => names.retain(|n| {
                let is_before = history.origin.as_ref().is_some_and(|origin| n.stamp <= *origin);
                is_before || Some(&n.stamp.attempt) == own
            }),
            Which::Older => {
                let oldest = history.bad.iter().min();
                names.retain(|n| oldest.is_none_or(|bad| n.stamp < *bad));
            }
        }
        names.retain(|n| !history.bad.contains(&n.stamp));
        Ok(names)
    }

    /// Records that the store holds the files of the directory.
    pub(crate) async fn remember(&mut self, manifest: &Manifest) -> Result<(), Failure> {
        let listing = self.followed().await.map_err(|error| self.config.unusable(&error))?;
        let entry = |path: &String| Some((path.clone(), listing.get(path)?.clone()));
        let parts = manifest.parts();
        let entries: BTreeMap<String, Entry> = parts.iter().flat_map(|part| &part.files).filter_map(entry).collect();
        self.sender.known = known(manifest, &entries);
        self.begin(Some(Committed { parts, entries, timing: manifest.timing.clone() })).await
    }

    /// The error that no checkpoint to restore exists.
    pub(crate) async fn no_checkpoint(&self, step: Option<u64>) -> Failure {
        let what = step.map_or("no complete checkpoint".to_owned(), |s| format!("no complete checkpoint of step {s}"));
        let place = self.config.store.as_ref().map_or(String::new(), |s| format!(" or {s}"));
        let names = match &self.remote {
            Some(remote) if step.is_some() => commits(&remote.store).await.unwrap_or_default(),
            _ => Vec::new(),
        };
        // In a name, 0 may mean that there is no step.
        let others = names.iter().map(|name| name.step).filter(|other| Some(*other) != step);
        let shown = |step: u64| if step == 0 { "0 (or without a step)".to_owned() } else { step.to_string() };
        let way_out = match (step, named(others.map(shown), NAMED)) {
            (None, _) if self.config.is_by_hand() => "see that this is the store that the run was given".to_owned(),
            (None, _) => "--restore latest would start from scratch".to_owned(),
            (Some(_), None) => "without --restore-step the newest is taken, if there is any".to_owned(),
            (Some(_), Some(others)) => format!("committed are {others}"),
        };
        let (dir, nothing) = (self.config.dir.display(), self.config.nothing_done());
        Failure::store(format!("there is {what} in {dir}{place}; {nothing}; {way_out}"))
    }

    /// The error that no commit can be restored, or that all commits are gone.
    fn none_restorable(&self, which: Which, tried: usize, why: Option<&String>) -> Failure {
        let place = self.config.store.as_ref().map_or(String::new(), ToString::to_string);
        let Some(why) = why else {
            return Failure::store(format!(
                "the commits of this run are gone from {place}, and there is nothing in {} to resume from; nothing was started; find out what deleted them, or start again, from scratch",
                self.config.dir.display()
            ));
        };
        let (which, way_out) = match which {
            Which::First(Some(step)) => (
                format!("no commit of step {step}"),
                "give another --restore-step, or none for the newest that can be restored",
            ),
            _ if self.config.is_by_hand() => (format!("none of the {tried} commits"), "repair the store"),
            _ => {
                (format!("none of the {tried} commits"), "repair the store, or start from scratch with --restore none")
            }
        };
        let nothing = self.config.nothing_done();
        Failure::store(format!(
            "{which} in {place} can be restored (the newest: {why}); {nothing}; trainit checkpoint verify says what each lacks; {way_out}"
        ))
    }
}

/// Whether the directory has had this commit or a later one.
pub(crate) fn has_seen(record: &Record, which: Which, name: &CommitName) -> bool {
    let Some(stamp) = &record.stamp else { return false };
    let is_another = *stamp == name.stamp && record.hash.as_ref().is_some_and(|hash| *hash != name.hash);
    let is_late_enough = match which {
        Which::First(Some(_)) => *stamp == name.stamp,
        _ => *stamp >= name.stamp,
    };
    is_late_enough && !is_another
}

/// The commit's files with their entries in the directory.
fn known(manifest: &Manifest, entries: &BTreeMap<String, Entry>) -> Known {
    let sent = manifest.files.iter().filter_map(|item| {
        let entry = entries.get(&item.path)?.clone();
        Some(Sent { entry, item: item.clone() })
    });
    Known::new(sent.collect())
}

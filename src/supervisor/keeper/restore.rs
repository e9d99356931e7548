//! Finds what to resume from and puts it in place: the newest commit that proves whole, or the local checkpoint where
//! that one is newer.
//!
//! Killed anywhere, nothing local is lost, and the next restore begins again: files come into `.trainit/tmp`, what stood
//! in their place is moved to `.trainit/aside`, and `.trainit/restoring.json` names what may be half in place meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::sync::Arc;

use super::claim::{standing, still_shown};
use super::fetch::Stop;
use super::guard::tell_of_standstill;
use super::in_place::{half, holds, mark};
use super::look::Look;
use super::mirror::{Committed, Mirror, MirrorError, Restore, Resume, beneath, blocking};
use super::nook::turn;
use super::retention::{commits, judge, read};
use crate::edge::beneath::Beneath;
use crate::edge::store::Store;
use crate::rules::checkpoint::listing::is_below;
use crate::rules::checkpoint::manifest::Manifest;
use crate::rules::checkpoint::names::{CommitName, Stamp};
use crate::rules::checkpoint::plan::{self, Age, Standing};
use crate::rules::checkpoint::unrecognised::Unrecognised;

/// What a restore did, or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Brought {
    /// Bytes that came from the store.
    pub fetched: u64,
    /// It was in place already.
    pub was_there: bool,
}

/// What to do where one that is left alone is to be gone on from after all.
pub(super) fn by_its_step(step: Option<u64>) -> String {
    match step {
        Some(step) => format!(
            "to go on from it, push it with trainit checkpoint push --push-step {step}, or start with --restore-step {step}"
        ),
        None => "to go on from it, touch it".to_owned(),
    }
}

/// What a line names at most.
pub(super) const NAMED: usize = 10;

/// Which commits may be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Any, or those of a step: at the start of a run.
    First(Option<u64>),
    /// Those of this run, and those before it that it could have begun with.
    Later,
    /// Those before the ones that do no good.
    Older,
}

/// What came of a commit that might be restored.
enum Considered {
    /// It is decided: this is gone on from.
    Chosen(Option<Resume>),
    /// It is not of the step that was asked for.
    OfAnotherStep,
    /// Why it cannot be restored.
    Rejected(String),
}

fn age(manifest: &Manifest) -> Age {
    Age { step: manifest.step, newest_ns: manifest.newest_ns() }
}

impl Mirror {
    /// Finds what to resume from and restores it. To be asked before each start of the trainer, when nobody writes: the
    /// first time it follows `--restore` and `--restore-step`, later it finds the newest of this run. `None`: there is
    /// nothing to resume. Errors: 204 for a needed restore that cannot be done; nothing local is deleted then.
    pub async fn restore(&mut self) -> Result<Option<Resume>, MirrorError> {
        let first = !std::mem::replace(&mut self.begun, true);
        let restored = self.restore_as(first).await;
        // One that failed and is done again is the first all the same.
        self.begun = restored.is_ok() || !first;
        restored
    }

    async fn restore_as(&mut self, first: bool) -> Result<Option<Resume>, MirrorError> {
        self.is_first = first;
        let step = self.config.restore_step.filter(|_| first);
        let look = self.look_to_resume(step).await.map_err(|error| self.unusable(&error))?;
        if first {
            self.remarks.unrecognised = Unrecognised::begin(&look.listing, &look.ages);
        }
        self.caution(&look);
        self.has_older = look.has_older();
        if !first && let Some(resume) = self.still_there(&look) {
            self.name_newest(&look).await;
            return Ok(Some(resume));
        }
        let never = first && self.config.restore == Restore::Never;
        let resume = if never {
            None
        } else {
            match self.store.clone() {
                None => self.local_only(&look),
                Some(store) => {
                    let which = if first { Which::First(step) } else { Which::Later };
                    let chosen = match self.still_ours(&store).await {
                        Ok(()) => self.choose(&store, &look, which).await,
                        Err(error) => Err(error),
                    };
                    chosen?
                }
            }
        };
        if resume.is_none() && (self.config.restore == Restore::Required || step.is_some()) {
            return Err(self.nothing_there(step, &look).await);
        }
        let on_purpose = never || step.is_some();
        self.settle_account(&look, resume.as_ref(), on_purpose).await.map_err(|error| self.unusable(&error))?;
        if first && !on_purpose {
            self.compare_with_chief(resume.as_ref()).await;
        }
        let is_local = resume.as_ref().is_some_and(|resume| resume.commit.is_none());
        if is_local && (self.attempt.is_some() || !first) {
            self.name_newest(&look).await;
        }
        Ok(resume)
    }

    pub(super) fn local_only(&mut self, look: &Look) -> Option<Resume> {
        let is_any = look.layout.is_some();
        look.passed.iter().filter(|_| is_any).take(NAMED).for_each(|why| self.note(format!("passed over: {why}")));
        if let Some((_, why)) = &look.unread {
            self.note(format!("{why}, and there is nothing else to go on from; let trainit's user read it"));
        }
        let local = look.newest.as_ref().or(look.unread.as_ref().map(|(local, _)| local))?;
        Some(self.resume(&local.candidate.unit, local.age, None))
    }

    /// A store that does not show our claim is not the one that we claimed, or does not show what it holds.
    async fn still_ours(&self, store: &Store) -> Result<(), MirrorError> {
        let Some(ours) = &self.attempt else { return Ok(()) };
        match standing(store, ours, &self.claim, self.known_commit()).await.map_err(|error| self.away(&error))? {
            Standing::Gone => Err(MirrorError::store(self.unclaimed(ours))),
            _ => Ok(()),
        }
    }

    pub(super) async fn choose(
        &mut self,
        store: &Arc<Store>,
        look: &Look,
        which: Which,
    ) -> Result<Option<Resume>, MirrorError> {
        let address = self.config.store.as_ref().map_or(String::new(), ToString::to_string);
        tokio::select! {
            biased;
            chosen = self.choose_in_time(store, look, which) => chosen,
            never = tell_of_standstill(store, &address) => match never {},
        }
    }

    async fn choose_in_time(
        &mut self,
        store: &Arc<Store>,
        look: &Look,
        which: Which,
    ) -> Result<Option<Resume>, MirrorError> {
        let (mut names, mut tried, mut refused) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        loop {
            // Anew before each: a run that we take over from may commit once more, and let go of what we knew of.
            names.extend(self.choices(store, which).await?);
            self.config.faults.point(19);
            let Some(name) = names.difference(&tried).last().cloned() else { break };
            tried.insert(name.clone());
            match self.consider(store, look, which, &name).await? {
                Considered::Chosen(resume) => return Ok(resume),
                Considered::OfAnotherStep => {}
                Considered::Rejected(why) => {
                    self.note(format!("passed over commit {name}: {why}"));
                    refused.push(why);
                }
            }
        }
        // Never from scratch without a word where there was something to go on from.
        let had_one = !refused.is_empty() || which == Which::Later && self.committed.is_some();
        if look.newest.is_none() && which != Which::Older && had_one {
            return Err(self.none_good(which, names.len(), refused.first()));
        }
        Ok(self.local_only(look))
    }

    /// Restores this commit, unless the local checkpoint is to be preferred or the commit is no good.
    async fn consider(
        &mut self,
        store: &Arc<Store>,
        look: &Look,
        which: Which,
        name: &CommitName,
    ) -> Result<Considered, MirrorError> {
        // Where a local one may be newer, this one must be good before they are compared; else that is found out
        // while it is fetched.
        let judged =
            if look.newest.is_some() || self.config.dry { judge(store, name).await } else { read(store, name).await };
        let manifest = match judged.map_err(|error| self.away(&error))? {
            Ok(manifest) => manifest,
            Err(why) => return Ok(Considered::Rejected(why)),
        };
        // A name says 0 where there is none.
        if matches!(which, Which::First(Some(step)) if manifest.step != Some(step)) {
            return Ok(Considered::OfAnotherStep);
        }
        self.transfer.found(manifest.step);
        if self.prefers_local(look, name, &manifest).await {
            self.go_from(which, &name.stamp);
            return Ok(Considered::Chosen(self.local_only(look)));
        }
        self.note_left_alone(look, name, &manifest);
        let brought = match self.config.dry {
            false => self.bring(store, name, &manifest, look).await,
            true => self.foresee(&manifest, look).await,
        };
        match brought {
            Ok(brought) => {
                self.go_from(which, &name.stamp);
                self.note_passed(look);
                self.brought.set(Some(brought));
                self.remember(name, &manifest).await;
                let resume = self.resume(&manifest.unit, age(&manifest), Some(name.stamp.clone()));
                Ok(Considered::Chosen(Some(resume)))
            }
            Err(Stop::Reject(why)) => {
                self.transfer.found(None);
                Ok(Considered::Rejected(why))
            }
            Err(Stop::Fatal(error)) => Err(error),
        }
    }

    /// Whether the newest local checkpoint, where there is one, is to be gone on from and not this commit.
    async fn prefers_local(&self, look: &Look, name: &CommitName, manifest: &Manifest) -> bool {
        let Some(local) = &look.newest else { return false };
        let may_be_it = local.candidate.unit == manifest.unit && local.age.step == manifest.step;
        plan::prefers_local(self.lineage.as_ref(), local.age, &name.stamp, age(manifest))
            // Copied about, it has newer times and the same bytes.
            && !(may_be_it && holds(&self.config.dir, manifest, &look.listing).await)
    }

    /// The newest local checkpoint is further than the commit that is restored.
    fn note_left_alone(&self, look: &Look, name: &CommitName, manifest: &Manifest) {
        let Some(local) = look.newest.as_ref().filter(|local| local.age.step > manifest.step) else { return };
        let why = match &self.lineage {
            None => "goes on instead, as nothing says that what lies there is of this job",
            Some(lineage) if *lineage < name.stamp.attempt => "is of a later run",
            Some(_) => "was written later, by the times of their files",
        };
        self.note(format!(
            "{} in {} is left alone: the store's commit {name} {why}; {}",
            local.candidate.unit,
            self.config.dir.display(),
            by_its_step(local.age.step)
        ));
    }

    /// Local checkpoints that may be newer than the commit that is restored, and are not whole.
    fn note_passed(&self, look: &Look) {
        if !look.ages.is_empty() {
            let unread = look.unread.iter().map(|(_, why)| why);
            unread.chain(&look.passed).take(NAMED).for_each(|why| self.note(format!("passed over: {why}")));
        }
    }

    /// From now on the run may go back to this commit and what is older, if another made it.
    fn go_from(&mut self, which: Which, stamp: &Stamp) {
        if which != Which::Later && Some(&stamp.attempt) != self.attempt.as_ref() {
            self.origin = Some(stamp.clone());
        }
    }

    /// Commits to choose from.
    async fn choices(&self, store: &Store, which: Which) -> Result<Vec<CommitName>, MirrorError> {
        let listed = match which {
            Which::First(_) if self.saw_commits => still_shown(store).await,
            _ => commits(store).await,
        };
        let mut names = listed.map_err(|error| self.away(&error))?;
        match which {
            Which::First(step) => names.retain(|n| step.is_none_or(|step| n.step == step)),
            Which::Later => names.retain(|n| {
                let is_before = self.origin.as_ref().is_some_and(|origin| n.stamp <= *origin);
                is_before || Some(&n.stamp.attempt) == self.attempt.as_ref()
            }),
            Which::Older => {
                let oldest = self.bad.iter().min().cloned();
                names.retain(|n| oldest.as_ref().is_none_or(|bad| n.stamp < *bad));
            }
        }
        names.retain(|n| !self.bad.contains(&n.stamp));
        Ok(names)
    }

    /// From now on the store is known to hold what lies in the directory under this unit.
    async fn remember(&mut self, name: &CommitName, manifest: &Manifest) {
        self.parent = Some(name.stamp.clone());
        self.ignored.remove(&manifest.unit);
        let (mut entries, mut fixed, mut beside) = (Vec::new(), Vec::new(), BTreeMap::new());
        if let Ok(look) = self.look(None).await {
            if self.is_first {
                self.remarks.unrecognised = Unrecognised::begin(&look.listing, &look.ages);
            }
            self.caution(&look);
            beside = look.ages;
            let ours = look.newest.filter(|local| local.candidate.unit == manifest.unit);
            fixed = ours.map_or(fixed, |local| local.candidate.fixed);
            let restored: HashSet<&str> = manifest.files.iter().map(|f| f.path.as_str()).collect();
            let directories = manifest.directories();
            let is_ours = |path: &str| restored.contains(path) || directories.iter().any(|d| is_below(path, d));
            entries = look.listing.entries().iter().filter(|e| is_ours(&e.path)).cloned().collect();
        }
        let (unit, stamp) = (manifest.unit.clone(), name.stamp.clone());
        let names = self.names_of_commit(manifest).await;
        self.committed = Some(Committed { unit, beside, entries, names, age: age(manifest), fixed, stamp });
    }

    /// Writes down whose the directory is now, and which local units were left behind by going back; `on_purpose`: from
    /// scratch, or to a step that was named.
    pub(super) async fn settle_account(
        &mut self,
        look: &Look,
        resume: Option<&Resume>,
        on_purpose: bool,
    ) -> io::Result<()> {
        let before = self.ignored.clone();
        let is_it = |unit: &str| resume.is_some_and(|r| r.unit == unit);
        let may_write = self.store.is_some() && (self.attempt.is_some() || resume.is_some() && !self.config.dry);
        let at = self.config.dir.clone();
        let dir = match may_write {
            true => Some(blocking(move || Beneath::create(&at).map(Arc::new)).await?),
            false => blocking(move || beneath(&at)).await.ok(),
        };
        let _turn = match &dir {
            Some(dir) if may_write => turn(dir).await,
            _ => None,
        };
        // What a restore that was cut short left half in place is left behind too, unless it was restored after all.
        let mut half = match dir.clone() {
            Some(dir) => blocking(move || Ok(half(&dir))).await?,
            None => Vec::new(),
        };
        for (unit, age) in look.ages.iter().filter(|(unit, _)| look.half.contains(unit) && half.contains(unit)) {
            if !self.ignored.contains_key(unit) && !is_it(unit) {
                self.ignored.insert(unit.clone(), age.newest_ns);
            }
        }
        let left_behind = |age: Age| match resume {
            Some(r) if r.commit.is_some() || on_purpose => {
                plan::supersedes(age, Age { step: r.step, newest_ns: r.written_ns })
            }
            Some(_) => false,
            None => on_purpose,
        };
        let units = look.ages.iter().filter(|(unit, age)| {
            !is_it(unit) && (self.ignored.get(*unit) == Some(&age.newest_ns) || left_behind(**age))
        });
        self.ignored = units.map(|(unit, age)| (unit.clone(), age.newest_ns)).collect();
        // Who pulls by hand goes on from the run whose commit that is, or from what is there, as far as that is known.
        let pulled = resume.filter(|r| r.commit.is_some() || self.ignored != before);
        if let Some(dir) = dir.filter(|_| may_write && (self.attempt.is_some() || pulled.is_some())) {
            let commit = pulled.and_then(|r| r.commit.as_ref()).map(|stamp| &stamp.attempt);
            let whose = self.attempt.as_ref().or(commit).or(self.lineage.as_ref()).cloned();
            self.write_lineage(&dir, whose).await?;
            self.take_over(&dir).await?;
            half.retain(|unit| !look.half.contains(unit));
            blocking(move || mark(&dir, &half)).await?;
        }
        Ok(())
    }
}

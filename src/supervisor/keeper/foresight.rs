//! What a commit or a restore by hand would do, found out without doing it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::fetch::Stop;
use super::in_place::{equal_files, holds, is_in_place, own};
use super::look::{Local, Look};
use super::mirror::{Mirror, MirrorConfig, MirrorError, apart};
use super::restore::{Brought, NAMED, by_its_step};
use super::retention::{commits, judge};
use crate::edge::beneath::Beneath;
use crate::edge::store::{Store, StoreError};
use crate::edge::{limits, places};
use crate::rules::checkpoint::address::Address;
use crate::rules::checkpoint::manifest::Manifest;
use crate::rules::checkpoint::names::Stamp;
use crate::rules::checkpoint::plan::{self, Age};
use crate::rules::exit;
use crate::rules::plain::named;

/// The checkpoint that is next to be committed.
#[derive(Debug)]
pub struct Next {
    /// What the framework loads, relative to the checkpoint directory.
    pub unit: String,
    /// The training step, where known.
    pub step: Option<u64>,
    /// Regular files.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// The newest commit, where it is just this.
    pub held: Option<Stamp>,
}

impl Mirror {
    /// Opens both sides to look only: nothing is claimed, nothing is made, and a directory that is to become a store is
    /// an empty one. Errors: as [`Mirror::open`].
    pub async fn open_to_look(mut config: MirrorConfig) -> Result<Mirror, MirrorError> {
        config.claim = false;
        if let Some(store) = &config.store {
            apart(&config.dir, store, &places::real)?;
        }
        if let Some(Address::Directory(root)) = &config.store
            && !root.exists()
        {
            config.store = None;
        }
        Mirror::open(config).await
    }

    /// What would be committed now; the inner error says why there is nothing. Errors: the directory cannot be read, the
    /// store not be asked.
    pub async fn next(&mut self) -> Result<Result<Next, String>, MirrorError> {
        Beneath::open(&self.config.dir).map_err(|error| self.no_directory(&error))?;
        let look = self.look(self.config.push_step).await.map_err(|error| self.no_directory(&error))?;
        let passed = [look.passed.clone(), self.left_alone(&look)].concat();
        let Some(local) = &look.newest else {
            return Ok(Err(self.nothing_complete(&passed, &look.ages)));
        };
        let held = match &self.store {
            Some(store) => self.held(store, &look, local).await.map_err(|error| MirrorError::asking(&error))?,
            None => None,
        };
        let next = Next {
            unit: local.candidate.unit.clone(),
            step: local.age.step,
            files: local.candidate.files(&look.listing).count(),
            bytes: local.candidate.bytes(&look.listing),
            held,
        };
        (self.passed, self.lacking) = (passed, look.lacking.clone());
        self.foreseen = Some(look);
        Ok(Ok(next))
    }

    /// Commits what `other` has just found, of the same directory, unless it left other units alone: each file is read at
    /// both ends for that.
    pub fn go_by(&mut self, other: Mirror) {
        self.foreseen = other.foreseen.filter(|_| self.ignored == other.ignored);
    }

    /// What there is to commit.
    pub(super) async fn look_to_commit(&mut self) -> io::Result<Look> {
        match self.foreseen.take() {
            Some(look) => Ok(look),
            None => self.look(self.config.push_step).await,
        }
    }

    /// Why newer ones than the newest are not even looked at: it was decided before, and a push that took them would
    /// bring back what another run, or this one, has gone back from.
    fn left_alone(&self, look: &Look) -> Vec<String> {
        let newest = look.newest.as_ref().map(|local| local.age);
        let is_left = |unit: &str, age: &Age| self.ignored.get(unit) == Some(&age.newest_ns);
        let is_newer = |age: &Age| newest.is_none_or(|newest| plan::supersedes(*age, newest));
        let left = look.ages.iter().filter(|(unit, age)| is_left(unit, age) && is_newer(age));
        left.filter(|_| self.config.push_step.is_none())
            .map(|(unit, age)| {
                format!("{unit} was left alone by a restore, or after a crash; {}", by_its_step(age.step))
            })
            .collect()
    }

    /// The newest whole commit, where it holds what lies in the directory, byte for byte. Only what stat cannot tell
    /// apart is read.
    async fn held(&self, store: &Store, look: &Look, local: &Local) -> Result<Option<Stamp>, StoreError> {
        for name in commits(store).await? {
            let Ok(manifest) = judge(store, &name).await? else { continue };
            let is_same = manifest.unit == local.candidate.unit && seems_same(&manifest, local);
            let is_held = is_same && holds(&self.config.dir, &manifest, &look.listing).await;
            return Ok(is_held.then_some(name.stamp));
        }
        Ok(None)
    }

    /// Whether somebody asks by hand: a run claims the store that it has.
    pub(super) fn is_by_hand(&self) -> bool {
        self.config.store.is_some() && !self.config.claim
    }

    /// What came of a restore that cannot be done.
    pub(super) fn nothing_done(&self) -> &'static str {
        if self.is_by_hand() { "nothing was pulled" } else { "nothing was started" }
    }

    /// What the last restore did, or would do; `None`: it left alone what lies there.
    pub fn brought(&self) -> Option<Brought> {
        self.brought.get()
    }

    /// Why there is nothing to commit.
    pub(super) fn nothing_complete(&self, passed: &[String], ages: &BTreeMap<String, Age>) -> String {
        let first = passed.first().cloned();
        match self.config.push_step {
            None => first.unwrap_or_else(|| match self.ignored.keys().next_back() {
                Some(unit) => format!("{unit} is passed over, and there is no other"),
                None => "there is none".to_owned(),
            }),
            Some(step) => {
                let why = first.map_or(String::new(), |why| format!(" ({why})"));
                let steps: BTreeSet<u64> = ages.values().filter_map(|age| age.step).filter(|s| *s != step).collect();
                let others = named(steps.into_iter().rev().map(|step| step.to_string()), NAMED);
                let others = others.map_or(String::new(), |steps| format!("; saved there are {steps}"));
                format!("there is no complete checkpoint of step {step} in {}{why}{others}", self.config.dir.display())
            }
        }
    }

    /// As `bring`, up to where it would begin to write.
    pub(super) async fn foresee(&self, manifest: &Manifest, look: &Look) -> Result<Brought, Stop> {
        let local = |error: io::Error| Stop::Fatal(self.unusable(&error));
        let path = std::path::absolute(&self.config.dir).map_err(local)?;
        let opened = |path: &Path| match Beneath::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        };
        let Some(dir) = opened(&path).map_err(local)?.map(Arc::new) else {
            let above = path.ancestors().skip(1).find_map(|above| opened(above).transpose());
            let needed = manifest.total_bytes;
            if let Some(above) = above {
                self.check_space(&above.map(Arc::new).map_err(local)?, needed).await?;
            }
            return Ok(Brought { fetched: needed, was_there: false });
        };
        let mut equal: HashSet<String> = equal_files(&dir, manifest, &look.listing).await.map_err(local)?;
        if is_in_place(&dir, manifest, &equal, &look.listing).await {
            return Ok(Brought { fetched: 0, was_there: true });
        }
        own(&mut equal, &look.listing);
        let fetched = manifest.regular().filter(|f| !equal.contains(&f.path)).map(|f| f.size).sum();
        self.check_space(&dir, fetched).await?;
        for path in manifest.places(&equal).into_iter().filter(|p| matches!(dir.look(p), Ok(Some(_)))) {
            self.note(format!("what lies at {path} would be moved aside, into {}", super::place::ASIDE));
        }
        Ok(Brought { fetched, was_there: false })
    }

    /// Of a checkpoint directory that is of no use.
    pub fn no_directory(&self, error: &io::Error) -> MirrorError {
        let dir = self.config.dir.display();
        let way_out = limits::way_out(error, "give a --checkpoint-dir that can be read");
        MirrorError {
            message: format!("cannot read the checkpoint directory {dir}: {error}; {way_out}"),
            code: exit::NOT_STARTED,
        }
    }
}

/// Whether the files are of the same names, sizes and times.
fn seems_same(manifest: &Manifest, local: &Local) -> bool {
    let theirs: HashSet<(&str, u64, i64)> = manifest.regular().map(|f| (f.path.as_str(), f.size, f.mtime_ns)).collect();
    let ours = local.entries.iter().filter(|e| e.kind == crate::rules::checkpoint::Kind::File);
    let ours: HashSet<(&str, u64, i64)> = ours.map(|e| (e.path.as_str(), e.size, e.mtime_ns)).collect();
    ours == theirs
}

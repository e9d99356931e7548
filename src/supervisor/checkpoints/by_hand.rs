//! Answers questions of a person about a checkpoint directory: what a push or a pull would do, which files are there, and which
//! rule decides about a path. Changes nothing.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::edge::fs::rooted_dir::Beneath;
use crate::edge::store::StoreError;
use crate::rules::checkpoint::{Explanation, PartState, Plan};
use crate::rules::store::manifest::Manifest;
use crate::rules::store::names::Stamp;
use crate::supervisor::checkpoints::commit::outcome::{Ask, Outcome, name_of_part};
use crate::supervisor::checkpoints::directory::look::How;
use crate::supervisor::checkpoints::directory::record;
use crate::supervisor::checkpoints::failure::{Failure, Refusal};
use crate::supervisor::checkpoints::mirror::{Brought, Mirror};
use crate::supervisor::checkpoints::restore::local_files::{equal_files, has_others};
use crate::supervisor::checkpoints::store::commits::{commits, judge};

/// What is next to be committed.
#[derive(Debug)]
pub struct Next {
    /// Its parts, for people.
    pub parts: Vec<String>,
    /// The training step, where known.
    pub step: Option<u64>,
    /// Regular files.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// The newest commit, where it is just this.
    pub held: Option<Stamp>,
}

/// So many times as long as a part must lie still a push waits for that.
const SETTLE_TIMES: u32 = 4;

/// What lies in a checkpoint directory.
#[derive(Debug, Default)]
pub struct Survey {
    /// Its parts and the state of each.
    pub parts: Vec<PartState>,
    /// Paths that are never committed, and the pattern or reason.
    pub excluded: Vec<(String, String)>,
    /// Why there is no directory.
    pub absent: Option<io::Error>,
}

impl Mirror {
    /// What would be committed once it has lain still for `settle`; the inner error says why there is nothing. Errors: the
    /// directory cannot be read, the store not be asked.
    pub async fn next(&mut self, settle: Duration) -> Result<Result<Next, String>, Failure> {
        let unreadable = |error: io::Error| Failure::no_directory(&self.config.dir, &error);
        self.in_dir(|_| Ok(())).await.map_err(unreadable)?;
        self.watcher.begin_once().await.map_err(unreadable)?;
        let look = self.watcher.look(self.still(settle).await).await.map_err(unreadable)?;
        self.seen.parts = look.parts;
        self.seen.parts.extend(self.watcher.passed_over().await.map_err(unreadable)?);
        let Some(plan) = look.plan else {
            let why = self.left_out().into_iter().next();
            return Ok(Err(
                why.unwrap_or_else(|| format!("there is nothing to commit in {}", self.config.dir.display()))
            ));
        };
        let held = self.held(&plan).await.map_err(|error| Failure::asking(&error))?;
        Ok(Ok(Next {
            parts: plan.parts.iter().map(|part| name_of_part(&part.record)).collect(),
            step: plan.step,
            files: plan.files_here().count(),
            bytes: plan.files_here().map(|entry| entry.size).sum(),
            held,
        }))
    }

    /// Commits what lies there, once it has lain still for as long as is asked. Errors are outcomes.
    pub async fn push(&mut self, settle: Duration, progress: &dyn Fn(u64, u64)) -> Outcome {
        if let Err(error) = self.watcher.begin_once().await {
            let message = Failure::no_directory(&self.config.dir, &error).message;
            return Outcome::Failed { message, is_away: false, again: false, cause: "other" };
        }
        let how = self.still(settle).await;
        self.commit(&Ask { how, limit: None }, progress).await
    }

    /// Waits until nothing has changed for as long as is asked; zero says that no process writes.
    async fn still(&self, settle: Duration) -> How {
        if settle.is_zero() {
            return How::AT_REST;
        }
        let (running, begun) = (How::running(settle), self.clock.now());
        while self.clock.now().saturating_sub(begun) < settle * SETTLE_TIMES {
            match self.watcher.look(running).await {
                Ok(look)
                    if look.plan.is_none()
                        && let Some(again) = look.again =>
                {
                    tokio::time::sleep(again).await
                }
                _ => break,
            }
        }
        running
    }

    /// The newest whole commit, where it holds what the plan takes, byte for byte. Only what stat cannot tell apart is read.
    async fn held(&self, plan: &Plan) -> Result<Option<Stamp>, StoreError> {
        let Some(remote) = &self.remote else { return Ok(None) };
        for name in commits(&remote.store).await? {
            let Ok(manifest) = judge(&remote.store, &name).await? else { continue };
            let is_held = seems_same(&manifest, plan) && self.holds(&manifest).await;
            return Ok(is_held.then_some(name.stamp));
        }
        Ok(None)
    }

    /// Whether the directory holds the commit byte for byte; what cannot be read is taken for different.
    pub(crate) async fn holds(&self, manifest: &Manifest) -> bool {
        let Ok(dir) = self.in_dir(Ok).await else { return false };
        let Ok(listing) = self.followed().await else { return false };
        let equal = equal_files(&dir, manifest, &listing).await.unwrap_or_default();
        manifest.regular().all(|item| equal.contains(&item.path)) && has_others(manifest, &listing)
    }

    /// As a restore, up to where it would begin to write.
    pub(crate) async fn foresee(&self, manifest: &Manifest) -> Result<Brought, Refusal> {
        let local = |error: io::Error| Refusal::Fatal(self.config.unusable(&error));
        let path = self.config.home();
        let opened = |path: &Path| match Beneath::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(|dir| Some(Arc::new(dir))),
        };
        let Some(dir) = opened(&path).map_err(local)? else {
            let above = path.ancestors().skip(1).find_map(|above| opened(above).transpose());
            let needed = manifest.total_bytes;
            if let Some(above) = above {
                self.check_space(&above.map_err(local)?, needed).await?;
            }
            return Ok(Brought { fetched: needed, was_there: false });
        };
        let listing = self.unfollowed().await.map_err(local)?;
        let equal: HashSet<String> = equal_files(&dir, manifest, &listing).await.map_err(local)?;
        let moves = self.moves(&listing, manifest, &equal);
        let fetched = manifest.regular().filter(|f| !equal.contains(&f.path)).map(|f| f.size).sum();
        if fetched == 0 && moves.is_empty() && has_others(manifest, &listing) {
            return Ok(Brought { fetched: 0, was_there: true });
        }
        self.check_space(&dir, fetched).await?;
        for path in moves {
            self.note(format!(
                "what lies at {path} would be moved aside, into {}",
                crate::supervisor::checkpoints::directory::disk::ASIDE
            ));
        }
        Ok(Brought { fetched, was_there: false })
    }

    /// Every part of the directory and its state; none where there is no directory. Errors: it cannot be read.
    pub async fn survey(&self) -> Result<Survey, Failure> {
        let unreadable = |error: io::Error| Failure::no_directory(&self.config.dir, &error);
        match self.in_dir(|_| Ok(())).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Survey { absent: Some(error), ..Survey::default() });
            }
            opened => opened.map_err(unreadable)?,
        }
        self.recall().await.map_err(unreadable)?;
        let mut parts = self.watcher.look(How::AT_REST).await.map_err(unreadable)?.parts;
        parts.extend(self.watcher.passed_over().await.map_err(unreadable)?);
        let excluded = self.watcher.excluded().await.map_err(unreadable)?;
        Ok(Survey { parts, excluded, absent: None })
    }

    /// Which rule decides about each of these paths, about all where there is none. Errors: the directory cannot be read.
    pub async fn explain(&self, paths: Vec<String>) -> Result<Vec<Explanation>, Failure> {
        let unreadable = |error: io::Error| Failure::no_directory(&self.config.dir, &error);
        self.in_dir(|_| Ok(())).await.map_err(unreadable)?;
        self.recall().await.map_err(unreadable)?;
        self.watcher.explain(How::AT_REST, paths).await.map_err(unreadable)
    }

    /// Begins with what the directory is known to have in its store, if a store is given.
    async fn recall(&self) -> io::Result<()> {
        let (store, node) = (self.config.store.clone(), self.config.node);
        let listing = self.unfollowed().await?;
        let record = self.in_dir(move |dir| Ok(record::read(&dir, store.as_ref(), node, &listing))).await?;
        match record.filter(|record| record.stamp.is_some()) {
            Some(record) => self.watcher.begin(Some(record.committed)).await,
            None => self.watcher.begin_once().await,
        }
    }
}

fn seems_same(manifest: &Manifest, plan: &Plan) -> bool {
    let theirs: HashSet<(&str, u64, i64)> = manifest.regular().map(|f| (f.path.as_str(), f.size, f.mtime_ns)).collect();
    let ours = plan.files_here().map(|entry| (entry.path.as_str(), entry.size, entry.mtime_ns));
    ours.collect::<HashSet<_>>() == theirs
}

//! Reads a checkpoint directory for people: its files and the state of each part, and the rule that decides about a path.

use std::io;

use crate::rules::checkpoint::{Explanation, PartState};
use crate::supervisor::checkpoints::directory::look::How;
use crate::supervisor::checkpoints::directory::record;
use crate::supervisor::checkpoints::failure::Failure;
use crate::supervisor::checkpoints::mirror::Mirror;

/// The content of a checkpoint directory.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Its parts and the state of each.
    pub(super) parts: Vec<PartState>,
    /// Paths that are never committed, and the pattern or reason.
    pub(super) excluded: Vec<(String, String)>,
    /// Why there is no directory.
    pub(super) absent: Option<io::Error>,
}

/// Every part of the directory and its state at a single look; none if there is no directory. Errors: it cannot be read.
pub(super) async fn survey(mirror: &Mirror) -> Result<Survey, Failure> {
    if let Some(error) = opened(mirror).await? {
        return Ok(Survey { absent: Some(error), ..Survey::default() });
    }
    let (watcher, unreadable) = (&mirror.watcher, |error| Failure::no_directory(&mirror.config.dir, &error));
    let mut parts = watcher.listed().await.map_err(unreadable)?;
    parts.extend(watcher.passed_over().await.map_err(unreadable)?);
    let excluded = watcher.excluded().await.map_err(unreadable)?;
    Ok(Survey { parts, excluded, absent: None })
}

/// The same as a start finds it, when no process writes to the directory.
pub(in crate::command) async fn at_rest(mirror: &Mirror) -> Result<Vec<PartState>, Failure> {
    if opened(mirror).await?.is_some() {
        return Ok(Vec::new());
    }
    let (watcher, unreadable) = (&mirror.watcher, |error| Failure::no_directory(&mirror.config.dir, &error));
    let mut parts = watcher.look(How::AT_REST).await.map_err(unreadable)?.parts;
    parts.extend(watcher.passed_over().await.map_err(unreadable)?);
    Ok(parts)
}

/// Reads the record of the directory's last commit. `Some`: there is no directory. Errors: it cannot be read.
async fn opened(mirror: &Mirror) -> Result<Option<io::Error>, Failure> {
    let unreadable = |error: io::Error| Failure::no_directory(&mirror.config.dir, &error);
    match mirror.in_dir(|_| Ok(())).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(error)),
        opened => opened.map_err(unreadable)?,
    }
    recall(mirror).await.map_err(unreadable)?;
    Ok(None)
}

/// The rule that decides about each of these paths; about all paths if none is given. Errors: the directory cannot be
/// read.
pub(super) async fn explain(mirror: &Mirror, paths: Vec<String>) -> Result<Vec<Explanation>, Failure> {
    let unreadable = |error: io::Error| Failure::no_directory(&mirror.config.dir, &error);
    mirror.in_dir(|_| Ok(())).await.map_err(unreadable)?;
    recall(mirror).await.map_err(unreadable)?;
    mirror.watcher.explain(How::AT_REST, paths).await.map_err(unreadable)
}

/// Begins with the last commit of the directory in its store, if a store is given.
async fn recall(mirror: &Mirror) -> io::Result<()> {
    let (store, node) = (mirror.config.store.clone(), mirror.config.node);
    let listing = mirror.unfollowed().await?;
    let record = mirror.in_dir(move |dir| Ok(record::read(&dir, store.as_ref(), node, &listing))).await?;
    match record.filter(|record| record.stamp.is_some()) {
        Some(record) => mirror.watcher.begin(Some(record.committed)).await,
        None => mirror.watcher.begin_once().await,
    }
}

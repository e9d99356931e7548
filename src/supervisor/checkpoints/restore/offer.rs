//! Lists what this node of a gang can restore: complete checkpoints of the directory, and its commits in the store.

use std::cmp::Reverse;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::timeout;

use crate::rules::checkpoint::listing::OWN;
use crate::rules::gang::Incarnation;
use crate::rules::gang::agreement::{Mode, offered};
use crate::rules::gang::message::{Offer, Step};
use crate::rules::store::names::{BAD, CommitName, hash16};
use crate::supervisor::checkpoints::config::{Restore, Role};
use crate::supervisor::checkpoints::directory::disk::nonce;
use crate::supervisor::checkpoints::directory::record;
use crate::supervisor::checkpoints::failure::Failure;
use crate::supervisor::checkpoints::mirror::Mirror;
use crate::supervisor::checkpoints::restore::choose::{Which, has_seen};
use crate::supervisor::checkpoints::restore::offered::Source;
use crate::supervisor::checkpoints::store::claim::Remote;
use crate::supervisor::checkpoints::store::commits::judge;

const AT_ONCE: usize = 4;
const MOST_COMMITS: usize = 32;
/// A write to the checkpoint directory that takes longer is logged.
const SLOW_PROBE: Duration = Duration::from_secs(10);

/// The prefix of the file in the leader's checkpoint directory that shows the other nodes whether they share it.
pub(crate) const LEADERS_FILE: &str = "gang-leader-";

pub(crate) fn leaders_file(leader: Incarnation) -> String {
    format!("{OWN}/{LEADERS_FILE}{:032x}", leader.0)
}

/// The hash of a commit in messages.
pub(crate) fn hash_of(name: &CommitName) -> u64 {
    u64::from_str_radix(&name.hash, 16).unwrap_or_default()
}

impl Mirror {
    /// At the start of a run in a gang: finds out whether the directory is at least as new as the store's newest
    /// commit. Errors: as [`Mirror::restore`].
    pub(crate) async fn begin_in_gang(&mut self) -> Result<(), Failure> {
        let never = self.config.restoring.what == Restore::Never;
        self.in_gang.directory_counts = true;
        let record = self.read_record().await.map_err(|error| self.config.unusable(&error))?;
        if record.is_none() && !self.is_chief() && self.remote.is_some() {
            self.in_gang.follows_chief = true;
            if let Some(record) = self.read_record().await.map_err(|error| self.config.unusable(&error))? {
                return self.begin(Some(record.committed)).await;
            }
            self.in_gang.follows_chief = false;
        }
        match self.remote.clone() {
            Some(remote) if !never => {
                self.check_claim(&remote).await?;
                let which = Which::First(None);
                let newest = self.choices(&remote, which).await?.into_iter().next();
                let seen = newest.as_ref().zip(record.as_ref()).filter(|(name, record)| has_seen(record, which, name));
                match (&newest, seen) {
                    (None, _) => self.begin(None).await?,
                    (Some(_), Some((name, record))) if self.has_newest(record).await? => {
                        match judge(&remote.store, name).await.map_err(|error| self.config.away(&error))? {
                            Ok(manifest) => self.resume_from_directory(which, name, &manifest, record).await?,
                            Err(_) => self.begin(None).await?,
                        }
                    }
                    // The store is newer than the directory.
                    _ => {
                        self.in_gang.directory_counts = false;
                        self.begin(None).await?;
                    }
                }
            }
            _ => self.begin_with_directory(record).await?,
        }
        if never {
            self.ignored = self.followed().await.ok();
            return Ok(());
        }
        // Node 0 tidies a shared directory.
        if self.leaves_commits_to_chief() { Ok(()) } else { self.settle_after_death().await }
    }

    /// Lists what can be restored, while no process writes. `leader`: the agent whose file shows that the directory is
    /// shared. Errors: as [`Mirror::restore`].
    pub(crate) async fn offer(&mut self, leader: Option<Incarnation>) -> Result<Offer, Failure> {
        self.probe_directory().await;
        let is_half = self.in_dir(|dir| Ok(record::is_half_restored(&dir))).await.unwrap_or(false);
        let is_behind = self.remote.is_some() && self.lacks_the_newest().await?;
        let local = if is_half || is_behind || !self.in_gang.directory_counts || self.has_only_ignored_files().await {
            Vec::new()
        } else {
            self.in_directory().await?
        };
        let is_first = !std::mem::replace(&mut self.in_gang.has_offered, true);
        let stored = match self.remote.clone().filter(|_| !self.in_gang.follows_chief || self.is_chief()) {
            Some(remote) if is_first || remote.answers().await => self.stored(&remote).await?,
            // The failure was logged, and the directory is enough.
            Some(_) | None => Vec::new(),
        };
        let is_as_committed = !local.is_empty() && self.is_as_committed().await;
        let is_chiefs = self.in_gang.follows_chief && is_as_committed;
        let has_own_checkpoints = !stored.is_empty() || !local.is_empty() && !is_chiefs;
        let (local, older) = local.split_at(local.len().min(1));
        // A checkpoint that is in both is offered as the store's commit.
        let newest: Option<(Step, Source)> = local.first().filter(|_| stored.is_empty() || !is_as_committed).cloned();
        let mut rest: Vec<(Step, Source)> = older.iter().cloned().chain(stored).collect();
        // The directory's checkpoint of a step is preferred, because restoring it only moves newer files.
        rest.sort_by_key(|(step, _)| Reverse(step.step));
        let mut all: Vec<(Step, Source)> = Vec::new();
        for (step, source) in newest.into_iter().chain(rest) {
            let is_known = |(other, _): &(Step, Source)| {
                if step.step.is_some() { other.step == step.step } else { *other == step }
            };
            if !all.iter().any(is_known) {
                all.push((step, source));
            }
        }
        let steps = offered(all.iter().map(|(step, _)| *step).collect(), self.in_gang.kept);
        self.in_gang.offered = all;
        let sees_leaders_file = match leader {
            Some(leader) => self.sees(leaders_file(leader)).await,
            None => false,
        };
        Ok(Offer { steps, has_own_checkpoints, sees_leaders_file })
    }

    /// Waits until the directory takes a write: a file system that hangs may still answer reads, and the restore of the agreed
    /// step would hang. A write that fails at once is reported by the restore.
    async fn probe_directory(&self) {
        let path = format!("{OWN}/gang-probe-{}", nonce());
        let written = self.in_dir(move |dir| {
            dir.replace(&path, b"", 0o644)?;
            dir.remove_file(&path)
        });
        tokio::pin!(written);
        if timeout(SLOW_PROBE, &mut written).await.is_err() {
            tracing::warn!(
                code = "checkpoint_dir",
                "{} has not taken a write for {} s, so this replica cannot restore, and the gang waits for it; see whether its \
                 file system hangs",
                self.config.dir.display(),
                SLOW_PROBE.as_secs()
            );
            let _ = written.await;
        }
    }

    pub(crate) fn is_chief(&self) -> bool {
        self.config.gang.is_none_or(|gang| gang.is_chief)
    }

    /// Whether node 0 alone commits.
    pub(crate) fn leaves_commits_to_chief(&self) -> bool {
        let mode = self.config.gang.map(|gang| gang.mode);
        !self.is_chief() && (self.in_gang.follows_chief || matches!(mode, Some(Mode::Chief | Mode::Shared)))
    }

    pub(crate) fn may_commit(&self) -> bool {
        let of_gang = || self.in_gang.directory_counts && !self.leaves_commits_to_chief();
        self.config.role != Role::Watches && (self.config.gang.is_none() || of_gang())
    }

    async fn sees(&self, path: String) -> bool {
        self.in_dir(move |dir| dir.look(&path)).await.is_ok_and(|found| found.is_some())
    }

    /// The checkpoints of the directory, the newest first.
    async fn in_directory(&self) -> Result<Vec<(Step, Source)>, Failure> {
        let unusable = |error: std::io::Error| self.config.unusable(&error);
        let found = self.watcher.restorable().await.map_err(unusable)?;
        let listing = self.followed().await.map_err(unusable)?;
        let files: Vec<String> =
            listing.files().map(|file| format!("{} {} {}", file.path, file.size, file.mtime_ns)).collect();
        let hash = u64::from_str_radix(&hash16(files.join("\n").as_bytes()), 16).unwrap_or_default();
        let is_as_committed = self.is_as_committed().await;
        let last = self.last.as_ref().filter(|_| is_as_committed).and_then(|last| last.step);
        let only = self.config.restoring.step.filter(|_| self.last.is_none());
        let mut all = Vec::new();
        for (at, resume) in found.into_iter().enumerate() {
            let step = resume.step.or(if at == 0 { last } else { None });
            let source = match resume.unit {
                Some(unit) if at > 0 => Source::Unit(unit),
                _ => Source::Directory,
            };
            all.push((Step { step, hash, is_stored: false }, source));
        }
        all.retain(|(step, _)| only.is_none_or(|only| step.step == Some(only)));
        Ok(all)
    }

    /// The complete commits of this node that no decision has marked, the newest first.
    async fn stored(&mut self, remote: &Remote) -> Result<Vec<(Step, Source)>, Failure> {
        let names = self.choices(remote, Which::First(None)).await?;
        let notes = remote.store.list(BAD).await.map_err(|error| self.config.away(&error))?;
        let restoring = self.config.restoring;
        let own = self.attempt().cloned();
        let is_own = |name: &CommitName| Some(&name.stamp.attempt) == own.as_ref();
        let is_wanted = |name: &CommitName| {
            is_own(name) || restoring.what != Restore::Never && restoring.step.is_none_or(|step| name.step == step)
        };
        let mut names: Vec<CommitName> = names
            .into_iter()
            .filter(|name| is_wanted(name) && !notes.iter().any(|note| note.key == name.stamp.bad_key()))
            .collect();
        let kept = names.iter().find(|name| Some(name.step) == self.in_gang.kept && name.step > 0).cloned();
        names.truncate(MOST_COMMITS);
        names.extend(kept.filter(|kept| !names.contains(kept)));
        let whole = &self.in_gang.whole;
        let judged = names.iter().map(|name| async move {
            let is_whole = is_own(name) || whole.contains(&name.stamp);
            Ok((name, is_whole || judge(&remote.store, name).await?.is_ok()))
        });
        let judged: Result<Vec<(&CommitName, bool)>, _> = stream::iter(judged).buffered(AT_ONCE).try_collect().await;
        let judged = judged.map_err(|error| self.config.away(&error))?;
        let whole: Vec<CommitName> = judged.into_iter().filter(|(_, is)| *is).map(|(name, _)| name.clone()).collect();
        self.in_gang.whole.extend(whole.iter().map(|name| name.stamp.clone()));
        // In a name, 0 means that there is no step.
        let step = |name: &CommitName| Step {
            step: Some(name.step).filter(|step| *step > 0),
            hash: hash_of(name),
            is_stored: true,
        };
        Ok(whole.into_iter().map(|name| (step(&name), Source::Store(name))).collect())
    }
}

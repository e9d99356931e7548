//! Publishes a commit: the manifest is put last and makes it. If the response is lost, the next try completes the same commit,
//! so it never appears twice.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crate::edge::clock;
use crate::edge::fs::rooted_dir::{RootedDir, read_at};
use crate::edge::store::Created;
use crate::rules::checkpoint::{Entry, Kind, PartRecord, Plan};
use crate::rules::store::manifest::{Item, Manifest, SCHEMA, WHOLE};
use crate::rules::store::names::{CommitName, Stamp, stamp_of_data};
use crate::supervisor::checkpoints::commit::dedup::{Known, Sent};
use crate::supervisor::checkpoints::commit::hard_links::Held;
use crate::supervisor::checkpoints::commit::outcome::Outcome;
use crate::supervisor::checkpoints::failure::Stop;
use crate::supervisor::checkpoints::mirror::{LastCommit, Mirror};
use crate::supervisor::checkpoints::store::claim::Remote;
use crate::supervisor::checkpoints::store::commits::verify;

/// The pieces of a file that are compared if no store has its checksum.
const PIECES: u64 = 16;
const PIECE: u64 = 4 << 20;
/// The framework of a snapshot that is resumed from as a whole.
const TREE: &str = "tree";

/// A commit whose manifest was sent.
#[derive(Debug)]
pub(crate) struct Unconfirmed {
    pub(crate) name: CommitName,
    manifest: Manifest,
    /// The manifest's bytes.
    pub(crate) text: Vec<u8>,
    plan: Plan,
    sent: Vec<Sent>,
    /// When it was ready.
    since: Duration,
    begun: Duration,
}

impl Mirror {
    /// Puts the manifest, which makes the commit. `since` and `begun`: when it was ready, and when the upload began.
    pub(crate) async fn publish(
        &mut self,
        remote: &Remote,
        plan: Plan,
        sent: Vec<Sent>,
        (since, begun): (Duration, Duration),
    ) -> Result<Outcome, Stop> {
        let stamp = self.stamp(remote)?;
        let cannot = |why: String| Stop::Failed(format!("cannot commit the checkpoint: {why}"));
        let text = self.manifest(&plan, &stamp, &sent).bytes().map_err(cannot)?;
        let name = CommitName::of(stamp, plan.step, &text);
        // A manifest that a restore would refuse is not committed.
        let manifest = Manifest::read(&name, &text).map_err(cannot)?;
        let unconfirmed = Arc::new(Unconfirmed { name, manifest, text, plan, sent, since, begun });
        self.sender.unconfirmed = Some(Arc::clone(&unconfirmed));
        self.config.faults.point(8);
        let done = self.put_manifest(remote, &unconfirmed).await?;
        let key = unconfirmed.name.key();
        done.ok_or_else(|| Stop::Failed(format!("{key} of another process is in the store already")))
    }

    /// Completes a commit whose manifest may be in the store, so that it does not appear twice.
    pub(crate) async fn complete_earlier(&mut self, remote: &Remote) -> Result<Option<Outcome>, Stop> {
        let Some(unconfirmed) = self.sender.unconfirmed.clone() else { return Ok(None) };
        remote.fence(self.last.as_ref().map(|last| &last.stamp), &self.sender.uncommitted).await?;
        match verify(&remote.store, unconfirmed.manifest.regular()).await {
            Ok(()) => self.put_manifest(remote, &unconfirmed).await,
            Err(Stop::Lost(_)) => {
                self.sender.unconfirmed = None;
                Ok(None)
            }
            Err(stop) => Err(stop),
        }
    }

    /// `None`: another process's object has this key.
    async fn put_manifest(&mut self, remote: &Remote, unconfirmed: &Unconfirmed) -> Result<Option<Outcome>, Stop> {
        if remote.store.create(&unconfirmed.name.key(), unconfirmed.text.clone()).await? == Created::Taken {
            self.sender.unconfirmed = None;
            return Ok(None);
        }
        self.config.faults.point(9);
        remote.confirm_manifest(&unconfirmed.name, &unconfirmed.text).await?;
        self.conclude(remote, unconfirmed).await.map(Some)
    }

    /// Makes a commit that the store holds the last one, or deletes it if its shared files may be lost.
    pub(crate) async fn conclude(&mut self, remote: &Remote, unconfirmed: &Unconfirmed) -> Result<Outcome, Stop> {
        let Unconfirmed { name, manifest, plan, sent, since, begun, .. } = unconfirmed;
        if let Some(by) = remote.find_newer_run(name, manifest).await {
            self.take_down(remote, name).await?;
            return Err(Stop::Fenced(by));
        }
        let is_foreign =
            |item: &&Item| stamp_of_data(&item.key).is_some_and(|stamp| stamp.attempt != name.stamp.attempt);
        // An earlier run may have deleted shared files until it found this claim.
        if let Err(stop) = verify(&remote.store, manifest.regular().filter(is_foreign)).await {
            self.take_down(remote, name).await?;
            return Err(stop);
        }
        self.sender.known = Known::new(sent.clone());
        self.sender.changes = 0;
        self.last = Some(LastCommit::of(name, plan.step));
        self.history.known.push(name.stamp.clone());
        self.watcher.committed(plan);
        self.retiring.is_due = true;
        self.waits(None);
        self.write_record().await;
        // Last, so that a commit that was cut off above is concluded again.
        self.sender.unconfirmed = None;
        let content: HashSet<&str> = content_of(plan).map(|entry| entry.path.as_str()).collect();
        let files = sent.iter().map(|sent| &sent.item).filter(|item| content.contains(item.path.as_str()));
        let sums = files.map(|item| (item.size, u32::from_str_radix(&item.crc32c, 16).unwrap_or_default()));
        let is_progress = self.history.novelty.is_progress(plan.step, sums);
        Ok(Outcome::Committed {
            step: plan.step,
            unit: plan.resume.unit.clone().unwrap_or_else(|| WHOLE.to_owned()),
            bytes: manifest.total_bytes,
            seconds: self.clock.now().saturating_sub(*begun).as_secs_f64(),
            lag: self.clock.now().saturating_sub(*since).as_secs_f64(),
            is_progress: is_progress && plan.is_new_content,
        })
    }

    async fn take_down(&mut self, remote: &Remote, name: &CommitName) -> Result<(), Stop> {
        // Its data stay until a prune: a newer run may have restored this commit, and may refer to them.
        self.sender.unconfirmed = None;
        Ok(self.retiring.delete(&remote.store, name, Vec::new()).await?)
    }

    fn manifest(&self, plan: &Plan, stamp: &Stamp, sent: &[Sent]) -> Manifest {
        let files: Vec<_> = sent.iter().map(|sent| sent.item.clone()).collect();
        let is_there = |path: &String| files.binary_search_by(|item| item.path.cmp(path)).is_ok();
        // A text file may have been deleted before it was read.
        let part = |record: &PartRecord| PartRecord {
            files: record.files.iter().filter(|path| is_there(path)).cloned().collect(),
            ..record.clone()
        };
        let parts: Vec<PartRecord> = plan.parts.iter().map(|of| part(&of.record)).collect();
        let resumed = parts.iter().find(|part| part.unit.is_some() && part.unit == plan.resume.unit);
        let framework = resumed.and_then(|part| part.layout.clone()).unwrap_or_else(|| TREE.to_owned());
        Manifest {
            schema: SCHEMA.to_owned(),
            job: self.config.job.clone(),
            attempt: stamp.attempt.number,
            attempt_tag: stamp.attempt.tag,
            seq: stamp.seq,
            step: plan.step,
            unit: plan.resume.unit.clone().filter(|unit| !unit.is_empty()).unwrap_or_else(|| WHOLE.to_owned()),
            framework,
            world_size: self.config.options.world_size,
            node: self.config.node,
            created_unix: clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            parent: self.history.parent.as_ref().map(Stamp::to_string),
            gang_kept: self.retiring.hold.recorded(),
            timing: plan.timing.clone(),
            home: self.config.home().into_os_string().into_string().ok(),
            total_bytes: files.iter().map(|item| item.size).sum(),
            files,
            parts,
            pointers: Vec::new(),
            copies: Vec::new(),
        }
    }
}

/// The files of a plan whose bytes may be progress: all but texts.
pub(crate) fn content_of(plan: &Plan) -> impl Iterator<Item = &Entry> {
    plan.local().filter(|(entry, is_text)| entry.kind == Kind::File && !is_text).map(|(entry, _)| entry)
}

/// The size and the checksum of a file; of a large one, of pieces of it. Errors: as open(2), pread(2).
pub(crate) fn sample(dir: &RootedDir, entry: &Entry) -> io::Result<(u64, u32)> {
    let (file, mut sum) = (Held::loosely(entry).open(dir)?, 0);
    let stride = (entry.size / PIECES).max(PIECE);
    for at in (0..entry.size).step_by(stride as usize).chain([entry.size.saturating_sub(PIECE)]) {
        sum = crc32c::crc32c_append(sum, &read_at(&file, at, PIECE as usize)?);
    }
    Ok((entry.size, sum))
}

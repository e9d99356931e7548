//! Uploads the data of one commit. New files are sent, unchanged files keep their old key, and the items of files that are
//! carried over come from the last commit's manifest.

use std::cell::Cell;
use std::collections::HashSet;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::rules::checkpoint::listing::is_below;
use crate::rules::checkpoint::{Entry, Kind, Plan, PlanFile};
use crate::rules::store::archive::Load;
use crate::supervisor::checkpoints::commit::archive::{files_of, outgoing};
use crate::supervisor::checkpoints::commit::dedup::Sent;
use crate::supervisor::checkpoints::commit::hard_links::{HardLinks, link, unchanged};
use crate::supervisor::checkpoints::commit::send::{Sending, unusual_directories, without_data};
use crate::supervisor::checkpoints::failure::Stop;
use crate::supervisor::checkpoints::mirror::Mirror;
use crate::supervisor::checkpoints::progress::make_durable;
use crate::supervisor::checkpoints::store::claim::Remote;
use crate::supervisor::checkpoints::store::commits::verify;

/// The place in the store for files that belong to no unit's directory.
const TREE: &str = "tree";

impl Mirror {
    /// Bytes of the plan's files that are not in the store, by stat(2).
    pub(crate) fn bytes_to_send(&self, plan: &Plan) -> u64 {
        let new = plan.local().map(|(entry, _)| entry).filter(|entry| self.sender.known.unchanged(entry).is_none());
        new.map(|entry| entry.size).sum()
    }

    /// Sends the plan's files under new keys. Returns all of the commit's files, sorted by path.
    pub(crate) async fn upload(
        &self,
        remote: &Remote,
        plan: &Plan,
        bytes: u64,
        is_training: bool,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(Vec<Sent>, HardLinks), Stop> {
        let (store, stamp, faults) = (&remote.store, self.stamp(remote)?, &self.config.faults);
        let (known, uncommitted) = (&self.sender.known, &self.sender.uncommitted);
        let last = self.last.as_ref().map(|last| &last.stamp);
        let mut sent = self.carried(plan)?;
        sent.extend(without_data(&plan.local().map(|(entry, _)| entry).collect::<Vec<_>>()));
        let (mut new, mut steady, mut texts) = (Vec::new(), Vec::new(), HashSet::new());
        for (entry, is_text) in plan.local().filter(|(entry, _)| entry.kind == Kind::File) {
            let Some(old) = known.unchanged(entry) else {
                new.push(entry);
                if is_text {
                    texts.insert(entry.path.as_str());
                } else {
                    steady.push(entry.clone());
                }
                continue;
            };
            sent.push(old);
        }
        let dir = self.in_dir(Ok).await.map_err(|error| self.config.unreadable(&error))?;
        // What is saved over while it is sent is copied first.
        let copies = if self.sender.changes > 0 { &steady[..] } else { &[] };
        let links = link(&dir, &self.links_place(), &new, copies).await;
        let links = links.map_err(|error| self.config.unreadable(&error))?;
        steady.retain(|entry| !links.has_copy_of(&entry.path));
        let touched = unchanged(&dir, &steady, &links, None).await?;
        faults.point(2);
        remote.fence(last, uncommitted).await?;
        faults.point(3);

        let done = Cell::new(0);
        let report = |more: u64| {
            done.set(done.get() + more);
            progress(done.get(), bytes);
        };
        let pace = is_training.then_some(&*self.config.pace).filter(|p| p.lock().is_ok_and(|p| p.is_capped()));
        let loads = outgoing(&new, &stamp, store.part_sizes().gathers, |path| home_of(plan, path));
        // An archive is sent whole.
        let lengths = loads.iter().map(|(load, _)| if let Load::Alone(entry) = load { entry.size } else { 0 });
        let sending = Sending::begin((&dir, store), pace, lengths, &report, uncommitted).await;
        let all = loads.into_iter().map(|(load, key)| {
            let (sending, links) = (&sending, &links);
            let is_text = files_of(&load).iter().all(|entry| texts.contains(entry.path.as_str()));
            async move {
                let sent = match sending.send_load(load, |entry| links.held(entry), key).await {
                    // A text file is copied in its present state, or left out if it was deleted.
                    Err(Stop::Changed(_)) if is_text => Ok(Vec::new()),
                    sent => sent,
                };
                faults.point(4);
                sent
            }
        });
        let new = stream::iter(all).buffer_unordered(sending.sizes.at_once).try_concat().await;
        // Each upload that failed or was dropped removes what it has written.
        store.wait_for_aborts().await;
        let new: Vec<Sent> = new?;
        sending.end().await;
        faults.point(5);
        let keys: Vec<String> = new.iter().map(|sent| sent.item.key.clone()).collect();
        sent.extend(new);
        make_durable(store, &keys, bytes, &report).await?;
        verify(store, sent.iter().map(|sent| &sent.item)).await?;
        faults.point(6);
        unchanged(&dir, &steady, &links, Some(touched)).await?;
        sent.extend(self.check_for_new_files(plan).await?);
        sent.sort_by(|a, b| a.item.path.cmp(&b.item.path));
        faults.point(7);
        remote.fence(last, uncommitted).await?;
        Ok((sent, links))
    }

    /// The last commit's items that the plan carries over. Ordinary directories have none, nor do texts that were deleted
    /// before they were read. Errors: no item of the last commit is known.
    fn carried(&self, plan: &Plan) -> Result<Vec<Sent>, Stop> {
        let carried = plan.files.iter().filter_map(|file| match file {
            PlanFile::Carried(path) => Some(path),
            PlanFile::Local { .. } => None,
        });
        let known = &self.sender.known;
        let item = |path: &String| match known.of_path(path) {
            None if known.is_empty() => {
                Some(Err(Stop::Failed(format!("{path} of the last commit is not known any more; start again"))))
            }
            sent => sent.cloned().map(Ok),
        };
        carried.filter_map(item).collect()
    }

    /// Fails if a unit has files that were not copied. Returns the units' directories with unusual modes.
    async fn check_for_new_files(&self, plan: &Plan) -> Result<Vec<Sent>, Stop> {
        let listing = self.followed().await.map_err(|error| self.config.unreadable(&error))?;
        let mut units = Vec::new();
        for part in plan.parts.iter().filter(|part| !part.carried) {
            let Some(unit) = part.record.unit.as_ref().filter(|unit| !unit.is_empty()) else { continue };
            let copied: HashSet<&str> = part.record.files.iter().map(String::as_str).collect();
            let is_new = |entry: &&Entry| {
                let is_excluded = || self.config.options.exclusions.decide(&entry.path).is_some();
                entry.kind == Kind::File && !copied.contains(entry.path.as_str()) && !is_excluded()
            };
            if let Some(new) = listing.below(unit).iter().find(is_new) {
                return Err(Stop::Changed(format!("{} came into {unit} while it was copied", new.path)));
            }
            units.extend(listing.get(unit).filter(|entry| !copied.contains(entry.path.as_str())));
        }
        Ok(unusual_directories(&units))
    }
}

/// The prefix in the store for a file's data: its unit, so that it can be used without trainit, or the tree.
fn home_of(plan: &Plan, path: &str) -> String {
    let units = plan.parts.iter().flat_map(|part| part.record.units.keys()).filter(|unit| !unit.is_empty());
    let mut own = units.filter(|unit| *unit == path || is_below(path, unit));
    own.next().map_or_else(|| TREE.to_owned(), Clone::clone)
}

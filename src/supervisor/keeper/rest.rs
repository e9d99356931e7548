//! A checkpoint lies still before it is copied; and one that never does, since the trainer saves over it, or keeps one only
//! and deletes it, is counted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::look::Local;
use super::mirror::{Mirror, blocking};
use super::send::Stop;
use crate::edge::writers;
use crate::rules::checkpoint::{Entry, Kind};

/// What lacks something that the step before has lies still for so many times as long: a trainer that gathers the state of
/// its optimizer writes nothing meanwhile.
const PATIENCE: u32 = 10;

/// At so many looks what is written over beside a step may have kept it from being copied; then it is left out.
const MANY: u32 = 5;

/// What keeps a checkpoint from being copied.
#[derive(Debug, Default)]
pub(super) struct Restless {
    /// What was last waited for to lie still.
    pub(super) unit: String,
    /// At how many looks since the last commit such a one was saved over first.
    pub(super) looks: u32,
    /// At how many looks since it was last committed it was this file alone, which each save writes over.
    files: BTreeMap<String, u32>,
}

impl Restless {
    /// This is committed.
    pub(super) fn is_over(&mut self, committed: &Local) {
        (self.unit, self.looks) = Default::default();
        self.files.retain(|path, _| !committed.candidate.is_fixed(path));
    }
}

impl Mirror {
    /// Nobody writes any more.
    pub(super) fn is_at_rest(&mut self) {
        self.restless.files.clear();
        self.config.options.restless.clear();
    }

    /// What kept it from being copied, as it is now. Of what is written over all the time, beside steps that lie still, it is
    /// said once that it is left out.
    pub(super) fn note_restless(&mut self, local: &Local, now: &[Entry]) {
        let fixed = &local.candidate.fixed;
        let is_own = |entry: &&Entry| !local.candidate.is_fixed(&entry.path);
        if !local.entries.iter().filter(is_own).eq(now.iter().filter(is_own)) {
            return;
        }
        let entries = |path: &str| [&local.entries[..], now].map(|all| all.iter().find(|entry| entry.path == path));
        let is_written_over = |path: &String| matches!(entries(path), [Some(old), Some(new)] if !goes_on(old, new));
        let written_over: Vec<String> = fixed.iter().filter(|path| is_written_over(path)).cloned().collect();
        written_over.into_iter().for_each(|path| self.count_restless(path, local));
    }

    fn count_restless(&mut self, path: String, local: &Local) {
        let looks = self.restless.files.entry(path.clone()).or_default();
        *looks += 1;
        if *looks < MANY {
            return;
        }
        self.note(format!(
            "{path} beside {} never lies still for --settle and until it is copied: from now on checkpoints are committed WITHOUT it until the command has ended; if training cannot go on without it, let the trainer write it with each checkpoint only, best in the same directory",
            local.candidate.unit
        ));
        self.config.options.restless.insert(path);
    }

    /// Waits until it has lain unchanged for `settle`, counting from the first look that saw it so, and nobody has it
    /// open for writing; `None`: nobody can write any more. Where there is a `limit`, nothing more is waited for.
    pub(super) async fn settled(
        &mut self,
        local: Local,
        settle: Option<Duration>,
        limit: Option<Duration>,
    ) -> Result<Local, Stop> {
        let Some(settle) = settle else { return Ok(local) };
        let times = if local.is_less && self.is_patient && limit.is_none() { PATIENCE } else { 1 };
        let now = self.clock.now();
        let since = match self.seen.take() {
            Some((entries, since)) if entries == local.entries => since,
            _ => now,
        };
        self.seen = Some((local.entries.clone(), since));
        let unit = &local.candidate.unit;
        self.restless.unit.clone_from(unit);
        // What was missing may come before it was waited for that long.
        let pauses = (1..=times).map(|time| settle * time);
        for pause in pauses.filter(|pause| *pause > now.saturating_sub(since)) {
            self.haste.wait(pause, || self.clock.now().saturating_sub(since)).await;
            if self.haste.is_over() {
                return Err(Stop::Changed("the command came to its end before it had lain still".to_owned()));
            }
            // A newer one may have come meanwhile: this one is safe first, or none ever would be where saves come fast.
            let entries = self.entries_of(unit).await.map_err(|error| self.unreadable(&error))?;
            if entries.as_ref() != Some(&local.entries) {
                let now = entries.as_deref().unwrap_or_default();
                self.restless.looks += u32::from(is_saved_over(&local.entries, now));
                self.note_restless(&local, now);
                return Err(Stop::Changed(match entries {
                    Some(_) => format!("{unit} is still being written"),
                    None => format!("{unit} was deleted before it had lain still"),
                }));
            }
            if self.clock.now().saturating_sub(since) < pause {
                break;
            }
        }
        let Some(who) = writer(local.entries.iter()).await else { return Ok(local) };
        let fixed = |entry: &&Entry| local.candidate.is_fixed(&entry.path);
        if writer(local.entries.iter().filter(|entry| !fixed(entry))).await.is_none() {
            for entry in local.entries.iter().filter(fixed) {
                if writer(std::iter::once(entry)).await.is_some() {
                    self.count_restless(entry.path.clone(), &local);
                }
            }
        }
        Err(Stop::Changed(format!("{} is being written by {who}", local.candidate.unit)))
    }
}

/// Who has one of these open for writing.
async fn writer(entries: impl Iterator<Item = &Entry>) -> Option<String> {
    let files: HashSet<_> = entries.filter(|e| e.kind == Kind::File).map(|e| (e.device, e.inode)).collect();
    blocking(move || Ok(writers::writer_of(&files))).await.ok().flatten()
}

/// Whether what is written to this file is of one save.
fn goes_on(old: &Entry, new: &Entry) -> bool {
    old.inode == new.inode && (new.size > old.size || new.size == old.size && new.mtime_ns == old.mtime_ns)
}

/// Whether another save has begun, or this one is gone: a save that goes on only adds to its files.
fn is_saved_over(before: &[Entry], after: &[Entry]) -> bool {
    let after: HashMap<&str, &Entry> = after.iter().map(|new| (new.path.as_str(), new)).collect();
    let mut files = before.iter().filter(|e| e.kind == Kind::File);
    files.any(|old| !after.get(old.path.as_str()).is_some_and(|new| goes_on(old, new)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, size: u64, mtime_ns: i64, inode: u64) -> Entry {
        let (kind, device) = (Kind::File, 1);
        Entry { path: path.to_owned(), kind, size, mtime_ns, ctime_ns: 0, inode, device, mode: 0o644, through: None }
    }

    #[test]
    fn a_save_that_goes_on_adds_to_its_files_and_another_writes_them_anew() {
        let before = [file("step-1/a.bin", 9, 1, 1), file("step-1/b.bin", 4, 2, 2)];
        let with = |at: usize, changed: Entry| {
            let mut after = before.to_vec();
            after[at] = changed;
            is_saved_over(&before, &after)
        };
        assert!(!is_saved_over(&before, &before), "it lies still");
        assert!(!with(1, file("step-1/b.bin", 5, 3, 2)), "it goes on");
        assert!(!is_saved_over(&before, &[&before[..], &[file("step-1/c.bin", 1, 3, 3)]].concat()), "it goes on");
        assert!(with(0, file("step-1/a.bin", 9, 3, 1)), "written anew in its place");
        assert!(with(0, file("step-1/a.bin", 3, 3, 1)), "begun anew in its place");
        assert!(with(0, file("step-1/a.bin", 12, 3, 7)), "renamed there");
        assert!(is_saved_over(&before, &before[..1]) && is_saved_over(&before, &[]), "deleted");
    }
}

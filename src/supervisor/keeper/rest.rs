//! A checkpoint lies still before it is copied; and one that never does, since the trainer saves over it, or keeps one only
//! and deletes it, is counted.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::look::Local;
use super::mirror::{Mirror, blocking};
use super::send::Stop;
use crate::edge::writers;
use crate::rules::checkpoint::{Entry, Kind};

/// What lacks something that the step before has lies still for so many times as long: a trainer that gathers the state of
/// its optimizer writes nothing meanwhile.
const PATIENCE: u32 = 10;

impl Mirror {
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
        self.restless.0.clone_from(unit);
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
                self.restless.1 += u32::from(is_saved_over(&local.entries, entries.as_deref().unwrap_or_default()));
                return Err(Stop::Changed(match entries {
                    Some(_) => format!("{unit} is still being written"),
                    None => format!("{unit} was deleted before it had lain still"),
                }));
            }
            if self.clock.now().saturating_sub(since) < pause {
                break;
            }
        }
        let files: HashSet<_> =
            local.entries.iter().filter(|e| e.kind == Kind::File).map(|e| (e.device, e.inode)).collect();
        let writer = blocking(move || Ok(writers::writer_of(&files))).await.ok().flatten();
        match writer {
            Some(who) => Err(Stop::Changed(format!("{} is being written by {who}", local.candidate.unit))),
            None => Ok(local),
        }
    }
}

/// Whether another save has begun, or this one is gone: a save that goes on only adds to its files.
fn is_saved_over(before: &[Entry], after: &[Entry]) -> bool {
    let goes_on = |old: &Entry, new: &Entry| {
        old.inode == new.inode && (new.size > old.size || new.size == old.size && new.mtime_ns == old.mtime_ns)
    };
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

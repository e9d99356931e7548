//! What a run says once of how its trainer saves, where that is not what the trainer's people meant.

use std::collections::BTreeMap;
use std::time::Duration;

use super::look::{Local, Look, NAMED};
use super::mirror::Mirror;
use crate::rules::checkpoint::names::OWN;
use crate::rules::checkpoint::plan::Age;
use crate::rules::checkpoint::unrecognised::Unrecognised;

/// At so many looks in a row it is said that another format goes on.
const MIXED_LOOKS: u32 = 3;

/// What was seen for it, and what was said.
#[derive(Debug, Default)]
pub(super) struct Remarks {
    /// What the trainer saves that is no checkpoint.
    pub(super) unrecognised: Unrecognised,
    /// At how many looks in a row checkpoints of another format went on.
    mixed_looks: u32,
    told_mixed: bool,
    /// That the trainer cannot bear what we keep beside its checkpoints.
    told_caution: bool,
    /// That a part of what is saved is left out.
    told_other: bool,
    /// That the trainer writes below what is committed.
    told_outranked: bool,
}

impl Remarks {
    /// That what the trainer saves is not what is committed.
    pub(super) fn told_of_its_saves(&self) -> bool {
        self.told_mixed
    }
}

impl Mirror {
    /// Says, once, that something is saved and none of it is recognised.
    pub(super) fn tell_unrecognised(&mut self, look: &Look, settle: Option<Duration>) {
        // What is pushed by hand is no run's.
        if !self.begun {
            return;
        }
        let (now, seen) = (self.clock.now(), self.config.options.seen(&look.listing));
        let Some(files) = self.remarks.unrecognised.look(now, settle, &seen, &look.ages) else {
            return;
        };
        let why = match look.layout {
            None => look.passed.first().cloned().unwrap_or_default(),
            Some(layout) => format!(
                "checkpoints in {} are taken for {}, and none of these is new since the start",
                self.config.dir.display(),
                layout.name
            ),
        };
        let names: Vec<&str> = files.iter().take(NAMED).map(|file| file.path.as_str()).collect();
        let more = files.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let line = format!(
            "{why}, so NOTHING is being committed, although {}{more} came since the start; say how they are written with --checkpoint-format, which file completes one with --marker, or where a name has its step with --step-regex",
            names.join(", "),
        );
        self.note(line);
        self.remarks.told_mixed = true;
    }

    /// Says, once, that the trainer goes on saving in another format than the one that holds for the directory: at once where
    /// nobody writes any more; else what it goes on from may be about to come.
    pub(super) fn tell_mixed(&mut self, look: &Look, at_rest: bool) {
        let Some((unit, format)) = look.mixed.as_ref().filter(|_| self.begun) else {
            self.remarks.mixed_looks = 0;
            return;
        };
        self.remarks.mixed_looks += 1;
        if self.remarks.told_mixed || !at_rest && self.remarks.mixed_looks < MIXED_LOOKS {
            return;
        }
        let name = look.layout.map_or("", |layout| layout.name);
        let dir = self.config.dir.display();
        self.note(match format {
            Some(format) => format!(
                "{unit} is NOT committed, although its step is the highest: checkpoints in {dir} are taken for {name}, and it is of the format {format}; if it is what training goes on from, name that with --checkpoint-format, or keep the two in directories of their own"
            ),
            None => format!(
                "{unit} is NOT committed, although it was saved last: checkpoints in {dir} are taken for {name}, and it is none of these by its name and place; if it is what training goes on from, save it as those before it, with a step that goes on, or keep the two in directories of their own"
            ),
        });
        self.remarks.told_mixed = true;
    }

    /// Says, once, that the trainer will fail at what is ours beside its checkpoints.
    pub(super) fn caution(&mut self, look: &Look) {
        let Some(local) = look.newest.as_ref().filter(|_| !self.remarks.told_caution && self.attempt.is_some()) else {
            return;
        };
        if let Some(why) = (local.layout.stumbles)(&local.candidate) {
            let (unit, dir) = (&local.candidate.unit, self.config.dir.display());
            self.note(format!(
                "{unit} lies in the checkpoint directory {dir} itself, beside trainit's own {OWN}: {why}; give the directory above as --checkpoint-dir"
            ));
            self.remarks.told_caution = true;
        }
    }

    /// Says once that half of what is saved of a step is not committed.
    pub(super) fn tell_other(&mut self, local: &Local) {
        let (Some(other), false) = (&local.other, self.remarks.told_other) else { return };
        let unit = &local.candidate.unit;
        self.note(format!(
            "{unit} is committed and {other}, of the same step and the same time, is NOT: one checkpoint a step is kept, and the \
             other is gone with this machine; let the trainer save all of a step below one directory of that step \
             (step-200/actor, step-200/critic)"
        ));
        self.remarks.told_other = true;
    }

    /// Says once that the trainer writes on below what is committed: a complete checkpoint, written since, of a lower step.
    pub(super) async fn tell_outranked(&mut self, ages: &BTreeMap<String, Age>) {
        let Some(committed) = self.committed.as_ref().filter(|_| !self.remarks.told_outranked) else { return };
        // Both may have come between two looks. The times of what is pushed by hand are those of who copied it there.
        let is_of_this_run = |age: &Age| !self.config.only_sends && age.newest_ns >= self.config.options.begun_ns;
        let newer = |(unit, age): &(&String, &Age)| {
            age.newest_ns > committed.age.newest_ns
                && (committed.beside.get(*unit) != Some(*age) || is_of_this_run(age))
                && age.step.is_some()
                && age.step < committed.age.step
        };
        let Some((unit, age)) = ages.iter().filter(newer).max_by_key(|(_, age)| age.newest_ns) else { return };
        let look = self.look(age.step).await;
        let (Some(step), Ok(Some(local))) = (age.step, look.map(|look| look.newest)) else { return };
        if local.candidate.unit == *unit {
            let (above, dir) = (&committed.unit, self.config.dir.display());
            self.note(format!(
                "{unit} is newer than {above} and not committed: it is of a lower step, and the next start would go on from {above}; if training was to begin again below it, move {above} out of {dir}, or start with --restore-step {step}"
            ));
            self.remarks.told_outranked = true;
        }
    }
}

//! Files of a step that no layout takes for a checkpoint, in a directory of their own beside what is one: `optims/optim_200.npz`
//! beside `models/model_200.pt`, or `models/model_200.safetensors` beside `optims/optim_200.pt`. They are its parts, as
//! far as [`super::halves`] says so; what is left of the same save is to be told of.

use std::collections::BTreeSet;

use super::halves::{TOGETHER_NS, is_copy_of, role};
use super::notes::{LONGEST, is_text};
use super::roles::Role;
use super::siblings::{is_exported, together};
use crate::rules::checkpoint::aside::is_copy;
use crate::rules::checkpoint::check::is_weights;
use crate::rules::checkpoint::generic::is_surely_weights;
use crate::rules::checkpoint::listing::{Entry, Kind, parent_of};
use crate::rules::checkpoint::parts::is_made_later;
use crate::rules::checkpoint::steps::{is_steps, step_in};
use crate::rules::checkpoint::unit::{Candidate, Scan, is_bystander, taken};

/// Those of the steps of these units, as if they were checkpoints themselves; of those without a step, what each save writes
/// over by its name.
pub(super) fn of_steps(scan: &Scan, units: &[Candidate]) -> Vec<Candidate> {
    let steps: BTreeSet<Option<u64>> = units.iter().map(|unit| unit.step).collect();
    let taken = taken(units);
    let files = scan.listing.files().filter(|f| !taken.contains(f.path.as_str()));
    let parts = files.filter(|f| is_part(scan, f)).filter_map(|f| {
        let step = scan.step(&f.path, step_in(f.name()))?;
        let is_one = steps.contains(&step)
            && (step.is_some() || is_weights(f.name()) && !is_text(f.name()) && role(&f.path).is_some());
        is_one.then(|| Candidate::file(f, step))
    });
    together(scan.listing, parts.collect())
}

/// Whether it may be a part of a save: state by its name or by that of its directory, or weights.
fn is_part(scan: &Scan, file: &Entry) -> bool {
    let home = parent_of(&file.path);
    if file.kind != Kind::File || file.size == 0 || is_bystander(file.name()) || is_copy(&file.path) {
        return false;
    }
    // What lies in the directory of another step, or was made of one later.
    if home.split('/').any(is_steps) || is_made_later(home) {
        return false;
    }
    let is_state = matches!(role(&file.path), Some(Role::Beside | Role::Some));
    let is_one = match role(&file.path) {
        Some(_) if is_text(file.name()) => is_state && file.name().ends_with(".json") && file.size <= LONGEST,
        Some(_) => (is_state || is_weights(file.name())) && !is_exported(file.name()),
        None => is_surely_weights(file) && !is_exported(file.name()) && !is_made_later(file.name()),
    };
    is_one && !scan.is_aside(&file.path)
}

/// Weights of the same step and time in another directory that are part of nothing that was found.
pub(in super::super) fn left(scan: &Scan, of: &Candidate, all: &[Candidate]) -> Option<String> {
    let seen = scan.options.seen(scan.listing);
    let taken = taken(all);
    let time = of.newest_ns(scan.listing);
    let is_left = |f: &&Entry| {
        let is_of_it = || scan.step(&f.path, step_in(f.name())).is_some_and(|step| step == of.step);
        let is_here = parent_of(&f.path) == parent_of(&of.unit) || taken.contains(f.path.as_str());
        let is_late = f.mtime_ns.abs_diff(time) < TOGETHER_NS && f.mtime_ns >= scan.options.begun_ns;
        let is_copy = || is_copy_of(scan, &Candidate::file(f, of.step), of);
        is_surely_weights(f) && is_late && !is_here && is_part(scan, f) && is_of_it() && !is_copy()
    };
    let left = seen.files().find(is_left).map(|file| file.path.clone());
    left.filter(|_| of.step.is_some())
}

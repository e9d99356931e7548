//! The checkpoints of a directory, and how to make the framework resume from an older one.

use super::formats::engine::partition;
use super::formats::units::{Case, Partition, Root, Scan, UnitState};
use super::formats::verdict;
use super::history::History;
use super::listing::{Entry, Kind, name_of};
use super::snapshot::{Resume, resume};
use super::tracker::Tracker;

/// The changes that make an older checkpoint the newest one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rewind {
    /// Files and links to move away: paths, sorted.
    pub aside: Vec<String>,
    /// Pointers, each with the text that names the older checkpoint.
    pub pointers: Vec<(String, String)>,
}

/// The checkpoints of the directory, the newest first. The newest is the directory as it is. A directory that has only
/// checkpoints of one format and texts can go back to each complete checkpoint that has a step.
pub fn restorable(scan: &Scan, tracker: &Tracker) -> Vec<Resume> {
    let Some(newest) = resume(scan, tracker) else { return Vec::new() };
    let found = partition(scan, tracker.history());
    let older: Vec<Resume> = only_root(&found, tracker.history()).map_or_else(Vec::new, |root| {
        let newer = root.units.iter().position(|unit| Some(&unit.path) == newest.unit.as_ref()).map_or(0, |at| at + 1);
        let complete = (newer..root.units.len()).filter(|at| is_complete(scan, tracker, root, *at));
        let units = complete.map(|at| &root.units[at]).filter(|unit| unit.step.is_some() && !unit.path.is_empty());
        units.map(|unit| Resume { unit: Some(unit.path.clone()), step: unit.step }).collect()
    });
    [newest].into_iter().chain(older).collect()
}

/// The changes that make this unit the newest; `None`: it does not exist.
pub fn rewind(scan: &Scan, tracker: &Tracker, unit: &str) -> Option<Rewind> {
    let found = partition(scan, tracker.history());
    let root = only_root(&found, tracker.history())?;
    let at = root.units.iter().position(|other| other.path == unit)?;
    let newer = &root.units[..at];
    let members = newer.iter().flat_map(|unit| &unit.members).filter(|entry| entry.kind != Kind::Directory);
    let mut aside: Vec<String> = members.map(|entry| entry.path.clone()).collect();
    let mut pointers = Vec::new();
    for pointer in &root.pointers {
        match renamed(scan, root, at, pointer) {
            Some(text) => pointers.push((pointer.path.clone(), text)),
            None if names_newer(scan, root, at, pointer) => aside.push(pointer.path.clone()),
            None => {}
        }
    }
    aside.sort();
    Some(Rewind { aside, pointers })
}

/// The only root, if there is nothing else but texts.
fn only_root<'a, 'p>(found: &'p Partition<'a>, history: &History) -> Option<&'p Root<'a>> {
    let [root] = found.roots.as_slice() else { return None };
    found.rest.iter().all(|entry| history.is_text(entry)).then_some(root)
}

fn is_complete<'a>(scan: &Scan<'a>, tracker: &Tracker, root: &Root<'a>, at: usize) -> bool {
    match &root.units[at].state {
        UnitState::Older => {
            verdict::judge(&Case { scan, history: tracker.history(), root, at, newest: 0 }) == UnitState::Complete
        }
        state => *state == UnitState::Complete,
    }
}

/// The text for a pointer file to name this unit instead of a newer one.
fn renamed(scan: &Scan, root: &Root, at: usize, pointer: &Entry) -> Option<String> {
    let text = scan.text(&pointer.path)?;
    let unit = &root.units[at];
    let is_step = |step: Option<u64>| step.is_some_and(|step| text.trim() == step.to_string());
    if let Some(step) = unit.step.filter(|_| root.units[..at].iter().any(|newer| is_step(newer.step))) {
        return Some(step.to_string());
    }
    let newer = root.units[..at].iter().filter(|newer| text.contains(newer.key.as_str()));
    let new = newer.fold(text.clone(), |text, newer| text.replace(newer.key.as_str(), &unit.key));
    (new != text).then_some(new)
}

/// Whether a pointer names a newer unit and cannot be rewritten.
fn names_newer(scan: &Scan, root: &Root, at: usize, pointer: &Entry) -> bool {
    let names = |text: &str| root.units[..at].iter().any(|newer| text.contains(newer.key.as_str()));
    match &pointer.kind {
        Kind::Symlink(target) => names(name_of(target)),
        _ => scan.text(&pointer.path).is_some_and(|text| names(&text)),
    }
}

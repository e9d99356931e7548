//! `trainit checkpoint explain`: which rule decided about a path.

use super::formats::engine::partition;
use super::formats::rest;
use super::formats::units::UnitState;
use super::listing::{Kind, around, is_below};
use super::parts::State;
use super::tracker::{Facts, Tracker};

/// Which rule decided about a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Relative to the checkpoint directory.
    pub path: String,
    /// The pattern that excludes it, the format's name, `rest`, or `not there`.
    pub decided_by: String,
    /// One clause: the unit that it belongs to, and what its part waits for.
    pub detail: String,
}

/// Explains one path, relative to the checkpoint directory. `tracker` must have looked at these facts.
pub fn explain(facts: &Facts, tracker: &Tracker, path: &str) -> Explanation {
    let path = path.trim_matches('/');
    let (decided_by, detail) = decided(facts, tracker, path);
    Explanation { path: path.to_owned(), decided_by, detail }
}

fn decided(facts: &Facts, tracker: &Tracker, path: &str) -> (String, String) {
    let scan = &facts.scan;
    let found = partition(scan, &tracker.history);
    if let Some((what, why)) = found.excluded.iter().find(|(what, _)| around(path).any(|outer| outer == what)) {
        return (why.clone(), format!("{what} is excluded"));
    }
    let answer = |by: &str, detail: String| (by.to_owned(), detail);
    let Some(entry) = scan.listing.get(path) else { return answer("not there", "no such path".to_owned()) };
    let parts = tracker.parts(facts, &found);
    let waiting = |root: Option<&str>| {
        let Some(part) = parts.iter().find(|part| part.root_dir() == root) else { return String::new() };
        match &part.state {
            State::Committed => "; nothing is new".to_owned(),
            State::Ready => "; ready".to_owned(),
            _ => part.waits_for().map_or(String::new(), |(_, _, why)| format!("; waiting: {why}")),
        }
    };
    for root in &found.roots {
        let waiting = || waiting(Some(&root.dir));
        let unit =
            root.units.iter().find(|unit| unit.members.contains(&entry) || unit.is_directory && unit.path == path);
        let detail = if let Some(unit) = unit {
            let state = match &unit.state {
                UnitState::Complete => format!("complete{}", waiting()),
                UnitState::Incomplete(why) => format!("incomplete: {why}"),
                UnitState::Unproven(why) => format!("unproven: {why}"),
                UnitState::Older => "older, so it is not committed".to_owned(),
            };
            format!("member of {}, {state}", unit.path)
        } else if root.pointers.contains(&entry) {
            format!("names the newest checkpoint{}", waiting())
        } else if root.dir == path {
            format!("holds {} checkpoints{}", root.units.len(), waiting())
        } else {
            continue;
        };
        return answer(root.layout.name, detail);
    }
    if entry.kind == Kind::Directory {
        let detail = match found.roots.iter().find(|root| is_below(&root.dir, path)) {
            Some(root) => format!("{} below it holds checkpoints of {}", root.dir, root.layout.name),
            None => format!("a directory{}", waiting(None)),
        };
        return answer("rest", detail);
    }
    if tracker.is_torn_since_start(scan, entry) {
        return answer("rest", "torn since the start, so it is ignored".to_owned());
    }
    if !rest::kept(scan.options.keep_saves, &tracker.history, &found.rest).contains(&entry) {
        return answer("--keep-saves", "only newer saves of files with this name are committed".to_owned());
    }
    answer("rest", format!("committed as it is{}", waiting(None)))
}

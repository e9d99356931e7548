//! Orbax: a directory gets its final name by a rename. On storage without atomic renames, `commit_success.txt` marks a
//! finished save instead. `_CHECKPOINT_METADATA` names the items that were saved, each a directory.

use serde::Deserialize;
use serde_json::Value;

use crate::checkpoint::formats::ends::json;
use crate::checkpoint::formats::units::Case;
use crate::checkpoint::listing::join;

const METADATA: &str = "_CHECKPOINT_METADATA";
const COMMIT: &str = "commit_success.txt";
/// Part of the names of directories that are being written.
const TEMPORARY: &str = ".orbax-checkpoint-tmp";

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    item_handlers: Value,
    #[serde(default)]
    init_timestamp_nsecs: Option<u64>,
    #[serde(default)]
    commit_timestamp_nsecs: Option<u64>,
}

/// Checks that nothing is being written, that the unit is marked as finished if its neighbours are, and that each item
/// that the metadata names exists.
pub(in crate::checkpoint) fn items(case: &Case) -> Result<(), String> {
    let (listing, unit) = (case.scan.listing, case.unit());
    if let Some(part) = listing.below(&unit.path).iter().find(|entry| entry.name().contains(TEMPORARY)) {
        return Err(format!("{} is still being written", part.path));
    }
    let has = |path: &str, name: &str| listing.file(&join(path, name)).is_some();
    let commits = |path: &str| listing.below(path).iter().any(|entry| entry.name() == COMMIT);
    if case.root.units.iter().any(|other| commits(&other.path)) && !has(&unit.path, COMMIT) {
        return Err(format!("{} is not there yet", join(&unit.path, COMMIT)));
    }
    if case.root.units.iter().any(|other| has(&other.path, METADATA)) && !has(&unit.path, METADATA) {
        return Err(format!("{} is not there yet", join(&unit.path, METADATA)));
    }
    let Some(metadata) = case.file(METADATA) else { return Ok(()) };
    let metadata: Metadata = json::read(case.scan.peek, metadata)
        .ok_or_else(|| format!("{} is cut short or not metadata", join(&unit.path, METADATA)))?;
    if metadata.init_timestamp_nsecs.is_some() && metadata.commit_timestamp_nsecs.is_none() {
        return Err(format!("{} has no time of commit yet", join(&unit.path, METADATA)));
    }
    // A checkpoint of a single item names no items.
    let Value::Object(items) = metadata.item_handlers else { return Ok(()) };
    match items.keys().find(|item| listing.below(&join(&unit.path, item)).is_empty()) {
        Some(item) => Err(format!("{} is missing, which {METADATA} names", join(&unit.path, item))),
        None => Ok(()),
    }
}

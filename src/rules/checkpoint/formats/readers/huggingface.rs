//! Hugging Face: `trainer_state.json`, which rank 0 writes last, and the index of a model in several files.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::checkpoint::formats::ends::json;
use crate::checkpoint::formats::units::{Case, Scan};
use crate::checkpoint::listing::{join, name_of};

#[derive(Deserialize)]
struct State {
    global_step: u64,
}

/// Checks that the trainer's state, if it exists, has the step of the directory's name.
pub(in crate::checkpoint) fn state(case: &Case) -> Result<(), String> {
    let Some(file) = case.file("trainer_state.json") else { return Ok(()) };
    if file.size > json::LIMIT {
        return Ok(());
    }
    let state: State = json::read(case.scan.peek, file)
        .ok_or_else(|| format!("{} cannot be read, is cut short or has no step", file.path))?;
    let named = case.unit().key.rsplit('-').next().and_then(|number| number.parse().ok());
    if named != Some(state.global_step) {
        return Err(format!("{} has step {}", file.path, state.global_step));
    }
    Ok(())
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Checks that every file that the index names exists. Any other kind of index passes.
pub(in crate::checkpoint) fn indexed(scan: &Scan, home: &str, name: &str) -> Result<(), String> {
    let path = join(home, name);
    let Some(file) = scan.listing.file(&path) else { return Ok(()) };
    let Some(index) = json::read::<Index>(scan.peek, file) else { return Ok(()) };
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    match names.into_iter().find(|name| scan.listing.file(&join(home, name)).is_none()) {
        Some(name) => Err(format!("{} is missing, which {path} names", join(home, &name))),
        None => Ok(()),
    }
}

/// The name at the end of the path under this key of a JSON file, such as the best checkpoint's.
pub(in crate::checkpoint) fn named(scan: &Scan, path: &str, field: &str) -> Option<String> {
    let value: serde_json::Value = json::read(scan.peek, scan.listing.file(path)?)?;
    Some(name_of(value.get(field)?.as_str()?.trim_end_matches('/')).to_owned())
}

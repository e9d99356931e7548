//! Keras 3: `BackupAndRestore` (`latest.weights.h5`, then `training_metadata.json`, both rewritten in place), and the
//! single files of `ModelCheckpoint` (`.keras`, `.weights.h5`). `save_weights` in parts (`ckpt_5.weights.json`) writes
//! `ckpt_5_00000.weights.h5` and so on, and last the JSON that names them.
//!
//! `BackupAndRestore` deletes its folder when training has succeeded. That is no wish to lose the committed copy.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::generic::is_in_step;
use crate::rules::checkpoint::layout::{Layout, Makeup};
use crate::rules::checkpoint::listing::{Entry, join, name_of, parent_of};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::siblings::together;
use crate::rules::checkpoint::steps::step_in;
use crate::rules::checkpoint::unit::{Candidate, Scan, is_temporary};
use crate::rules::checkpoint::{json, order};

const WEIGHTS: &str = "latest.weights.h5";
const METADATA: &str = "training_metadata.json";
/// Of the JSON that names the parts.
const PARTED: &str = ".weights.json";
/// So much of it is read: some hundred bytes a variable. A longer one has no parts that are compared.
const READ: u64 = 16 << 20;

pub(super) const KERAS: Layout = Layout {
    makeup: Makeup::OneFile,
    ..Layout::of(
        "keras",
        "latest.weights.h5 with training_metadata.json, or files named *.keras or *.h5",
        find,
        complete,
    )
};

#[derive(Deserialize)]
struct Metadata {
    epoch: u64,
}

fn find(scan: &Scan) -> Vec<Candidate> {
    let weights = scan.listing.files().filter(|f| f.name() == WEIGHTS);
    let backups: Vec<Candidate> = weights.filter_map(|f| backup(scan, &f.path)).collect();
    if !backups.is_empty() {
        return backups;
    }
    let models = scan.listing.files().filter(|f| is_model(f.name()) && !is_in_step(scan, f));
    // `.weights.h5`: the 5 is no step, nor is anything of a name like `best.weights.h5`.
    let step = |name: &str| step_in(name.strip_suffix(".h5").unwrap_or(name));
    let parted = parted(scan);
    let models = models.filter(|f| before_number(&f.path).is_none_or(|before| !parted.contains_key(before)));
    let models = models.filter_map(|f| Some(Candidate::file(f, scan.step(&f.path, step(f.name()))?)));
    let mut units = together(scan.listing, models.collect());
    units.extend(parted.into_iter().filter_map(|(before, parts)| {
        let unit = format!("{before}{PARTED}");
        let json = scan.listing.file(&unit).map(|json| &json.path);
        let mut paths: Vec<String> = parts.into_iter().map(|part| &part.path).chain(json).cloned().collect();
        paths.sort();
        let step = scan.step(&unit, step(name_of(before)))?;
        Some(Candidate::of(unit, step, paths))
    }));
    units
}

/// What was saved in parts, by what their names begin with, in directories where one has its JSON: of what was cut off there
/// are parts alone.
fn parted<'a>(scan: &Scan<'a>) -> BTreeMap<&'a str, Vec<&'a Entry>> {
    let mut all: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
    for (before, part) in scan.listing.files().filter_map(|part| Some((before_number(&part.path)?, part))) {
        all.entry(before).or_default().push(part);
    }
    let is_named = |before: &&&str| scan.listing.file(&format!("{before}{PARTED}")).is_some();
    let homes: BTreeSet<&str> = all.keys().filter(is_named).map(|before| parent_of(before)).collect();
    all.retain(|before, _| homes.contains(parent_of(before)));
    all
}

/// `ckpt_5` of the part `ckpt_5_00000.weights.h5`.
fn before_number(path: &str) -> Option<&str> {
    let (before, number) = path.strip_suffix(".weights.h5")?.rsplit_once('_')?;
    (number.len() == 5 && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(before)
}

/// Each part that the JSON names is there, and not of a later save, which is written over this one.
fn parts_there(scan: &Scan, unit: &str) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Config {
        weight_map: BTreeMap<String, serde_json::Value>,
    }
    let json = scan.listing.file(unit).ok_or_else(|| format!("{unit} is not there yet"))?;
    let text = scan.peek.read(unit, 0, json.size.min(READ) as usize).ok_or("it cannot be read")?;
    let Ok(config) = serde_json::from_slice::<Config>(&text) else { return Ok(()) };
    // One that lies in several has a list.
    let names = config.weight_map.values().flat_map(|part| match part {
        serde_json::Value::Array(parts) => parts.iter().collect(),
        part => vec![part],
    });
    for name in names.filter_map(serde_json::Value::as_str).collect::<BTreeSet<_>>() {
        let part = scan.listing.file(&join(parent_of(unit), name)).ok_or_else(|| format!("{name} is missing"))?;
        order::written_before([part], json, 0)?;
    }
    Ok(())
}

pub(super) fn is_model(name: &str) -> bool {
    [".keras", ".h5", ".hdf5"].iter().any(|e| name.ends_with(e)) && !is_temporary(name)
}

fn backup(scan: &Scan, weights: &str) -> Option<Candidate> {
    let home = parent_of(weights);
    let is_part = |name: &str| name == WEIGHTS || name == METADATA || name.ends_with(".bkp");
    let paths = scan.listing.within(home).filter(|e| is_part(e.name())).map(|e| e.path.clone()).collect();
    let metadata = scan.text(&join(home, METADATA)).and_then(|t| json::python_json::<Metadata>(&mut t.as_bytes()).ok());
    let step = scan.step(weights, metadata.map(|m| m.epoch))?;
    Some(Candidate::of(weights.to_owned(), step, paths))
}

fn complete(scan: &Scan, candidate: &Candidate, _: &Memo) -> Result<(), String> {
    scan.all_whole(candidate)?;
    if candidate.unit.ends_with(PARTED) {
        return parts_there(scan, &candidate.unit);
    }
    let weights = scan.listing.file(&candidate.unit).ok_or("it is gone")?;
    if weights.name() != WEIGHTS {
        return Ok(());
    }
    let path = join(parent_of(&candidate.unit), METADATA);
    let metadata = scan.listing.file(&path).ok_or_else(|| format!("{METADATA} is not there yet"))?;
    json::json(scan.peek, metadata).map_err(|why| format!("{METADATA}: {why}"))?;
    order::written_before([weights], metadata, 0)
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::check::tests::{hdf5_of, zip_of};
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, newest, reason};

    fn backup() -> Memory {
        Memory::of(&[("backup/latest.weights.h5", hdf5_of(0, b"w", 0))])
            .with("backup/training_metadata.json", r#"{"epoch": 3, "batch": 0}"#)
            .at("backup/latest.weights.h5", 10)
            .at("backup/training_metadata.json", 10)
    }

    #[test]
    fn a_backup_is_finished_when_its_weights_are_not_younger_than_its_metadata() {
        assert_eq!(complete_units(&backup()), [("backup/latest.weights.h5".into(), Some(3))]);
        assert!(reason(&backup().at("backup/latest.weights.h5", 11), "backup/latest.weights.h5").contains("younger"));
        assert_eq!(complete_units(&backup().without("backup/training_metadata.json")), []);
        assert_eq!(complete_units(&backup().with("backup/training_metadata.json", r#"{"epoch": 3"#)), []);
    }

    #[test]
    fn weights_in_parts_are_one_checkpoint_of_the_step_of_the_json_that_names_them() {
        let part = hdf5_of(2, b"w", 0);
        let save = |memory: Memory, step: u32, at: i64| {
            let name = |end: &str| format!("ckpt_{step:02}{end}");
            let [one, two, json] = ["_00000.weights.h5", "_00012.weights.h5", ".weights.json"].map(name);
            let map = format!(r#"{{"metadata": {{}}, "weight_map": {{"a": "{one}", "b": ["{one}", "{two}"]}}}}"#);
            let memory = memory.with(&one, &part).at(&one, at).with(&two, &part).at(&two, at + 1);
            memory.with(&json, map).at(&json, at + 2)
        };
        let two = save(save(Memory::default(), 1, 10), 2, 20);
        let units = [("ckpt_02.weights.json".to_owned(), Some(2)), ("ckpt_01.weights.json".to_owned(), Some(1))];
        assert_eq!(complete_units(&two), units);
        assert_eq!(newest(&two).paths.len(), 3);
        for torn in ["ckpt_02.weights.json", "ckpt_02_00000.weights.h5"] {
            assert_eq!(complete_units(&two.clone().without(torn)), units[1..], "{torn}");
        }
        let torn = two.clone().without("ckpt_02.weights.json");
        assert!(reason(&torn, "ckpt_02.weights.json").contains("is not there yet"), "no step of another form");
        assert!(reason(&two.at("ckpt_02_00000.weights.h5", 30), "ckpt_02.weights.json").contains("younger"));
        let others =
            Memory::of(&[("w_00001.weights.h5", &part), ("w_00002.weights.h5", &part)]).with("v.weights.json", "{}");
        assert_eq!(complete_units(&others)[0], ("w_00002.weights.h5".to_owned(), Some(2)), "steps of five digits");
    }

    #[test]
    fn model_files_go_by_the_step_in_their_names() {
        let memory = Memory::of(&[("model.10.keras", zip_of(b"a", b"")), ("w-20.weights.h5", hdf5_of(2, b"w", 0))])
            .with("w-30.weights.h5", &hdf5_of(2, b"w", 0)[..30]);
        assert_eq!(
            complete_units(&memory),
            [("w-20.weights.h5".into(), Some(20)), ("model.10.keras".into(), Some(10))]
        );
    }
}

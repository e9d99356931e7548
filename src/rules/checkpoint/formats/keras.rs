//! Keras 3: `BackupAndRestore` (`latest.weights.h5`, then `training_metadata.json`, both rewritten in place), and the
//! single files of `ModelCheckpoint` (`.keras`, `.weights.h5`).
//!
//! `BackupAndRestore` deletes its folder when training has succeeded. That is no wish to lose the committed copy.

use serde::Deserialize;

use super::generic::is_in_step;
use crate::rules::checkpoint::layout::{Layout, Makeup};
use crate::rules::checkpoint::listing::{join, parent_of};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::siblings::together;
use crate::rules::checkpoint::steps::step_in;
use crate::rules::checkpoint::unit::{Candidate, Scan, is_temporary};
use crate::rules::checkpoint::{json, order};

const WEIGHTS: &str = "latest.weights.h5";
const METADATA: &str = "training_metadata.json";

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
    let models = models.filter_map(|f| Some(Candidate::file(f, scan.step(&f.path, step(f.name()))?)));
    together(scan.listing, models.collect())
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
    use crate::rules::checkpoint::tests::{complete_units, reason};

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
    fn model_files_go_by_the_step_in_their_names() {
        let memory = Memory::of(&[("model.10.keras", zip_of(b"a", b"")), ("w-20.weights.h5", hdf5_of(2, b"w", 0))])
            .with("w-30.weights.h5", &hdf5_of(2, b"w", 0)[..30]);
        assert_eq!(
            complete_units(&memory),
            [("w-20.weights.h5".into(), Some(20)), ("model.10.keras".into(), Some(10))]
        );
    }
}

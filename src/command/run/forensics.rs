//! `--hang-forensics`: turns PyTorch's flight recorder on and creates the directory for its dumps.

use std::path::Path;
use std::time::Duration;

use crate::edge::fs::trusted_open::create_directories;
use crate::edge::process::signals;
use crate::rules::cluster::framework::Launch;
use crate::rules::cluster::framework::torch::flight_recorder;
use crate::rules::process::env::Env;

/// The time limit for creating the directory, because its file system may hang.
const CREATE_LIMIT: Duration = Duration::from_secs(5);

/// Sets the variables, and creates the directory, because PyTorch does not.
pub(super) fn prepare(dir: &Path, env: &Env, launches: &mut [Launch]) {
    let shown = dir.to_string_lossy();
    for launch in launches {
        flight_recorder::turn_on(&shown, env, &mut launch.changes);
    }
    let made = dir.to_owned();
    if let Err(error) = signals::in_time("forensics", CREATE_LIMIT, move || create_directories(&made)) {
        tracing::warn!(
            "the directory of --hang-forensics, {shown}, cannot be created: {error}; PyTorch writes no dumps without it, so create it \
             where the trainer may write"
        );
    }
}

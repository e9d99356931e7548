//! `--cache-dir`: sets the variables of the compilation caches.

use std::path::Path;

use crate::rules::cache::{passing_id, set_variables};
use crate::rules::cluster::framework::Launch;
use crate::rules::process::env::Env;

/// Sets the variables, and warns of a path that no later run has.
pub(super) fn prepare(dir: &Path, job: &str, host: &str, env: &Env, launches: &mut [Launch]) {
    let shown = dir.to_string_lossy();
    if let Some(id) = passing_id(&shown, [job, host]) {
        tracing::warn!(
            code = "cache_dir",
            "--cache-dir {shown} has {id} in its path, the id of this job or machine: compilers look for the whole path, so no later run \
             finds anything there; give a path that is the same in every run, such as /var/cache/trainit"
        );
    }
    for launch in launches {
        set_variables(&shown, env, &mut launch.changes);
    }
}

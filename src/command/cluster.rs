//! The cluster for every subcommand that shows or uses it: settings, environment, files and the machine's own name
//! brought together.

use crate::edge::{files, limits};
use crate::rules::cluster::input::Input;
use crate::rules::cluster::json;
use crate::rules::cluster::spec::{ClusterError, ClusterOptions, Nproc, Warning};
use crate::rules::env::Env;
use crate::rules::framework::{self, Resolved};
use crate::rules::gpu::{Discovery, cuda};
use crate::settings::layers::unknown_variables;

/// Finds the cluster, and what each child gets of it. `only` names frameworks; empty means all.
/// `gpus` is asked only where it matters. Errors: a malformed variable or file, with the contract's code.
pub fn resolve(
    mut options: ClusterOptions,
    env: &Env,
    only: &[String],
    gpus: impl FnOnce() -> Discovery,
) -> Result<Resolved, ClusterError> {
    if options.hostname.is_none() {
        options.hostname = limits::hostname();
    }
    if options.nproc.is_some() {
        options.cores = limits::cpus().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    }
    if options.nproc == Some(Nproc::Gpu) {
        // A process that sees no GPU of its own is of no use.
        let visible = cuda::visible_count(&gpus().gpus, env.get("CUDA_VISIBLE_DEVICES"));
        options.gpu_count = u32::try_from(visible).unwrap_or(u32::MAX);
    }
    // One byte more than a document may have, so that a larger one is refused and not cut.
    let read = |path: &str| files::read_small(path, json::MAX_BYTES + 1).map_err(|error| error.to_string());
    let mut resolved = framework::resolve(&Input { env, files: &read, options: &options }, only)?;
    resolved.warnings.extend(unknown(env));
    Ok(resolved)
}

/// `TRAINIT_` variables that nothing reads.
fn unknown(env: &Env) -> impl Iterator<Item = Warning> {
    unknown_variables(env).into_iter().map(|complaint| Warning::new("unknown_variable", complaint.to_string()))
}

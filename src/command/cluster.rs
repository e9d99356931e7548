//! The cluster for every subcommand that shows or uses it: settings, environment, files and the machine's own name
//! brought together.

use crate::edge::{files, limits};
use crate::rules::cluster::input::Input;
use crate::rules::cluster::json;
use crate::rules::cluster::malformed;
use crate::rules::cluster::spec::{ClusterError, ClusterOptions, Nproc, Warning};
use crate::rules::env::Env;
use crate::rules::framework::{self, Resolved};
use crate::rules::gpu::{Discovery, Health, cuda, demand};
use crate::settings::cluster::read;
use crate::settings::idle::idle;
use crate::settings::layers::unknown_variables;
use crate::settings::units::unitless;
use crate::settings::{Complaint, Reader};

/// What was asked for about the cluster.
pub struct Wanted {
    options: ClusterOptions,
    /// Nothing that could not be read may have been about it.
    is_whole: bool,
}

impl Wanted {
    /// Reads the topic; mistakes go to the reader.
    pub fn read(reader: &mut Reader<'_>) -> Wanted {
        let before = reader.complaints.len();
        let options = read(reader);
        Wanted { options, is_whole: reader.is_whole() && reader.complaints.len() == before }
    }

    /// Finds the cluster, and what each child gets of it. `only` names frameworks; empty means all.
    /// `gpus` is asked only where it matters. Errors: all that is wrong, each with its code: what the reader complains of,
    /// then explicit values, variables and files of the cluster.
    pub fn resolve(
        &self,
        reader: &Reader<'_>,
        env: &Env,
        only: &[String],
        gpus: impl FnOnce() -> Discovery,
    ) -> Result<Resolved, Vec<ClusterError>> {
        let mut mistakes: Vec<ClusterError> = reader.complaints.iter().map(Complaint::mistake).collect();
        let options = self.on_this_machine(mistakes.is_empty(), env, gpus);
        // One byte more than a document may have, so that a larger one is refused and not cut.
        let read = |path: &str| files::read_small(path, json::MAX_BYTES + 1).map_err(|error| error.to_string());
        let input = Input { env, files: &read, options: &options };
        // What a setting that cannot be read leaves open (a leader, say) is no mistake of the environment.
        let found = if self.is_whole { framework::resolve(&input, only).map_err(Some) } else { Err(None) };
        match found {
            Ok(mut resolved) if mistakes.is_empty() => {
                resolved.warnings.extend(unknown(env));
                resolved.warnings.extend(idle(reader).map(|it| Warning::new("idle_setting", it.to_string())));
                resolved.warnings.extend(unitless(reader).map(|it| Warning::new("unitless_setting", it.to_string())));
                Ok(resolved)
            }
            Ok(_) => Err(mistakes),
            Err(first) => {
                let is_platform_read = options.platform.is_some() || reader.text("platform").is_none();
                mistakes.extend(malformed(&input, first, is_platform_read));
                Err(mistakes)
            }
        }
    }

    /// With what the machine says of itself. No driver is waited for where nothing will be started.
    fn on_this_machine(&self, will_start: bool, env: &Env, gpus: impl FnOnce() -> Discovery) -> ClusterOptions {
        let mut options = self.options.clone();
        if options.hostname.is_none() {
            options.hostname = limits::hostname();
        }
        if options.nproc.is_some() {
            options.cores = limits::cpus().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        }
        if options.nproc == Some(Nproc::Gpu) {
            if !will_start {
                options.nproc = None;
                return options;
            }
            // A process that sees no GPU of its own is of no use.
            let found = gpus();
            let visible = cuda::visible_count(&found.gpus, env.get("CUDA_VISIBLE_DEVICES"));
            options.gpu_count = u32::try_from(visible).unwrap_or(u32::MAX);
            let hides_all = env.get("CUDA_VISIBLE_DEVICES").is_some_and(|list| list.trim().is_empty());
            let meets = visible > 0 && found.driver != Health::Bad;
            options.gpu_failure = demand::failing(&found).filter(|_| !hides_all && !meets);
        }
        options
    }
}

/// `TRAINIT_` variables that nothing reads.
pub(super) fn unknown(env: &Env) -> impl Iterator<Item = Warning> {
    unknown_variables(env).into_iter().map(|complaint| Warning::new("unknown_variable", complaint.to_string()))
}

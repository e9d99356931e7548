//! Reads the cluster for every subcommand that shows or uses it, from the settings, the environment, files and the
//! machine.

use crate::edge::fs::small_file;
use crate::edge::host::limits;
use crate::edge::net::free_port;
use crate::rules::cluster::complete::SIMULATED;
use crate::rules::cluster::framework::{self, Resolved};
use crate::rules::cluster::malformed;
use crate::rules::cluster::parse::input::Input;
use crate::rules::cluster::parse::json;
use crate::rules::cluster::spec::{ClusterError, ClusterOptions, Nproc, Warning};
use crate::rules::gpu::{Discovery, Health, cuda, demand};
use crate::rules::process::env::Env;
use crate::settings::cluster::read;
use crate::settings::defs::on;
use crate::settings::values::layers::unknown_variables;
use crate::settings::values::units::unitless;
use crate::settings::values::unused::unused;
use crate::settings::{Complaint, Reader};

/// The settings for the cluster.
pub struct Wanted {
    options: ClusterOptions,
    /// Whether a process will listen, so that a free port is needed.
    starts: bool,
    /// Whether every setting could be read.
    is_complete: bool,
}

impl Wanted {
    /// Reads the topic for a subcommand (a bit of [`crate::settings::defs::on`]). Mistakes are collected in the reader.
    pub fn read(reader: &mut Reader<'_>, sub: u8) -> Wanted {
        let before = reader.complaints.len();
        let options = read(reader);
        Wanted {
            options,
            starts: sub == on::RUN,
            is_complete: reader.is_complete() && reader.complaints.len() == before,
        }
    }

    /// Reads the cluster, and derives the variables of each child. `only` names frameworks; empty means all. `gpus` is
    /// called only if it matters. Errors: all mistakes, each with its code: first those of the reader, then those of
    /// explicit values, variables and files of the cluster.
    pub fn resolve(
        &self,
        reader: &Reader<'_>,
        env: &Env,
        only: &[String],
        gpus: impl FnOnce() -> Discovery,
    ) -> Result<Resolved, Vec<ClusterError>> {
        let mut mistakes: Vec<ClusterError> = reader.complaints.iter().map(Complaint::mistake).collect();
        let options = self.on_this_machine(mistakes.is_empty(), env, gpus);
        // One byte more than the limit of a document, so that a larger one is refused and not cut.
        let read = |path: &str| small_file::read_small(path, json::MAX_BYTES + 1).map_err(|error| error.to_string());
        let input = Input { env, files: &read, options: &options };
        // If a setting could not be read, a missing value (such as the leader) may not be a mistake of the environment.
        let found = if self.is_complete { framework::resolve(&input, only).map_err(Some) } else { Err(None) };
        match found {
            Ok(mut resolved) if mistakes.is_empty() => {
                resolved.warnings.extend(unknown(env));
                // A simulated platform sets variables that this command may not need.
                let unused = unused(reader).filter(|_| env.given(SIMULATED).is_none());
                resolved.warnings.extend(unused.map(|it| Warning::new("idle_setting", it.to_string())));
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

    /// The options with the facts about the machine. If nothing will be started, the driver is not queried.
    fn on_this_machine(&self, will_start: bool, env: &Env, gpus: impl FnOnce() -> Discovery) -> ClusterOptions {
        let mut options = self.options.clone();
        options.hostname = limits::hostname();
        if options.nproc.is_some() {
            options.free_port = (will_start && self.starts).then(free_port::free).flatten();
            options.cores = limits::cpus().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        }
        if options.nproc == Some(Nproc::Gpu) {
            if !will_start {
                options.nproc = None;
                return options;
            }
            // A process without a visible GPU of its own would be useless.
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

/// `TRAINIT_` variables that trainit does not know.
pub(super) fn unknown(env: &Env) -> impl Iterator<Item = Warning> {
    unknown_variables(env).into_iter().map(|complaint| Warning::new("unknown_variable", complaint.to_string()))
}

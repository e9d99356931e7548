//! The hidden subcommand that makes this process a GPU probe. It uses no settings and no clap, so that it takes only
//! NVML's own time.

use std::ffi::OsString;

use crate::edge::gpu;
use crate::rules::process::env::Env;

pub use crate::edge::gpu::probe::SUBCOMMAND;

/// Writes the probe's protocol to standard output, and exits.
pub fn main(argv: &[OsString], env: &Env) -> ! {
    gpu::probe_main(argv.get(2..).unwrap_or_default(), env)
}

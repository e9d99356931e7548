//! The hidden subcommand: this process is a GPU probe. No settings, no clap: it should cost nothing but NVML's own time.

use std::ffi::OsString;

use crate::edge::gpu;
use crate::rules::env::Env;

pub use crate::edge::gpu::probe::SUBCOMMAND;

/// Speaks the probe's protocol on standard output, and leaves the process.
pub fn main(argv: &[OsString], env: &Env) -> ! {
    gpu::probe_main(argv.get(2..).unwrap_or_default(), env)
}

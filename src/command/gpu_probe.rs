//! The hidden subcommand that makes this process a GPU probe. It reads no settings and does not use clap, so that it
//! starts fast.

use std::ffi::OsString;

use crate::edge::gpu;
use crate::rules::process::env::Env;

pub use crate::edge::gpu::probe::SUBCOMMAND;

/// Writes the probe's protocol to standard output, and exits.
pub fn main(argv: &[OsString], env: &Env) -> ! {
    gpu::probe_main(argv.get(2..).unwrap_or_default(), env)
}

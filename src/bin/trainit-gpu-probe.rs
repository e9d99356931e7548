//! The GPU probe as a program of its own: what travels inside the static trainit, or lies beside it in an image.
//!
//! Built for an old glibc by `scripts/build-static`. It is the hidden subcommand and nothing else. There is no Rust runtime
//! start-up, as in `main.rs`: the driver finds the signals as a direct exec leaves them.

#![no_main]
#![expect(unsafe_code, reason = "the C entry point; it reads nothing")]

use std::ffi::c_int;
use std::os::unix::ffi::OsStringExt;

use trainit::edge::gpu;
use trainit::rules::env::Env;

/// The C entry point. glibc has shown the arguments to the standard library by then.
#[unsafe(no_mangle)]
pub extern "C" fn main() -> c_int {
    let words: Vec<_> = std::env::args_os().skip(1).filter(|word| word != gpu::probe::SUBCOMMAND).collect();
    let entry =
        |(name, value): (std::ffi::OsString, std::ffi::OsString)| [name.into_vec(), value.into_vec()].join(&b'=');
    gpu::probe_main(&words, &Env::from_raw(std::env::vars_os().map(entry).collect()))
}

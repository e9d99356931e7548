//! The GPU probe as a separate program: embedded in the static trainit, or a file beside it in an image.
//!
//! Built for an old glibc by `scripts/build-static`. It contains only the hidden subcommand. There is no Rust runtime
//! start-up, as in `main.rs`, so that the driver gets signal dispositions as after a direct exec.

#![no_main]
#![expect(unsafe_code, reason = "the C entry point; it reads nothing")]

use std::ffi::c_int;
use std::os::unix::ffi::OsStringExt;

use trainit::edge::gpu;
use trainit::rules::process::env::Env;

/// The C entry point. glibc has already passed the arguments to the standard library.
#[unsafe(no_mangle)]
pub extern "C" fn main() -> c_int {
    let words: Vec<_> = std::env::args_os().skip(1).filter(|word| word != gpu::probe::SUBCOMMAND).collect();
    let entry =
        |(name, value): (std::ffi::OsString, std::ffi::OsString)| [name.into_vec(), value.into_vec()].join(&b'=');
    gpu::probe_main(&words, &Env::from_raw(std::env::vars_os().map(entry).collect()))
}

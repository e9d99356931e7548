//! The program's entry point: argv and environment in, exit code out.
//!
//! There is no Rust runtime start-up: it would ignore SIGPIPE, open /dev/null over closed descriptors (and abort
//! without /dev), and let signals through for some microseconds. A child must not be affected by that.

#![no_main]
#![expect(unsafe_code, reason = "the C entry point: argv and environ are read as the kernel laid them out")]

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use trainit::command;
use trainit::edge::io::stdio;
use trainit::edge::process::signals;
use trainit::rules::process::env::Env;
use trainit::rules::process::exit;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The C entry point.
///
/// # Safety
/// Called once by the C library, with its own `argc` and `argv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    // No file of trainit may become a standard stream. A descriptor that was closed must also be closed in a child.
    stdio::hold_closed();
    // SAFETY: argv has argc entries; the check comes before the read.
    let starts_commands = argc > 1 && command::STARTS_COMMANDS.contains(&unsafe { CStr::from_ptr(*argv.add(1)) });
    let mask = starts_commands.then(signals::block_all);
    let code = std::panic::catch_unwind(|| {
        // SAFETY: both blocks are NULL-terminated arrays of C strings, and nothing has changed them yet.
        let (argv, environment) = unsafe { (strings(argv), strings(environ)) };
        let argv = argv.iter().map(|arg| OsStr::from_bytes(arg).to_owned()).collect::<Vec<OsString>>();
        command::dispatch(argv, Env::from_raw(environment), mask)
    });
    c_int::from(code.unwrap_or(exit::NOT_STARTED))
}

/// # Safety
/// `block` is NULL or a NULL-terminated array of C strings.
unsafe fn strings(block: *const *const c_char) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    if block.is_null() {
        return found;
    }
    // SAFETY: by the contract above, every entry before the NULL is a C string.
    unsafe {
        let mut at = block;
        while !(*at).is_null() {
            found.push(CStr::from_ptr(*at).to_bytes().to_vec());
            at = at.add(1);
        }
    }
    found
}

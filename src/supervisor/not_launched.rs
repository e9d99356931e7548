//! Why a command could not be started, in words for who wrote the image or the command line.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use crate::edge::process::NotLaunched;
use crate::rules::exit;
use crate::rules::job::Event;

/// `others` of the attempt run already.
pub(super) fn event(why: NotLaunched, argv: &[OsString], others: bool) -> Event {
    let (code, detail) = match why {
        NotLaunched::NoExec(error) => cannot_execute(&error, argv),
        NotLaunched::NoProcess(error) => (
            exit::NOT_STARTED,
            format!("cannot start a process: {error}; the job did not begin, check the limits on processes and memory"),
        ),
    };
    Event::NotSpawned { code, detail, others }
}

fn cannot_execute(error: &io::Error, argv: &[OsString]) -> (u8, String) {
    let name = argv.first().map(|a| a.to_string_lossy().into_owned()).unwrap_or_default();
    let is_there = name.contains('/') && Path::new(&name).exists();
    match error.raw_os_error() {
        Some(libc::ENOENT) if is_there => (
            exit::NOT_EXECUTABLE,
            format!(
                "cannot execute {name}: its interpreter or dynamic loader is missing in this image; install it or build for this image"
            ),
        ),
        Some(libc::ENOENT | libc::ENOTDIR) if name.starts_with('-') => (
            exit::NOT_FOUND,
            format!(
                "command not found: {name}; what follows trainit run -- is the command: give a flag of trainit's before the --, or as its variable (TRAINIT_HANG_TIMEOUT for --hang-timeout)"
            ),
        ),
        Some(libc::ENOENT | libc::ENOTDIR) => {
            (exit::NOT_FOUND, format!("command not found: {name}; check the spelling and PATH in the image"))
        }
        Some(libc::EACCES) => (
            exit::NOT_EXECUTABLE,
            format!(
                "cannot execute {name}: permission denied; is it executable (chmod +x) and on a file system mounted without noexec?"
            ),
        ),
        Some(libc::ENOEXEC) => (
            exit::NOT_EXECUTABLE,
            format!(
                "cannot execute {name}: not a program for this machine and no script with a #! line; name its interpreter first"
            ),
        ),
        Some(libc::E2BIG) => (
            exit::NOT_EXECUTABLE,
            format!("cannot execute {name}: arguments and environment together are too long; make a variable shorter"),
        ),
        _ => (exit::NOT_EXECUTABLE, format!("cannot execute {name}: {error}")),
    }
}

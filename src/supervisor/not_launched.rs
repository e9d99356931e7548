//! Why there is no command running: the exit code, the words, and whether it passes.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use crate::edge::process::NotLaunched;
use crate::rules::exit;
use crate::rules::job::Event;

/// What is to be said of it. `others` of the attempt run already.
pub(super) fn event(program: &OsStr, why: &NotLaunched, others: bool) -> Event {
    let (error, (code, detail)) = match why {
        NotLaunched::NoExec(error) => (error, cannot_execute(program, error)),
        NotLaunched::NoProcess(error) => {
            let detail = format!("cannot start a process: {error}; check the limits on processes and memory");
            (error, (exit::NOT_STARTED, detail))
        }
    };
    Event::NotSpawned { code, detail, passes: passes(error), others }
}

/// Leftovers and neighbours count to the limits on processes and memory, too; who writes to the program will be done.
fn passes(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM | libc::ETXTBSY))
}

fn cannot_execute(program: &OsStr, error: &io::Error) -> (u8, String) {
    let name = program.to_string_lossy();
    let is_there = name.contains('/') && Path::new(program).exists();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_processes_or_memory_and_a_busy_program_pass_and_what_is_missing_does_not() {
        let passes = |why: fn(io::Error) -> NotLaunched, errno| match event(
            OsStr::new("trainer"),
            &why(io::Error::from_raw_os_error(errno)),
            false,
        ) {
            Event::NotSpawned { passes, code, .. } => (passes, code),
            other => panic!("{other:?}"),
        };
        for errno in [libc::EAGAIN, libc::ENOMEM] {
            assert_eq!(passes(NotLaunched::NoProcess, errno), (true, exit::NOT_STARTED));
        }
        for errno in [libc::EAGAIN, libc::ENOMEM, libc::ETXTBSY] {
            assert_eq!(passes(NotLaunched::NoExec, errno), (true, exit::NOT_EXECUTABLE));
        }
        assert_eq!(passes(NotLaunched::NoExec, libc::ENOENT), (false, exit::NOT_FOUND));
        assert_eq!(passes(NotLaunched::NoExec, libc::EACCES), (false, exit::NOT_EXECUTABLE));
    }
}

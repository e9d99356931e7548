//! Why there is no command running: the exit code, the words, and whether it passes.

use std::ffi::OsString;
use std::io;

use crate::edge::limits;
use crate::edge::process::NotLaunched;
use crate::edge::program;
use crate::rules::exit;
use crate::rules::job::Event;
use crate::rules::plain::plain;
use crate::rules::program::{Lies, Refused, not_found, why};

/// What is to be said of it. `path` is PATH, where it is set; `others` of the attempt run already.
pub(super) fn event(argv: &[OsString], path: Option<&[u8]>, why: &NotLaunched, others: bool) -> Event {
    let (error, (code, detail)) = match why {
        NotLaunched::NoExec(error) => (error, cannot_execute(argv, path, error)),
        NotLaunched::NoProcess(error) => {
            let way_out = limits::way_out(error, "check the limits on processes and memory");
            let detail = format!("cannot start a process: {error}; {way_out}");
            (error, (exit::NOT_STARTED, detail))
        }
    };
    Event::NotSpawned { code, detail, passes: passes(error), others }
}

/// Leftovers and neighbours count to the limits on processes and memory, too; who writes to the program will be done.
fn passes(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM | libc::ETXTBSY))
}

fn cannot_execute(argv: &[OsString], path: Option<&[u8]>, error: &io::Error) -> (u8, String) {
    let program = argv.first().map(OsString::as_os_str).unwrap_or_default();
    let name = program.to_string_lossy();
    let refused = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => Refused::Missing,
        Some(libc::EACCES) => Refused::Denied,
        Some(libc::ENOEXEC) => Refused::NoFormat,
        Some(libc::E2BIG) => {
            let way_out = "arguments and environment together are too long; make a variable shorter";
            return (exit::NOT_EXECUTABLE, format!("cannot execute {}: {way_out}", plain(&name)));
        }
        _ => return (exit::NOT_EXECUTABLE, format!("cannot execute {}: {error}", plain(&name))),
    };
    let chain = program::look(program, path);
    let told = why(&name, &chain, refused, program::MACHINE);
    let other_than_found = || {
        let rest: Vec<String> = argv.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
        not_found::why(&name, &rest, program::is_file(program))
    };
    let unknown = || format!("cannot execute {}: {error}", plain(&name));
    match (refused, chain.first()) {
        (Refused::Missing, Some((_, Lies::File { .. } | Lies::Directory | Lies::Special))) => {
            // By its bare name it was looked for in PATH, and such a search ends with 127.
            let code = if name.contains('/') { exit::NOT_EXECUTABLE } else { exit::NOT_FOUND };
            let way_out =
                "its interpreter or dynamic loader is missing in this image; install it or build for this image";
            (code, told.unwrap_or_else(|| format!("cannot execute {}: {way_out}", plain(&name))))
        }
        (Refused::Missing, _) => (exit::NOT_FOUND, told.unwrap_or_else(other_than_found)),
        // Each directory of PATH holds it.
        _ if name == "." => (exit::NOT_EXECUTABLE, other_than_found()),
        _ => (exit::NOT_EXECUTABLE, told.unwrap_or_else(unknown)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_processes_or_memory_and_a_busy_program_pass_and_what_is_missing_does_not() {
        let passes = |why: fn(io::Error) -> NotLaunched, errno| match event(
            &[OsString::from("trainer")],
            None,
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

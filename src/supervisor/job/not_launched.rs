//! Explains why the command could not be started: the exit code, the message, and whether the cause is temporary.

use std::ffi::OsString;
use std::io;

use crate::edge::host::limits;
use crate::edge::process::program;
use crate::edge::process::spawn::NotLaunched;
use crate::rules::job::Event;
use crate::rules::process::exit;
use crate::rules::process::program::not_found;
use crate::rules::process::program::not_found::without_values;
use crate::rules::process::program::{ExecError, FileKind, Image, why};
use crate::rules::text::safe_text::printable;

/// The event for a failed start. `path` is PATH, if it is set; `others` means that other processes of the attempt
/// already run.
pub(in crate::supervisor) fn event(argv: &[OsString], path: Option<&[u8]>, why: &NotLaunched, others: bool) -> Event {
    let (error, (code, detail)) = match why {
        NotLaunched::NoExec(error) => (error, cannot_execute(argv, path, error)),
        NotLaunched::NoProcess(error) => {
            let way_out = limits::way_out(error, "check the limits on processes and memory");
            let detail = format!("cannot start a process: {error}; {way_out}");
            (error, (exit::NOT_STARTED, detail))
        }
    };
    Event::NotSpawned { code, detail, is_transient: is_transient(error), others }
}

/// Other processes count towards the limits on processes and memory too, and a writer of the program file will finish.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM | libc::ETXTBSY))
}

fn cannot_execute(argv: &[OsString], path: Option<&[u8]>, error: &io::Error) -> (u8, String) {
    let program = argv.first().map(OsString::as_os_str).unwrap_or_default();
    let name = program.to_string_lossy();
    // A command line in one word, or a variable in front of a command, may hold secrets.
    let shown = printable(&without_values(&name));
    let exec_error = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => ExecError::Missing,
        Some(libc::EACCES) => ExecError::Denied,
        Some(libc::ENOEXEC) => ExecError::NoFormat,
        Some(libc::E2BIG) => {
            let way_out = "arguments and environment together are too long; make a variable shorter";
            return (exit::NOT_EXECUTABLE, format!("cannot execute {shown}: {way_out}"));
        }
        _ => return (exit::NOT_EXECUTABLE, format!("cannot execute {shown}: {error}")),
    };
    let chain = program::look(program, path);
    let is_there = |name: &str| program::is_in_path(name, path);
    let python = if !is_there("python") && is_there("python3") { "python3" } else { "python" };
    // The command is named only if its file is reachable or its name cannot hold a secret.
    let is_seen = chain.first().is_some_and(|(_, kind)| *kind != FileKind::Unreachable || shown == printable(&name));
    let explanation = why(&name, &chain, exec_error, Image { machine: program::MACHINE, python }).filter(|_| is_seen);
    let other_than_found = || {
        let rest: Vec<String> = argv.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
        not_found::why(&name, &rest, program::is_file(program), is_there)
    };
    let unknown = || format!("cannot execute {shown}: {error}");
    match (exec_error, chain.first()) {
        (ExecError::Missing, Some((_, FileKind::File { .. } | FileKind::Directory | FileKind::Special))) => {
            // A bare name was searched for in PATH, and a failed search ends with 127.
            let code = if name.contains('/') { exit::NOT_EXECUTABLE } else { exit::NOT_FOUND };
            let way_out =
                "its interpreter or dynamic loader is missing in this image; install it or build for this image";
            (code, explanation.unwrap_or_else(|| format!("cannot execute {shown}: {way_out}")))
        }
        (ExecError::Missing, _) => (exit::NOT_FOUND, explanation.unwrap_or_else(other_than_found)),
        // A directory of PATH contains an entry of this name.
        _ if name == "." => (exit::NOT_EXECUTABLE, other_than_found()),
        _ => (exit::NOT_EXECUTABLE, explanation.unwrap_or_else(unknown)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_processes_or_memory_and_a_busy_program_are_transient_and_a_missing_program_is_not() {
        let is_transient = |why: fn(io::Error) -> NotLaunched, errno| match event(
            &[OsString::from("trainer")],
            None,
            &why(io::Error::from_raw_os_error(errno)),
            false,
        ) {
            Event::NotSpawned { is_transient, code, .. } => (is_transient, code),
            other => panic!("{other:?}"),
        };
        for errno in [libc::EAGAIN, libc::ENOMEM] {
            assert_eq!(is_transient(NotLaunched::NoProcess, errno), (true, exit::NOT_STARTED));
        }
        for errno in [libc::EAGAIN, libc::ENOMEM, libc::ETXTBSY] {
            assert_eq!(is_transient(NotLaunched::NoExec, errno), (true, exit::NOT_EXECUTABLE));
        }
        assert_eq!(is_transient(NotLaunched::NoExec, libc::ENOENT), (false, exit::NOT_FOUND));
        assert_eq!(is_transient(NotLaunched::NoExec, libc::EACCES), (false, exit::NOT_EXECUTABLE));
    }
}

//! Clues about a trainer's death from the machine and the command's file, for the sentence of the verdict.

use std::ffi::OsString;
use std::time::Duration;

use crate::edge::host::limits;
use crate::edge::process::{program, signals, spawn};
use crate::rules::job::clues::{SharedMemory, shared_memory_clue};
use crate::rules::process::exit;
use crate::rules::process::exit::End;
use crate::rules::process::program::why_it_left;

/// Exit codes that a script's `#!` line may explain: of `env`, and of a shell with a wrong option.
const OF_A_SCRIPT: [u8; 3] = [2, exit::NOT_EXECUTABLE, exit::NOT_FOUND];

/// Time limit for reading the command's file: its file system may hang by now.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the clues as clauses. `path` is PATH, if it is set.
pub(in crate::supervisor) fn of(argv: &[OsString], path: Option<&[u8]>, end: End) -> Vec<String> {
    let memory = limits::shared_memory().map(|(total, free)| SharedMemory { total, free });
    let mut clues: Vec<String> = shared_memory_clue(end, memory).into_iter().collect();
    if spawn::refuses_clone3() {
        clues.push(limits::NO_CLONE3.to_owned());
    }
    if matches!(end, End::Code(code) if OF_A_SCRIPT.contains(&code)) {
        clues.extend(of_script(argv, path));
    }
    clues
}

fn of_script(argv: &[OsString], path: Option<&[u8]>) -> Option<String> {
    let (command, path) = (argv.first()?.clone(), path.map(<[u8]>::to_vec));
    let look = move || {
        let is_there = |name: &str| program::is_in_path(name, path.as_deref());
        let found = program::beginning(&command, path.as_deref());
        Ok(found.and_then(|(file, bytes)| why_it_left(&file, &bytes, is_there)))
    };
    signals::in_time("command", TIMEOUT, look).ok().flatten()
}

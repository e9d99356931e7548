//! Which program the probe is: the one that is named, else this very executable under its hidden subcommand.
//!
//! Candidates are tried in order, between fork and exec, so that one that cannot be executed falls through to the next.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::rules::env::Env;

/// One way to execute the probe.
#[derive(Debug)]
pub enum Candidate {
    /// A file.
    Path(CString),
    /// An anonymous file in memory.
    Memory(OwnedFd),
}

/// The ways to execute the probe, first to last.
#[derive(Debug)]
pub struct Ladder {
    /// What the program is called, in `argv[0]` and in complaints.
    pub name: String,
    /// In order.
    pub candidates: Vec<Candidate>,
}

/// For NVML: `TRAINIT_GPU_PROBE` alone where it is given, else ourselves.
pub fn nvml(env: &Env) -> Ladder {
    match env.given("TRAINIT_GPU_PROBE").and_then(|path| Some((path, CString::new(path).ok()?))) {
        Some((name, path)) => Ladder { name: name.to_owned(), candidates: vec![Candidate::Path(path)] },
        None => ourselves(),
    }
}

/// This executable: through `/proc`, which works when the file has been replaced, else by the path it was started with.
pub fn ourselves() -> Ladder {
    let paths = [Some(PathBuf::from("/proc/self/exe")), super::started_as()].into_iter().flatten();
    let candidates = paths.filter_map(|path| CString::new(path.as_os_str().as_bytes()).ok()).map(Candidate::Path);
    Ladder { name: "trainit".to_owned(), candidates: candidates.collect() }
}

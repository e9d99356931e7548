//! Queries the machine's GPUs so that no driver can hang or crash trainit.
//!
//! ```text
//! discover ── ask ──> probe process: nvml (or nodes) ──> JSON lines ──> rules::gpu ──> Discovery
//! ```
//! All code that calls a driver runs in a child process that is killed at a deadline. Deliberately absent: the meaning
//! of an answer (`rules::gpu`), settings, and a second concurrent probe.
//!
//! libc is used because nix has neither _exit(2) nor getauxval(3).

#![expect(unsafe_code, reason = "the probe's exit and the auxiliary vector")]

mod answer_line;
#[cfg(all(target_env = "gnu", not(target_feature = "crt-static")))]
mod nvml;
pub mod probe;
mod proc;
pub mod program;

use std::ffi::{CStr, OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{close, dup2_stdout, geteuid};

use crate::edge::io::stdio;
use crate::edge::process::{proc_listing, signals};
use crate::rules::gpu::protocol::{Limits, Line};
use crate::rules::gpu::{Discovery, answer, cuda};
use crate::rules::process::env::Env;
use answer_line::LineWriter;
use probe::Mode;

/// The number of GPUs with device nodes in this container. Opens nothing and cannot block.
pub fn device_count() -> u32 {
    u32::try_from(proc::minors().len()).unwrap_or(u32::MAX)
}

/// Whether there are GPUs that CUDA cannot use because its own device node is missing. Cannot block.
pub fn lacks_uvm() -> bool {
    proc::lacks_uvm()
}

/// Facts about the GPUs that are visible without a call to the driver.
pub fn site(env: &Env) -> answer::Site {
    let uid = geteuid().as_raw();
    let given = |name| env.given(name).map(str::to_owned);
    proc::site(given("TRAINIT_NVML_LIBRARY"), given("TRAINIT_GPU_PROBE").is_some(), uid)
}

/// Discovers the GPUs by NVML or else by device nodes. Each of the two takes at most three times `call` and the time to
/// reap a killed probe. The process must reap its children itself.
pub fn discover(call: Duration, env: &Env) -> Discovery {
    discover_while(call, env, &|| true)
}

/// As [`discover`], but stops waiting when `may_continue` returns false.
pub fn discover_while(call: Duration, env: &Env, may_continue: &dyn Fn() -> bool) -> Discovery {
    let limits = Limits::discovery(call);
    let site = site(env);
    let report = probe::ask(&program::nvml(env), Mode::Discover, env, limits, may_continue);
    let may_ask_again = !matches!(report.ending, answer::Ending::Stuck(_));
    let nodes = (answer::is_silent(&report) && may_ask_again && device_count() > 0)
        .then(|| probe::ask(&program::ourselves(), Mode::Nodes, env, limits, may_continue).findings);
    let mut discovery = answer::interpret(report, nodes, &site);
    cuda::mark(&mut discovery.gpus, env.get("CUDA_VISIBLE_DEVICES"), env.get("CUDA_DEVICE_ORDER"));
    discovery
}

/// Whether NVML can be loaded into this executable.
const LOADS_NVML: bool = cfg!(all(target_env = "gnu", not(target_feature = "crt-static")));

/// The probe itself. It exits without NVML's shutdown, which may hang.
pub fn probe_main(words: &[OsString], env: &Env) -> ! {
    isolate();
    // That program gets our standard output, so it is executed before the next lines.
    let not_executed = (!LOADS_NVML && words != ["nodes"]).then(|| program::become_nvml_program(words, env));
    // Lines go to a private copy of standard output, and output of a library goes to standard error.
    let mut lines = LineWriter::on(stdio::STDOUT.try_clone_to_owned().ok());
    let _ = dup2_stdout(stdio::STDERR);
    lines.write(&Line::Hello { version: env!("CARGO_PKG_VERSION").to_owned() });
    match not_executed {
        None => answer_to(words, lines, env),
        Some(error) => {
            let code = error.raw_os_error().and_then(|errno| errno.try_into().ok());
            lines.write(&Line::Error { function: "exec".to_owned(), code, message: Some(error.to_string()) });
        }
    }
    // SAFETY: ends the process without running destructors.
    unsafe { libc::_exit(0) }
}

/// Separates this process from the trainer and from trainit's parent, before NVIDIA's library is loaded.
fn isolate() {
    // Files that trainit inherited. Our own are closed by the exec.
    let close_other = |fd| {
        if fd > 2 {
            let _ = close::<i32>(fd);
        }
    };
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(limit, _)| limit.clamp(1024, 1 << 20) as i32);
    match proc_listing::ids("/proc/self/fd") {
        Some(open) => open.into_iter().for_each(close_other),
        None => (3..limit).for_each(close_other),
    }
    signals::reset_all();
    // A crash must not leave a core file in the trainer's directory.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
}

fn answer_to(words: &[OsString], mut lines: LineWriter, env: &Env) {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    match words[..] {
        ["nodes"] => proc::tell(lines),
        #[cfg(all(target_env = "gnu", not(target_feature = "crt-static")))]
        ["discover"] => nvml::discover(lines, env),
        #[cfg(all(target_env = "gnu", not(target_feature = "crt-static")))]
        ["watch", interval] => {
            let interval = interval.parse().map_or(Duration::from_secs(10), Duration::from_millis);
            nvml::watch(lines, env, interval);
        }
        _ => {
            let _ = env;
            let message = Some("the GPU probe does not know this task".to_owned());
            lines.write(&Line::Error { function: "exec".to_owned(), code: None, message });
        }
    }
}

/// The path by which this process was executed, as the kernel recorded it.
fn started_as() -> Option<PathBuf> {
    // SAFETY: the auxiliary vector's entry is a C string on the initial stack, or 0.
    unsafe {
        let path = libc::getauxval(libc::AT_EXECFN) as *const libc::c_char;
        (!path.is_null()).then(|| PathBuf::from(OsStr::from_bytes(CStr::from_ptr(path).to_bytes())))
    }
}

/// The path of this executable, if it is known.
fn own_path() -> Option<PathBuf> {
    std::fs::read_link("/proc/self/exe").ok().or_else(started_as)
}

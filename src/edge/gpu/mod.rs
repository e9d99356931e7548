//! The machine's GPUs, asked so that no driver can hang or crash the asker.
//!
//! ```text
//! discover ── ask ──> probe process: nvml (or nodes) ──> JSON lines ──> rules::gpu ──> Discovery
//! ```
//! Whatever touches a driver runs in a child that is killed at a deadline. Deliberately absent: what an answer means
//! (`rules::gpu`), settings, and a second probe while there is one.

#![expect(unsafe_code, reason = "the probe's own descriptors, its exit, and the auxiliary vector")]

#[cfg(all(target_env = "gnu", not(target_feature = "crt-static")))]
mod calls;
pub mod ladder;
#[cfg(all(target_env = "gnu", not(target_feature = "crt-static")))]
mod library;
#[cfg(all(target_env = "gnu", not(target_feature = "crt-static")))]
mod nvml;
pub mod probe;
mod proc;
mod speech;

use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::rules::env::Env;
use crate::rules::gpu::protocol::Limits;
use crate::rules::gpu::{Discovery, answer, cuda};
use probe::Mode;
use speech::Speech;

/// How many GPUs this container has device nodes for: known at once, opens nothing, cannot block.
pub fn device_count() -> u32 {
    u32::try_from(proc::minors().len()).unwrap_or(u32::MAX)
}

/// What can be seen of the GPUs from outside NVML, without asking the driver anything.
pub fn site(env: &Env) -> answer::Site {
    // SAFETY: geteuid cannot fail.
    let uid = unsafe { libc::geteuid() };
    let given = |name| env.given(name).map(str::to_owned);
    proc::site(given("TRAINIT_NVML_LIBRARY"), given("TRAINIT_GPU_PROBE").is_some(), uid)
}

/// Finds out what there is, from NVML or else from the device nodes. Takes at most three times `call` for each of the two,
/// and the time to reap a killed probe. Not for a process whose children somebody else reaps.
pub fn discover(call: Duration, env: &Env) -> Discovery {
    discover_while(call, env, &|| true)
}

/// As [`discover`], with nobody waited for any more once `goes_on` says no.
pub fn discover_while(call: Duration, env: &Env, goes_on: &dyn Fn() -> bool) -> Discovery {
    let limits = Limits::discovery(call);
    let site = site(env);
    let report = probe::ask(&ladder::nvml(env), Mode::Discover, env, limits, goes_on);
    let may_ask_again = !matches!(report.ending, answer::Ending::Stuck(_));
    let nodes = (answer::is_silent(&report) && may_ask_again && device_count() > 0)
        .then(|| probe::ask(&ladder::ourselves(), Mode::Nodes, env, limits, goes_on).findings);
    let mut discovery = answer::conclude(report, nodes, &site);
    cuda::mark(&mut discovery.gpus, env.get("CUDA_VISIBLE_DEVICES"), env.get("CUDA_DEVICE_ORDER"));
    discovery
}

/// The probe itself. It never comes back: it leaves without NVML's shutdown, which may hang.
pub fn probe_main(words: &[OsString], env: &Env) -> ! {
    // SAFETY: before anything else is opened. Lines go to a private copy of standard output, and what a library prints to
    // standard error.
    let speech = Speech::on(unsafe {
        let private = libc::fcntl(1, libc::F_DUPFD_CLOEXEC, 3);
        libc::dup2(2, 1);
        private
    });
    answer_to(words, speech, env);
    // SAFETY: ends the process without running anybody's destructors.
    unsafe { libc::_exit(0) }
}

fn answer_to(words: &[OsString], mut speech: Speech, env: &Env) {
    use crate::rules::gpu::protocol::Line;
    speech.say(&Line::Hello { version: env!("CARGO_PKG_VERSION").to_owned() });
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    match words[..] {
        ["nodes"] => proc::tell(speech),
        #[cfg(all(target_env = "gnu", not(target_feature = "crt-static")))]
        ["discover"] => nvml::discover(speech, env),
        #[cfg(all(target_env = "gnu", not(target_feature = "crt-static")))]
        ["watch", interval] => {
            let interval = interval.parse().map_or(Duration::from_secs(10), Duration::from_millis);
            nvml::watch(speech, env, interval);
        }
        _ => {
            let _ = env;
            let message = Some("this trainit was built without a GPU probe".to_owned());
            speech.say(&Line::Error { function: "exec".to_owned(), code: None, message });
        }
    }
}

/// The path this process was executed by, as the kernel was told.
fn started_as() -> Option<PathBuf> {
    // SAFETY: the auxiliary vector's entry is a C string on the initial stack, or 0.
    unsafe {
        let path = libc::getauxval(libc::AT_EXECFN) as *const libc::c_char;
        (!path.is_null()).then(|| PathBuf::from(OsStr::from_bytes(CStr::from_ptr(path).to_bytes())))
    }
}

/// Where this executable lies, as far as can be told.
fn own_path() -> Option<PathBuf> {
    std::fs::read_link("/proc/self/exe").ok().or_else(started_as)
}

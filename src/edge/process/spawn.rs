//! Starts the command: a clone, and an exec that leaves the child in the same state as a direct exec.
//!
//! The clone shares our memory and blocks this thread until the exec succeeded or failed, as in posix_spawn(3). So no page
//! table is copied, and the result of the exec is known at once. A signal that arrives during that time stays in the
//! signalfd.
//!
//! Deliberately absent: `std::process::Command`, which empties the signal mask and resets SIGPIPE; waiting (`reaper`).
//!
//! libc is used because the child's calls must be async-signal-safe, and because nix's signals have no real-time
//! signals.

#![expect(unsafe_code, reason = "clone, exec and the code between them")]

use std::ffi::{CString, OsString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::Pid;

use crate::edge::process::signals::Mask;
use crate::rules::process::signal::Signal;

/// The PATH of glibc's and musl's execvp when the environment has none.
pub(in crate::edge) const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// The command to start, and its options.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The command and its arguments.
    pub argv: &'a [OsString],
    /// The child's environment block, `NAME=value` each.
    pub env: Vec<Vec<u8>>,
    /// The signal mask trainit itself was started with.
    pub mask: Mask,
    /// SIGCHLD was ignored when trainit was started.
    pub ignore_chld: bool,
    /// A session of its own instead of only a process group.
    pub new_session: bool,
    /// The terminal whose foreground group becomes the child's group.
    pub terminal: Option<BorrowedFd<'static>>,
    /// The signal to the child when trainit dies.
    pub death_signal: Option<Signal>,
    /// The child's standard input; `None`: it inherits trainit's.
    pub stdin: Option<OwnedFd>,
    /// The child's standard output; `None`: it inherits trainit's.
    pub stdout: Option<OwnedFd>,
    /// The child's standard error; `None`: it inherits trainit's.
    pub stderr: Option<OwnedFd>,
}

/// Why the command does not run.
#[derive(Debug)]
pub enum NotLaunched {
    /// No process could be made: clone(2)'s error; `InvalidInput` for an argument or variable with a NUL byte.
    NoProcess(io::Error),
    /// There was a process (the reaper will see it end), and its exec failed with this.
    NoExec(io::Error),
}

/// The child's data: prepared before the clone, alive until the exec has succeeded or failed.
struct Plan<'a> {
    launch: &'a Launch<'a>,
    parent: i32,
    candidates: &'a [CString],
    argv: &'a [*const c_char],
    env: &'a [*const c_char],
    /// Set by the child if it fails.
    errno: AtomicI32,
}

/// The child's stack. Before its exec the child needs some hundred bytes, in a debug build some thousand.
const STACK_BYTES: usize = 64 * 1024;

/// Starts the command and returns its process id when it runs.
pub fn launch(mut launch: Launch<'_>) -> Result<i32, NotLaunched> {
    let c_string = |bytes: Vec<u8>| CString::new(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e));
    let c_strings = |all: Vec<Vec<u8>>| all.into_iter().map(c_string).collect::<io::Result<Vec<CString>>>();
    let path = launch.env.iter().find_map(|entry| entry.strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH).to_vec();
    let argv = launch.argv.iter().map(|a| a.clone().into_vec()).collect();
    let argv = c_strings(argv).map_err(NotLaunched::NoProcess)?;
    let env = c_strings(std::mem::take(&mut launch.env)).map_err(NotLaunched::NoProcess)?;
    let program = argv.first().map(|a| a.to_bytes()).unwrap_or_default();
    let candidates = c_strings(candidates(program, &path)).map_err(NotLaunched::NoProcess)?;
    let (argv, env) = (pointers(&argv), pointers(&env));
    let plan = Plan {
        launch: &launch,
        parent: own_pid(),
        candidates: &candidates,
        argv: &argv,
        env: &env,
        errno: AtomicI32::new(0),
    };
    let mut stack: Vec<u128> = Vec::with_capacity(STACK_BYTES / size_of::<u128>());
    // SAFETY: the child runs on a stack of its own (it grows down from the end of a live allocation, aligned to 16), only
    // makes async-signal-safe calls on memory that was prepared before, and never returns. CLONE_VFORK holds this thread
    // until it has left this memory.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.capacity()).cast::<c_void>();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        libc::clone(child, top, flags, (&raw const plan).cast_mut().cast::<c_void>())
    };
    if pid < 0 {
        return Err(NotLaunched::NoProcess(io::Error::last_os_error()));
    }
    match plan.errno.load(Ordering::Relaxed) {
        0 => Ok(pid),
        errno => Err(NotLaunched::NoExec(io::Error::from_raw_os_error(errno))),
    }
}

/// The child, until it is the command.
extern "C" fn child(plan: *mut c_void) -> c_int {
    // SAFETY: the parent waits and keeps the plan alive. Only system calls; errno belongs to this thread, which is blocked.
    unsafe {
        let plan = &*plan.cast_const().cast::<Plan<'_>>();
        let launch = plan.launch;
        if launch.new_session {
            libc::setsid();
        } else {
            libc::setpgid(0, 0);
        }
        if let Some(terminal) = launch.terminal {
            libc::tcsetpgrp(terminal.as_raw_fd(), libc::getpid());
        }
        if let Some(signal) = launch.death_signal {
            libc::prctl(libc::PR_SET_PDEATHSIG, signal.number());
            if libc::getppid() != plan.parent {
                libc::_exit(i32::from(crate::rules::process::exit::STOPPED));
            }
        }
        let mut is_ready = true;
        let standard = [
            (&launch.stdin, libc::STDIN_FILENO),
            (&launch.stdout, libc::STDOUT_FILENO),
            (&launch.stderr, libc::STDERR_FILENO),
        ];
        for (from, to) in standard {
            if let Some(from) = from {
                is_ready &= libc::dup2(from.as_raw_fd(), to) >= 0;
            }
        }
        if launch.ignore_chld {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        }
        if is_ready {
            launch.mask.restore();
            exec(plan.candidates, plan.argv, plan.env);
        }
        plan.errno.store(*libc::__errno_location(), Ordering::Relaxed);
        libc::_exit(i32::from(crate::rules::process::exit::NOT_FOUND))
    }
}

/// A NULL-terminated array for execve(2), valid while the strings live.
pub(in crate::edge) fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

/// The paths that execvp(3) would try, in order.
pub(in crate::edge) fn candidates(program: &[u8], path: &[u8]) -> Vec<Vec<u8>> {
    if program.is_empty() || program.contains(&b'/') {
        return vec![program.to_vec()];
    }
    path.split(|b| *b == b':')
        .map(|dir| {
            let mut candidate = dir.to_vec();
            if !dir.is_empty() {
                candidate.push(b'/');
            }
            candidate.extend_from_slice(program);
            candidate
        })
        .collect()
}

/// Tries each candidate as execvp(3) does; returns with errno set to the error that matters. Runs in the child.
unsafe fn exec(candidates: &[CString], argv: &[*const c_char], env: &[*const c_char]) {
    let mut denied = false;
    for candidate in candidates {
        // SAFETY: NULL-terminated arrays of C strings, made before the clone.
        unsafe {
            libc::execve(candidate.as_ptr(), argv.as_ptr(), env.as_ptr());
            match *libc::__errno_location() {
                libc::EACCES => denied = true,
                libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
                _ => return,
            }
        }
    }
    if denied {
        // SAFETY: errno is the thread's own.
        unsafe { *libc::__errno_location() = libc::EACCES };
    }
}

/// Sends a signal to one process. Errors: as kill(2); ESRCH is not an error, because the process has exited.
pub fn kill(pid: i32, signal: Signal) -> io::Result<()> {
    // SAFETY: kill takes only integers.
    match Errno::result(unsafe { libc::kill(pid, signal.number()) }) {
        Ok(_) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether a seccomp profile answers clone3(2) with EPERM. A C library then reports an error; with ENOSYS it would use
/// clone(2).
pub fn refuses_clone3() -> bool {
    // SAFETY: without arguments nothing is made: the kernel's own answer is EINVAL, an old one's ENOSYS.
    let result = unsafe { libc::syscall(libc::SYS_clone3, ptr::null::<c_void>(), 0) };
    Errno::result(result) == Err(Errno::EPERM)
}

/// The calling thread's id.
pub(in crate::edge) fn own_thread() -> i32 {
    // Not libc's function: std asks for it weakly, and a static link then has none.
    // SAFETY: cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Whether a thread of this process still exists and counts towards limits.
pub(in crate::edge) fn has_thread(id: i32) -> bool {
    // SAFETY: nothing is sent.
    unsafe { libc::syscall(libc::SYS_tgkill, own_pid(), id, 0) == 0 }
}

/// Our own process id.
pub fn own_pid() -> i32 {
    Pid::this().as_raw()
}

/// Makes this process the subreaper of its tree. Errors: as prctl(2).
pub fn become_subreaper() -> io::Result<()> {
    Ok(prctl::set_child_subreaper(true)?)
}

/// Makes the kernel send this process a signal when its parent exits; sends it now if the parent has just exited.
/// Errors: as prctl(2).
pub fn signal_when_orphaned(signal: Signal) -> io::Result<()> {
    let parent = Pid::parent();
    // SAFETY: an integer option.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal.number()) })?;
    if Pid::parent() == parent { Ok(()) } else { kill(own_pid(), signal) }
}

/// The highest memory use of any ended child, in bytes.
pub fn children_peak_memory() -> u64 {
    let peak = getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |usage| usage.max_rss());
    u64::try_from(peak).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_searched_in_path_and_a_path_is_used_unchanged() {
        let found = candidates(b"python", b"/a::/b");
        assert_eq!(found, [b"/a/python".to_vec(), b"python".to_vec(), b"/b/python".to_vec()]);
        assert_eq!(candidates(b"./x", b"/a"), [b"./x".to_vec()]);
    }
}

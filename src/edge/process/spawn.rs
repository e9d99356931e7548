//! Starts the command: a clone, and an exec that leaves the child in the same state as a direct exec.
//!
//! The clone of [`launch`] shares our memory and blocks this thread until the exec succeeded or failed, as in
//! posix_spawn(3). So no page table is copied, and the result of the exec is known at once. A signal that arrives during
//! that time stays in the signalfd. The clone of [`launch_unwaited`] is that of fork(2).
//!
//! Deliberately absent: `std::process::Command`, which empties the signal mask and resets SIGPIPE; waiting (`reaper`).
//!
//! Between clone and exec the child may only make async-signal-safe calls. Those of nix that are used there only pass their
//! arguments on to the system call.
//!
//! libc is used because nix's execve allocates, because nix's signals have no real-time signals, and because nix has
//! neither clone3(2) nor tgkill(2).

#![expect(unsafe_code, reason = "clone, exec and the code between them")]

use std::ffi::{CString, OsString, c_char, c_void};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;
use nix::sched::{CloneFlags, clone};
use nix::sys::prctl;
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, gettid, setpgid, setsid, tcsetpgrp};

use crate::edge::process::signals::{self, Mask};
use crate::rules::process::exit::{NOT_FOUND, STOPPED};
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
    parent: Pid,
    files: &'a [CString],
    argv: &'a [*const c_char],
    env: &'a [*const c_char],
    /// Called in the child with errno if it fails.
    failed: &'a dyn Fn(i32),
}

/// The child's stack. Before its exec the child needs some hundred bytes, in a debug build some thousand.
const STACK_BYTES: usize = 64 * 1024;

/// Starts the command and returns its process id when it runs.
pub fn launch(launch: Launch<'_>) -> Result<i32, NotLaunched> {
    let path = launch.env.iter().find_map(|entry| entry.strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH);
    let program = launch.argv.first().map(|word| word.as_bytes()).unwrap_or_default();
    let (files, errno) = (candidates(program, path), AtomicI32::new(0));
    let failed = |code| errno.store(code, Ordering::Relaxed);
    let flags = CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK;
    let pid = start(launch, files, flags, &failed).map_err(NotLaunched::NoProcess)?;
    match errno.load(Ordering::Relaxed) {
        0 => Ok(pid),
        errno => Err(NotLaunched::NoExec(io::Error::from_raw_os_error(errno))),
    }
}

/// Starts the first of these files that can be executed. Does not wait for the exec, which may hang on a network file system,
/// so the child has a copy of our memory. If no file can be executed, the child calls `failed` with errno and exits with 127;
/// `failed` must be async-signal-safe. Errors: as clone(2); `InvalidInput` for a NUL byte.
pub(in crate::edge) fn launch_unwaited(
    launch: Launch<'_>,
    files: Vec<Vec<u8>>,
    failed: &dyn Fn(i32),
) -> io::Result<i32> {
    start(launch, files, CloneFlags::empty(), failed)
}

fn start(mut launch: Launch<'_>, files: Vec<Vec<u8>>, flags: CloneFlags, failed: &dyn Fn(i32)) -> io::Result<i32> {
    let c_string = |bytes: Vec<u8>| CString::new(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e));
    let c_strings = |all: Vec<Vec<u8>>| all.into_iter().map(c_string).collect::<io::Result<Vec<CString>>>();
    let argv = c_strings(launch.argv.iter().map(|word| word.clone().into_vec()).collect())?;
    let env = c_strings(std::mem::take(&mut launch.env))?;
    let files = c_strings(files)?;
    let (argv, env) = (pointers(&argv), pointers(&env));
    let plan = Plan { launch: &launch, parent: Pid::this(), files: &files, argv: &argv, env: &env, failed };
    let mut stack = vec![0; STACK_BYTES];
    // SAFETY: the child only makes async-signal-safe calls on memory that was prepared before. If it shares our memory,
    // CLONE_VFORK holds this thread until the child has left it.
    let pid = unsafe { clone(Box::new(|| child(&plan)), &mut stack, flags, Some(libc::SIGCHLD)) }?;
    Ok(pid.as_raw())
}

/// The child, until it is the command. Returns its exit code. Memory and errno may be those of the parent's thread, which is
/// blocked then.
fn child(plan: &Plan<'_>) -> isize {
    let launch = plan.launch;
    if launch.new_session {
        let _ = setsid();
    } else {
        let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    }
    if let Some(terminal) = launch.terminal {
        let _ = tcsetpgrp(terminal, Pid::this());
    }
    if let Some(signal) = launch.death_signal {
        let _ = set_death_signal(signal);
        if Pid::parent() != plan.parent {
            return STOPPED.into();
        }
    }
    let is_ready = launch.stdin.as_ref().is_none_or(|stdin| dup2_stdin(stdin).is_ok())
        && launch.stdout.as_ref().is_none_or(|stdout| dup2_stdout(stdout).is_ok())
        && launch.stderr.as_ref().is_none_or(|stderr| dup2_stderr(stderr).is_ok());
    let mut errno = Errno::last_raw();
    if is_ready {
        if launch.ignore_chld {
            signals::ignore_children();
        }
        launch.mask.restore();
        errno = exec(plan);
    }
    (plan.failed)(errno);
    NOT_FOUND.into()
}

/// Tries each file as execvp(3) does, and returns the errno that matters. Runs in the child.
fn exec(plan: &Plan<'_>) -> i32 {
    let (mut denied, mut errno) = (false, libc::ENOENT);
    for file in plan.files {
        // SAFETY: NULL-terminated arrays of C strings, made before the clone.
        unsafe { libc::execve(file.as_ptr(), plan.argv.as_ptr(), plan.env.as_ptr()) };
        errno = Errno::last_raw();
        match errno {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return errno,
        }
    }
    if denied { libc::EACCES } else { errno }
}

/// A NULL-terminated array for execve(2), valid while the strings live.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
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
    gettid().as_raw()
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
    set_death_signal(signal)?;
    if Pid::parent() == parent { Ok(()) } else { kill(own_pid(), signal) }
}

fn set_death_signal(signal: Signal) -> Result<(), Errno> {
    // SAFETY: an integer option.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal.number()) }).map(drop)
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

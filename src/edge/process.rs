//! Starting the command: fork, and an exec that leaves the child in the state a direct exec would have left it in.
//!
//! Deliberately absent: `std::process::Command`, which empties the signal mask and resets SIGPIPE, and waiting, which
//! is the reaper's.

#![expect(unsafe_code, reason = "fork, exec and what must happen between them")]

use std::ffi::{CString, OsString, c_char};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::ptr;

use super::signals::Mask;
use crate::rules::signal::Signal;

/// PATH where the environment has none, as glibc's and musl's execvp take it.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// What to start, and how.
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
    /// The terminal that the child's group becomes the foreground of.
    pub terminal: Option<RawFd>,
    /// What the child gets when trainit dies.
    pub death_signal: Option<Signal>,
    /// The child's standard output, if not ours.
    pub stdout: Option<OwnedFd>,
    /// The child's standard error, if not ours.
    pub stderr: Option<OwnedFd>,
}

/// A forked child that has not executed the command yet.
#[derive(Debug)]
pub struct Launched {
    /// The child.
    pub pid: i32,
    /// Readable (or closed) when the exec is decided; see [`exec_result`].
    pub exec: OwnedFd,
}

/// Forks. Errors: as pipe2(2) and fork(2); an argument or variable with a NUL byte is `InvalidInput`.
pub fn launch(launch: Launch<'_>) -> io::Result<Launched> {
    let c_string = |bytes: Vec<u8>| CString::new(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e));
    let path = launch.env.iter().find_map(|entry| entry.strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH).to_vec();
    let argv = launch.argv.iter().map(|a| c_string(a.clone().into_vec())).collect::<io::Result<Vec<_>>>()?;
    let env = launch.env.into_iter().map(c_string).collect::<io::Result<Vec<_>>>()?;
    let program = argv.first().map(|a| a.to_bytes().to_vec()).unwrap_or_default();
    let candidates = candidates(&program, &path).into_iter().map(c_string).collect::<io::Result<Vec<_>>>()?;
    let argv_pointers = pointers(&argv);
    let env_pointers = pointers(&env);
    let (read, write) = pipe()?;

    // SAFETY: plain system calls without arguments. After fork the child only makes async-signal-safe calls on memory
    // that was prepared before, and never returns.
    unsafe {
        let parent = libc::getpid();
        let pid = libc::fork();
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        if pid == 0 {
            if launch.new_session {
                libc::setsid();
            } else {
                libc::setpgid(0, 0);
            }
            if let Some(terminal) = launch.terminal {
                libc::tcsetpgrp(terminal, libc::getpid());
            }
            if let Some(signal) = launch.death_signal {
                libc::prctl(libc::PR_SET_PDEATHSIG, signal.number());
                if libc::getppid() != parent {
                    libc::_exit(i32::from(crate::rules::exit::STOPPED));
                }
            }
            for (from, to) in [(&launch.stdout, libc::STDOUT_FILENO), (&launch.stderr, libc::STDERR_FILENO)] {
                if let Some(from) = from
                    && libc::dup2(from.as_raw_fd(), to) < 0
                {
                    fail(&write);
                }
            }
            if launch.ignore_chld {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            launch.mask.restore();
            exec(&candidates, &argv_pointers, &env_pointers);
            fail(&write);
        }
        if !launch.new_session {
            // Both sides set it, so that neither has to wait for the other.
            libc::setpgid(pid, pid);
        }
        Ok(Launched { pid, exec: read })
    }
}

/// Reads what became of the exec: `None` while undecided, `Some(Ok)` when the command runs, else the exec's own error.
pub fn exec_result(exec: &OwnedFd) -> Option<io::Result<()>> {
    let mut errno = [0u8; 4];
    // SAFETY: the buffer is four bytes long and alive.
    let read = unsafe { libc::read(exec.as_raw_fd(), errno.as_mut_ptr().cast(), errno.len()) };
    match read {
        0 => Some(Ok(())),
        4 => Some(Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))),
        _ => None,
    }
}

/// A pipe whose ends are closed on exec and do not block. Errors: as pipe2(2).
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for both descriptors, which are ours alone after the call.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

/// Where execvp(3) would look, in order.
fn candidates(program: &[u8], path: &[u8]) -> Vec<Vec<u8>> {
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
        // SAFETY: NULL-terminated arrays of C strings, made before the fork.
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

/// Reports errno to the parent and ends the child.
unsafe fn fail(pipe: &OwnedFd) -> ! {
    // SAFETY: errno is the thread's own; four bytes fit into an empty pipe.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(pipe.as_raw_fd(), (&raw const errno).cast(), 4);
        libc::_exit(i32::from(crate::rules::exit::NOT_FOUND))
    }
}

/// Sends a signal to one process. Errors: as kill(2); ESRCH is no error here, the process is gone.
pub fn kill(pid: i32, signal: Signal) -> io::Result<()> {
    // SAFETY: kill has no memory to get wrong.
    if unsafe { libc::kill(pid, signal.number()) } < 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ESRCH) {
            return Err(error);
        }
    }
    Ok(())
}

/// Our own process id.
pub fn own_pid() -> i32 {
    // SAFETY: cannot fail.
    unsafe { libc::getpid() }
}

/// Makes this process the one that orphans of its tree are handed to. Errors: as prctl(2).
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: an integer option.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The highest memory use of any ended child, in bytes.
pub fn children_peak_memory() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is written by the call, and was zero before.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_for_along_the_path_and_a_path_is_taken_as_it_is() {
        let found = candidates(b"python", b"/a::/b");
        assert_eq!(found, [b"/a/python".to_vec(), b"python".to_vec(), b"/b/python".to_vec()]);
        assert_eq!(candidates(b"./x", b"/a"), [b"./x".to_vec()]);
    }
}

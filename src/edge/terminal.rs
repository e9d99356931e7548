//! The controlling terminal: who is in the foreground, and stopping together with the shell that started us.

#![expect(unsafe_code, reason = "terminal and session calls, integers only")]

use std::io;
use std::os::fd::RawFd;

use super::process::own_pid;

/// The terminal on standard input, if it is our session's.
pub fn of_session() -> Option<RawFd> {
    let fd = libc::STDIN_FILENO;
    // SAFETY: integers only. It fails for a terminal that is not our controlling one.
    unsafe { libc::tcgetpgrp(fd) >= 0 }.then_some(fd)
}

/// Whether we are its foreground group, and so may hand it on.
pub fn is_ours(fd: RawFd) -> bool {
    // SAFETY: integers only.
    unsafe { libc::tcgetpgrp(fd) == libc::getpgrp() }
}

/// Makes a group the foreground one. SIGTTOU must be blocked. Errors: as tcsetpgrp(3).
pub fn give_to(fd: RawFd, group: i32) -> io::Result<()> {
    // SAFETY: integers only.
    match unsafe { libc::tcsetpgrp(fd, group) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes the foreground back for ourselves. Errors: as tcsetpgrp(3).
pub fn take_back(fd: RawFd) -> io::Result<()> {
    // SAFETY: cannot fail.
    give_to(fd, unsafe { libc::getpgrp() })
}

/// Whether somebody would continue us if we stopped: a job-control shell, our parent, in our session but another group.
pub fn has_shell() -> bool {
    // SAFETY: integers only; our parent may be gone, then the calls fail and the answer is no.
    unsafe {
        let parent = libc::getppid();
        own_pid() != 1
            && parent > 1
            && libc::getsid(parent) == libc::getsid(0)
            && libc::getpgid(parent) != libc::getpgrp()
    }
}

/// Stops this process until somebody continues it.
pub fn stop_ourselves() {
    // SAFETY: SIGSTOP cannot be blocked; the call returns when we are continued.
    unsafe { libc::kill(own_pid(), libc::SIGSTOP) };
}

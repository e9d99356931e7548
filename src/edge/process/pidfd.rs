//! A process by a descriptor (pidfd, Linux 5.3). A signal through it reaches that process or none, never a later process with
//! the same id.
//!
//! libc is used because nix has no call for a pidfd, and none for kcmp(2).

#![expect(unsafe_code, reason = "pidfd_open, pidfd_send_signal and kcmp")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use crate::rules::process::signal::Signal;

/// Opens the process that has this id now. Errors: as pidfd_open(2); ESRCH if there is none.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: integers; a descriptor that was returned is ours alone.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32;
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Sends a signal to it. Errors: as pidfd_send_signal(2); ESRCH if it has exited.
pub fn send(process: &OwnedFd, signal: Signal) -> io::Result<()> {
    let none = ptr::null::<libc::siginfo_t>();
    // SAFETY: an open descriptor, and no structure: the kernel fills it as for kill(2).
    match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal.number(), none, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the standard inputs of two processes are known to be different open files, although they may have one name.
pub fn have_other_inputs(one: i32, other: i32) -> bool {
    const KCMP_FILE: i32 = 0;
    // SAFETY: integers.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILE, 0, 0) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_reaches_the_opened_process_and_no_other_after_it_has_exited() {
        #[expect(clippy::disallowed_methods, reason = "its mask and SIGPIPE do not matter here")]
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        let process = open(child.id() as i32).expect("a pidfd");
        send(&process, Signal::TERM).expect("sent");
        let ended = std::os::unix::process::ExitStatusExt::signal(&child.wait().expect("reaped"));
        assert_eq!(ended, Some(libc::SIGTERM));
        let error = send(&process, Signal::KILL).expect_err("it has exited");
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}

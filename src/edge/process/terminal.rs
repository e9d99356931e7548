//! The controlling terminal: its foreground group, and stopping together with the shell that started trainit.

use std::io;
use std::os::fd::BorrowedFd;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid, getpgrp, getsid, tcgetpgrp, tcsetpgrp};

/// Whether this is the terminal of our session.
pub fn is_of_session(terminal: BorrowedFd<'_>) -> bool {
    // It fails for a terminal that is not our controlling one.
    tcgetpgrp(terminal).is_ok()
}

/// Whether this process is in its foreground group, and so may give it to another group.
pub fn is_ours(terminal: BorrowedFd<'_>) -> bool {
    tcgetpgrp(terminal) == Ok(getpgrp())
}

/// Makes a group the foreground one. SIGTTOU must be blocked. Errors: as tcsetpgrp(3).
pub fn give_to(terminal: BorrowedFd<'_>, group: i32) -> io::Result<()> {
    Ok(tcsetpgrp(terminal, Pid::from_raw(group))?)
}

/// Takes the foreground back for ourselves. Errors: as tcsetpgrp(3).
pub fn take_back(terminal: BorrowedFd<'_>) -> io::Result<()> {
    Ok(tcsetpgrp(terminal, getpgrp())?)
}

/// Whether the parent looks like a job-control shell, which continues this process after a stop: it is in the same session
/// but in another group.
pub fn has_shell() -> bool {
    // Our parent may be gone; then the calls fail and the answer is no.
    let parent = Pid::parent();
    Pid::this().as_raw() != 1
        && parent.as_raw() > 1
        && getsid(Some(parent)) == getsid(None)
        && getpgid(Some(parent)) != Ok(getpgrp())
}

/// Stops this process until it receives SIGCONT.
pub fn stop_ourselves() {
    // SIGSTOP cannot be blocked; the call returns when we are continued.
    let _ = kill(Pid::this(), Signal::SIGSTOP);
}

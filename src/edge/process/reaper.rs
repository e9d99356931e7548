//! The only owner of waitpid(2). Every process of the tree that exits is reaped here and nowhere else.
//!
//! waitpid is libc's: nix's loses the process id of a child that a real-time signal ended.

#![expect(unsafe_code, reason = "waitpid")]

use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::edge::clock::Clock;
use crate::rules::process::exit::End;
use crate::rules::process::signal::Signal;

/// Pause between two checks when there is nothing else to do.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The answer of wait(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// A process ended.
    Ended {
        /// Its process id.
        pid: i32,
        /// How it ended.
        end: End,
    },
    /// A direct child was stopped by a signal.
    Stopped {
        /// Its process id.
        pid: i32,
        /// The signal.
        signal: Signal,
    },
    /// There are children, but none has changed its state.
    Nothing,
    /// There is no child: the tree is empty, because orphans become our children.
    Empty,
}

/// The next change of state of a child; never blocks.
pub fn wait() -> Wait {
    wait_for(-1)
}

/// The next change of state of this child; never blocks. `Empty`: there is no such child.
pub fn wait_for(child: i32) -> Wait {
    loop {
        let mut status = 0;
        // SAFETY: the status word is alive for the call.
        let pid = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
        if pid > 0 {
            if let Some(wait) = read(pid, status) {
                return wait;
            }
            continue;
        }
        if pid == 0 {
            return Wait::Nothing;
        }
        if Errno::last() != Errno::EINTR {
            return Wait::Empty;
        }
    }
}

/// Waits until there is no child, up to a limit.
pub fn wait_for_all(limit: Duration) {
    let clock = Clock::start();
    while wait() != Wait::Empty && clock.now() < limit {
        thread::sleep(LOOK_EVERY);
    }
}

/// Whether there is a child at all; reaps none.
pub fn has_children() -> bool {
    has(Id::All)
}

/// Whether a child of ours, dead or alive, is in this process group. Then the kernel does not reuse the group's number.
pub fn has_child_in(group: i32) -> bool {
    has(Id::PGid(Pid::from_raw(group)))
}

fn has(which: Id<'_>) -> bool {
    // Another error means a child that a real-time signal ended, which nix cannot express.
    waitid(which, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT) != Err(Errno::ECHILD)
}

fn read(pid: i32, status: i32) -> Option<Wait> {
    if libc::WIFEXITED(status) {
        return Some(Wait::Ended { pid, end: End::Code(libc::WEXITSTATUS(status) as u8) });
    }
    if libc::WIFSIGNALED(status) {
        let end = End::Signal(Signal::new(libc::WTERMSIG(status))?);
        return Some(Wait::Ended { pid, end });
    }
    libc::WIFSTOPPED(status)
        .then(|| Signal::new(libc::WSTOPSIG(status)).map(|signal| Wait::Stopped { pid, signal }))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::process::spawn;

    #[test]
    fn a_child_that_a_real_time_signal_ended_is_seen_and_reaped_with_its_signal() {
        #[expect(clippy::disallowed_methods, reason = "its mask and SIGPIPE do not matter here")]
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        let pid = child.id() as i32;
        let signal = Signal::new(libc::SIGRTMIN() + 3).expect("a signal");
        assert_eq!(wait_for(pid), Wait::Nothing);
        spawn::kill(pid, signal).expect("sent");
        // It waits until the child has ended, and leaves it unreaped.
        let _ = waitid(Id::Pid(Pid::from_raw(pid)), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        assert!(has(Id::Pid(Pid::from_raw(pid))));
        assert_eq!(wait_for(pid), Wait::Ended { pid, end: End::Signal(signal) });
        assert_eq!(wait_for(pid), Wait::Empty);
        assert!(!has(Id::Pid(Pid::from_raw(pid))));
        assert_eq!(child.wait().expect_err("reaped already").raw_os_error(), Some(libc::ECHILD));
    }
}

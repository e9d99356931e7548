//! The one owner of waitpid(2). Everything that ends in our tree is collected here, and nowhere else.

#![expect(unsafe_code, reason = "waitpid and its status word")]

use std::io;
use std::thread;
use std::time::Duration;

use super::clock::Clock;
use crate::rules::exit::End;
use crate::rules::signal::Signal;

/// Between two looks where nothing else is to be done.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What wait(2) told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// A process ended.
    Ended {
        /// Which.
        pid: i32,
        /// How.
        end: End,
    },
    /// A direct child was stopped by a signal.
    Stopped {
        /// Which.
        pid: i32,
        /// By what.
        signal: Signal,
    },
    /// There are children, and none has anything to tell.
    Nothing,
    /// There is no child at all: the tree is empty, since orphans are handed to us.
    Empty,
}

/// The next thing to know about our children; never blocks.
pub fn wait() -> Wait {
    loop {
        let mut status = 0;
        // SAFETY: the status word is alive for the call.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
        if pid > 0 {
            if let Some(wait) = read(pid, status) {
                return wait;
            }
            continue;
        }
        if pid == 0 {
            return Wait::Nothing;
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            _ => return Wait::Empty,
        }
    }
}

/// Waits until there is no child any more, but not for ever.
pub fn wait_for_all(limit: Duration) {
    let clock = Clock::start();
    while wait() != Wait::Empty && clock.now() < limit {
        thread::sleep(LOOK_EVERY);
    }
}

/// Whether there is a child at all; reaps none.
pub fn has_children() -> bool {
    has(libc::P_ALL, 0)
}

/// Whether a child of ours, dead or alive, is in this process group: then the group's number is nobody else's.
pub fn has_child_in(group: i32) -> bool {
    has(libc::P_PGID, group.unsigned_abs())
}

fn has(which: libc::idtype_t, id: libc::id_t) -> bool {
    // SAFETY: nothing is written where there is no place for it (waitid(2)).
    unsafe { libc::waitid(which, id, std::ptr::null_mut(), libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) == 0 }
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

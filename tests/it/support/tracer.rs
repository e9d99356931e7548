//! Holds a process or a thread with ptrace(2), to imitate one that is stuck in the kernel.

#![expect(unsafe_code, reason = "ptrace")]

use super::eventually;

/// A process that is held by ptrace(2) until this is dropped. Only the thread that holds it may drop it.
pub struct Held(i32);

impl Held {
    /// The process runs, but after a kill it cannot be reaped.
    #[track_caller]
    pub fn when_killed(pid: i32) -> Held {
        request(libc::PTRACE_SEIZE, pid);
        Held(pid)
    }

    /// The thread is stopped.
    #[track_caller]
    pub fn still(tid: i32) -> Held {
        let held = Held::when_killed(tid);
        request(libc::PTRACE_INTERRUPT, tid);
        eventually("it is held", || {
            let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('t'))
        });
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: requests without memory; a process that is already dead is reaped instead.
        unsafe {
            libc::ptrace(libc::PTRACE_DETACH, self.0, std::ptr::null_mut::<u8>(), std::ptr::null_mut::<u8>());
            libc::waitpid(self.0, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL);
        }
    }
}

#[track_caller]
fn request(what: libc::c_uint, id: i32) {
    let none = std::ptr::null_mut::<u8>();
    // SAFETY: requests without memory.
    assert_eq!(unsafe { libc::ptrace(what, id, none, none) }, 0, "may we?");
}

//! The process's own signal mask and dispositions, and signals as readable data (signalfd).

#![expect(unsafe_code, reason = "sigprocmask, signalfd and their structures")]

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use crate::rules::signal::Signal;

/// A signal mask as the kernel keeps it.
#[derive(Clone, Copy)]
pub struct Mask(libc::sigset_t);

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask")
    }
}

/// Blocks every signal that can be blocked and returns the mask from before. The first thing `main` does for `run`:
/// from here on no signal is lost.
pub fn block_all() -> Mask {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are written by the calls before they are read; SIG_SETMASK cannot fail with valid pointers.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
        Mask(old.assume_init())
    }
}

impl Mask {
    /// Makes this the calling thread's mask.
    pub fn restore(&self) {
        // SAFETY: the set is initialised, and no old mask is asked for.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// Makes a closed pipe (SIGPIPE) and a file-size limit (SIGXFSZ) errors of the write instead of deaths. For processes
/// of ours that start no child.
pub fn ignore_write_signals() {
    for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
        // SAFETY: no handler is installed; the disposition of this process alone changes.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// A signal that arrived.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// Which.
    pub signal: Signal,
    /// Who sent it, where a process did (0 from outside our PID namespace).
    pub sender: Option<u32>,
}

/// Signals as a descriptor that poll(2) understands. All signals must be blocked.
#[derive(Debug)]
pub struct Inbox(OwnedFd);

impl Inbox {
    /// Opens it for every signal. Errors: as signalfd(2).
    pub fn open() -> io::Result<Inbox> {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is filled before it is read; a descriptor that was returned is ours alone.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            let fd = libc::signalfd(-1, all.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Inbox(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// What has arrived by now.
    pub fn drain(&self) -> Vec<Arrival> {
        const BATCH: usize = 16;
        let mut arrivals = Vec::new();
        loop {
            let mut infos = [MaybeUninit::<libc::signalfd_siginfo>::uninit(); BATCH];
            // SAFETY: the buffer has room for BATCH structures, and the kernel writes only whole ones.
            let read = unsafe { libc::read(self.0.as_raw_fd(), infos.as_mut_ptr().cast(), mem::size_of_val(&infos)) };
            let count = usize::try_from(read).unwrap_or(0) / mem::size_of::<libc::signalfd_siginfo>();
            for info in &infos[..count] {
                // SAFETY: the kernel wrote the first `count` structures.
                let info = unsafe { info.assume_init_ref() };
                let by_process = matches!(info.ssi_code, libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL);
                if let Some(signal) = Signal::new(info.ssi_signo as i32) {
                    arrivals.push(Arrival { signal, sender: by_process.then_some(info.ssi_pid) });
                }
            }
            if count < BATCH {
                return arrivals;
            }
        }
    }
}

impl AsRawFd for Inbox {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

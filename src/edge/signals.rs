//! The process's own signal mask and dispositions, and signals as readable data (signalfd).

#![expect(unsafe_code, reason = "rt_sigprocmask, signalfd4 and their structures")]

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::rules::signal::Signal;

/// Every signal, in the kernel's own layout: bit n-1 is signal n.
///
/// sigfillset(3) leaves out what a C library reserves for its threads (glibc 32 and 33, musl 34 too), so that those would
/// end trainit instead of reaching the command; nothing here uses what they are reserved for. So the system calls are
/// made directly.
static ALL: u64 = u64::MAX;

/// A signal mask as the kernel keeps it.
#[derive(Debug, Clone, Copy)]
pub struct Mask(u64);

/// Blocks every signal that can be blocked and returns the mask from before. The first thing `main` does for `run`:
/// from here on no signal is lost.
pub fn block_all() -> Mask {
    let mut old = 0;
    // SAFETY: both sets are alive and of the size that is told; SIG_SETMASK cannot fail then.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const ALL, &raw mut old, mem::size_of_val(&ALL))
    };
    Mask(old)
}

impl Mask {
    /// Makes this the calling thread's mask. Async-signal-safe.
    pub fn restore(&self) {
        let (new, old): (*const u64, *mut u64) = (&raw const self.0, ptr::null_mut());
        // SAFETY: the set is alive and of the size that is told; no old mask is asked for.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, mem::size_of_val(&self.0)) };
    }
}

/// Starts a thread that takes no signal. A C library lets those it reserves for itself through in a new thread, or in the one
/// that starts the first; when this returns, neither does any more. Errors: as pthread_create(3).
pub fn deaf_thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (deaf, is_deaf) = mpsc::channel::<()>();
    let started = thread::Builder::new().name(name.to_owned()).spawn(move || {
        block_all();
        drop(deaf);
        body();
    });
    block_all();
    // It is said by hanging up.
    let _ = is_deaf.recv();
    started.map(drop)
}

/// Does it on a thread of its own, since a file system that hangs must not keep us. Errors: its own; it took too long.
pub fn in_time<T: Send + 'static>(
    name: &str,
    patience: Duration,
    deed: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (told, hears) = mpsc::channel();
    deaf_thread(name, move || {
        let _ = told.send(deed());
    })?;
    hears.recv_timeout(patience).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Whether this signal, which is blocked, has arrived and was not read yet.
pub fn is_waiting(signal: Signal) -> bool {
    waiting().any(|waiting| waiting == signal)
}

/// The blocked signals that have arrived and were not read yet.
pub fn waiting() -> impl Iterator<Item = Signal> {
    let mut pending = 0u64;
    // SAFETY: the set is alive and of the size that is told.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, mem::size_of_val(&pending)) };
    (1..=64).filter(move |number| pending >> (number - 1) & 1 == 1).filter_map(Signal::new)
}

/// Whether this process ignores it: from the start, unless it was changed since.
pub fn is_ignored(signal: Signal) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: nothing is changed; the structure is read only after the call has written it.
    unsafe {
        libc::sigaction(signal.number(), ptr::null(), now.as_mut_ptr()) == 0
            && now.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Signals that wait for us, and for nobody else.
#[derive(Debug, Clone, Copy)]
pub struct HeldBack(u64);

/// Blocks those of these signals that are neither ignored nor blocked, before there is another thread. Whoever holds them
/// back must ask for them.
pub fn hold_back(signals: &[Signal]) -> HeldBack {
    let held = signals.iter().filter(|signal| !is_ignored(**signal)).fold(0, |set, s| set | 1 << (s.number() - 1));
    let (new, mut old): (u64, u64) = (held, 0);
    // SAFETY: both sets are alive and of the size that is told.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const new, &raw mut old, mem::size_of_val(&new))
    };
    HeldBack(held & !old)
}

impl HeldBack {
    /// One that has arrived.
    pub fn arrived(self) -> Option<Signal> {
        waiting().find(|signal| self.0 >> (signal.number() - 1) & 1 == 1)
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

/// Makes ended children wait for us, where whoever started us ignores SIGCHLD (the kernel would then throw their exit
/// codes away). Whether it was ignored: the command must find it so again.
pub fn keep_children() -> bool {
    // SAFETY: no handler is installed; the old disposition comes back as a plain number.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) == libc::SIG_IGN }
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
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: the set is alive and of the size that is told; a descriptor that was returned is ours alone.
        unsafe {
            let fd = libc::syscall(libc::SYS_signalfd4, -1, &raw const ALL, mem::size_of_val(&ALL), flags) as i32;
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Inbox(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// What has arrived by now, but for what this process brought on itself: a log line into a closed pipe raises
    /// SIGPIPE, one past a file-size limit SIGXFSZ, and neither is the command's affair.
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
                let is_of_a_write = [libc::SIGPIPE, libc::SIGXFSZ].contains(&(info.ssi_signo as i32));
                let is_our_own = by_process && is_of_a_write && info.ssi_pid == std::process::id();
                if let Some(signal) = Signal::new(info.ssi_signo as i32).filter(|_| !is_our_own) {
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

//! The process's own signal mask and dispositions, and signals as readable data (signalfd).
//!
//! libc is used because nix's signals and sets have no real-time signals.

#![expect(unsafe_code, reason = "rt_sigprocmask, rt_sigaction, signalfd4 and their structures")]

use std::io;
use std::iter;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signalfd;

use crate::rules::process::signal::Signal;

/// Every signal, in the kernel's own layout: bit n-1 is signal n.
///
/// sigfillset(3) omits the signals that a C library reserves for its threads (glibc 32 and 33, musl 34 too). Those
/// would end trainit instead of reaching the command. So the system calls are made directly.
static ALL: u64 = u64::MAX;

/// The signals that C libraries reserve for their threads.
const RESERVED: std::ops::RangeInclusive<i32> = 32..=34;

/// A signal mask as the kernel keeps it.
#[derive(Debug, Clone, Copy)]
pub struct Mask(u64);

/// Blocks every signal that can be blocked and returns the previous mask. `main` does this first for `run`: from here on no
/// signal is lost.
pub fn block_all() -> Mask {
    Mask(change_mask(libc::SIG_SETMASK, ALL))
}

/// Changes the calling thread's mask and returns the previous one. Async-signal-safe.
fn change_mask(how: libc::c_int, set: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: both sets are alive and have the given size, so the call cannot fail.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const set, &raw mut old, size_of::<u64>()) };
    old
}

impl Mask {
    /// No signal is blocked.
    pub const EMPTY: Mask = Mask(0);

    /// Makes this the calling thread's mask. Async-signal-safe.
    pub fn restore(&self) {
        change_mask(libc::SIG_SETMASK, self.0);
    }
}

/// Starts a thread that receives no signal. A C library unblocks its reserved signals in a new thread, and in the
/// thread that starts the first one; when this returns, both have them blocked again. Errors: as pthread_create(3).
pub fn thread_without_signals(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (deaf, is_ready) = mpsc::channel::<()>();
    // One that arrives while it is unblocked is lost, in place of the process.
    let reserved: Vec<i32> = RESERVED.filter(|signal| disposition(*signal, None) == libc::SIG_DFL).collect();
    for signal in &reserved {
        disposition(*signal, Some(libc::SIG_IGN));
    }
    let started = thread::Builder::new().name(name.to_owned()).spawn(move || {
        block_all();
        drop(deaf);
        body();
    });
    block_all();
    // The sender is dropped to report it.
    let _ = is_ready.recv();
    // The C library may have installed a handler of its own.
    for signal in reserved.into_iter().filter(|signal| disposition(*signal, None) == libc::SIG_IGN) {
        disposition(signal, Some(libc::SIG_DFL));
    }
    started.map(drop)
}

/// Runs `work` on a thread of its own, so that a hanging file system does not block the caller. Errors: those of the work,
/// and a timeout.
pub fn in_time<T: Send + 'static>(
    name: &str,
    timeout: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = mpsc::channel();
    thread_without_signals(name, move || {
        let _ = sender.send(work());
    })?;
    receiver.recv_timeout(timeout).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Whether this signal, which is blocked, has arrived and was not read yet.
pub fn is_waiting(signal: Signal) -> bool {
    waiting().any(|waiting| waiting == signal)
}

/// The blocked signals that have arrived and were not read yet.
pub fn waiting() -> impl Iterator<Item = Signal> {
    let mut pending = 0u64;
    // SAFETY: the set is alive and has the given size.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, size_of::<u64>()) };
    (1..=64).filter(move |number| pending >> (number - 1) & 1 == 1).filter_map(Signal::new)
}

/// Whether this process ignores the signal.
pub fn is_ignored(signal: Signal) -> bool {
    disposition(signal.number(), None) == libc::SIG_IGN
}

/// The signals that this process ignores.
pub fn ignored() -> Vec<Signal> {
    (1..=64).filter_map(Signal::new).filter(|signal| is_ignored(*signal)).collect()
}

/// Signals that are blocked here and pending.
#[derive(Debug, Clone, Copy)]
pub struct HeldBack(u64);

/// Blocks these signals, except ignored and blocked ones, before another thread exists. The caller must poll for them.
pub fn hold_back(signals: &[Signal]) -> HeldBack {
    let held = signals.iter().filter(|signal| !is_ignored(**signal)).fold(0, |set, s| set | 1 << (s.number() - 1));
    HeldBack(held & !change_mask(libc::SIG_BLOCK, held))
}

impl HeldBack {
    /// A blocked signal that has arrived.
    pub fn arrived(self) -> Option<Signal> {
        waiting().find(|signal| self.0 >> (signal.number() - 1) & 1 == 1)
    }
}

/// Makes a closed pipe (SIGPIPE) and a file-size limit (SIGXFSZ) errors of the write instead of deaths. For processes
/// of ours that start no child.
pub fn ignore_write_signals() {
    for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
        disposition(signal, Some(libc::SIG_IGN));
    }
}

/// Stops ignoring SIGCHLD, because the kernel discards the exit codes of children while it is ignored. Returns whether
/// it was ignored: the command must inherit that.
pub fn keep_children() -> bool {
    disposition(libc::SIGCHLD, Some(libc::SIG_DFL)) == libc::SIG_IGN
}

/// Ignores SIGCHLD. Async-signal-safe.
pub(super) fn ignore_children() {
    disposition(libc::SIGCHLD, Some(libc::SIG_IGN));
}

/// Gives every signal its default action. For a process without handlers and other threads.
pub fn reset_all() {
    for signal in 1..=64 {
        disposition(signal, Some(libc::SIG_DFL));
    }
}

/// Sets SIG_IGN or SIG_DFL, if given, and returns the previous disposition. Async-signal-safe. The system call itself is
/// made, because a C library refuses the signals that it reserves, and a parent may have ignored them.
fn disposition(signal: libc::c_int, new: Option<libc::sighandler_t>) -> libc::sighandler_t {
    // The kernel's structure: the handler, then flags, restorer and mask, which are not needed without a handler.
    let new = new.map(|handler| [handler, 0, 0, 0]);
    let new = new.as_ref().map_or(ptr::null(), |new| new.as_ptr());
    let mut old = [libc::SIG_DFL; 4];
    // SAFETY: both structures are alive and have room for the kernel's; no handler is installed.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, old.as_mut_ptr(), size_of::<u64>()) };
    old[0]
}

/// A signal that arrived.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// The signal.
    pub signal: Signal,
    /// The id of the sending process, if a process sent it (0: from outside our PID namespace).
    pub sender: Option<u32>,
}

/// Signals as a descriptor that poll(2) understands. All signals must be blocked.
#[derive(Debug)]
pub struct SignalFd(signalfd::SignalFd);

impl SignalFd {
    /// Opens it for every signal. Errors: as signalfd(2).
    pub fn open() -> io::Result<SignalFd> {
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: the set is alive and has the given size; a descriptor that was returned is a signalfd and ours alone.
        unsafe {
            let fd = libc::syscall(libc::SYS_signalfd4, -1, &raw const ALL, size_of::<u64>(), flags) as i32;
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(SignalFd(signalfd::SignalFd::from_owned_fd(OwnedFd::from_raw_fd(fd))))
        }
    }

    /// At most one batch of the signals that have arrived, so that processes which queue signals without end cannot keep the
    /// caller from its timers. The descriptor stays readable while there are more. Signals that this process raised itself
    /// are omitted: SIGPIPE by a log line into a closed pipe, SIGXFSZ by one past a file-size limit.
    pub fn next_batch(&self) -> Vec<Arrival> {
        const BATCH: usize = 16;
        let mut arrivals = Vec::new();
        for info in iter::from_fn(|| self.0.read_signal().ok().flatten()).take(BATCH) {
            let by_process = matches!(info.ssi_code, libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL);
            let is_of_a_write = [libc::SIGPIPE, libc::SIGXFSZ].contains(&(info.ssi_signo as i32));
            let is_our_own = by_process && is_of_a_write && info.ssi_pid == std::process::id();
            if let Some(signal) = Signal::new(info.ssi_signo as i32).filter(|_| !is_our_own) {
                arrivals.push(Arrival { signal, sender: by_process.then_some(info.ssi_pid) });
            }
        }
        arrivals
    }
}

impl AsRawFd for SignalFd {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

//! The probe as a process: started with nothing but the environment, read without blocking, killed, reaped.
//!
//! Anything NVIDIA's library does (hang, crash, print, leak) happens over there. [`ProbeProcess`] is for a supervisor
//! that polls and reaps itself; [`ask`] drives one to its end for the commands that have nothing else to do.
//! Deliberately absent: what the lines mean (`rules::gpu`), and any second probe beside a first.

#![expect(unsafe_code, reason = "fork, exec and what runs between them")]

use std::ffi::{CString, c_char, c_int};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use super::ladder::{Candidate, Ladder};
use crate::edge::clock::Clock;
use crate::edge::process::pointers;
use crate::edge::wake;
use crate::rules::env::{Changes, Env};
use crate::rules::exit::End;
use crate::rules::gpu::answer::{Ending, Report};
use crate::rules::gpu::protocol::{Findings, Limits, Overrun, Reader};
use crate::rules::signal::Signal;

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "__gpu-probe";

/// How long a killed probe is waited for; one that is stuck in the kernel is left behind.
const REAP_LIMIT: Duration = Duration::from_secs(2);
/// How often the death of a probe is looked for whose output somebody else holds open.
const GLANCE: Duration = Duration::from_millis(100);

/// What a probe is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Say what NVML knows, once.
    Discover,
    /// Say what the device nodes tell, once.
    Nodes,
    /// Say what is there, then what happens, with a sample of each GPU at this interval.
    Watch(Duration),
}

impl Mode {
    fn words(self) -> Vec<String> {
        match self {
            Mode::Discover => vec!["discover".to_owned()],
            Mode::Nodes => vec!["nodes".to_owned()],
            Mode::Watch(interval) => vec!["watch".to_owned(), interval.as_millis().to_string()],
        }
    }
}

/// A running probe. Its owner reaps `pid`; dropping this closes the pipes and leaves the process alone.
#[derive(Debug)]
pub struct ProbeProcess {
    /// Its process id and process group.
    pub pid: i32,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl AsRawFd for ProbeProcess {
    /// For poll(2): readable when the probe has spoken or has gone.
    fn as_raw_fd(&self) -> RawFd {
        self.stdout.as_raw_fd()
    }
}

impl ProbeProcess {
    /// Starts a probe in a process group of its own: default signal dispositions, no signal blocked, no descriptors but
    /// three pipes, first in line for the OOM killer, gone when the calling *thread* is (call it on the main thread). That
    /// the program cannot be executed is told on the pipe, as an `error` line of `exec`. Errors: as pipe(2) and fork(2).
    pub fn spawn(ladder: &Ladder, mode: Mode, env: &Env) -> io::Result<ProbeProcess> {
        let (stdin, _) = pipe()?;
        let (stdout, out) = pipe()?;
        let (stderr, err) = pipe()?;
        // A library that floods its standard error loses words instead of blocking.
        for fd in [&stdout, &stderr, &err] {
            set_nonblocking(fd)?;
        }
        let terminated = |bytes: Vec<u8>| CString::new(bytes).map_err(io::Error::other);
        let mut argv = vec![terminated(ladder.name.clone().into_bytes())?, terminated(SUBCOMMAND.into())?];
        for word in mode.words() {
            argv.push(terminated(word.into_bytes())?);
        }
        let envp = env.with(&Changes::default()).into_iter().map(terminated).collect::<io::Result<Vec<_>>>()?;
        let start = Start {
            argv: pointers(&argv),
            envp: pointers(&envp),
            fds: [stdin.as_raw_fd(), out.as_raw_fd(), err.as_raw_fd()],
            // SAFETY: getpid cannot fail.
            parent: unsafe { libc::getpid() },
        };
        // SAFETY: the child calls only async-signal-safe functions on data made above, then execs or leaves.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: as above.
            0 => unsafe { become_probe(&start, &ladder.candidates) },
            _ => {
                // SAFETY: also done by the child; whoever is first makes the group.
                unsafe { libc::setpgid(pid, pid) };
                Ok(ProbeProcess { pid, stdout, stderr })
            }
        }
    }

    /// What the probe has said by now. `None` once it, and all who hold its output, have gone.
    pub fn read(&self) -> Option<Vec<u8>> {
        let mut buffer = [0u8; 16 * 1024];
        loop {
            // SAFETY: the buffer is ours, and as long as said.
            let count = unsafe { libc::read(self.stdout.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
            match usize::try_from(count) {
                Ok(0) => return None,
                Ok(count) => return Some(buffer[..count].to_vec()),
                Err(_) => match io::Error::last_os_error().kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => return Some(Vec::new()),
                    _ => return None,
                },
            }
        }
    }

    /// Kills it and its process group. Only before it is reaped.
    pub fn kill(&self) {
        // SAFETY: kill only sends; the group and the process are ours until reaped.
        unsafe {
            libc::kill(-self.pid, libc::SIGKILL);
            libc::kill(self.pid, libc::SIGKILL);
        }
    }

    /// The last line that it, or its loader, wrote to standard error; at most 200 characters.
    pub fn last_words(&self) -> String {
        let mut text = Vec::new();
        let mut file = std::fs::File::from(match self.stderr.try_clone() {
            Ok(fd) => fd,
            Err(_) => return String::new(),
        });
        let _ = file.by_ref().take(64 * 1024).read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        line.chars().filter(|c| !c.is_control()).take(200).collect()
    }
}

/// Starts a probe and drives it to its end, bounded by the limits and the time it takes to reap it; its time is over as
/// soon as `goes_on` says no. Waits for no other child.
pub fn ask(ladder: &Ladder, mode: Mode, env: &Env, limits: Limits, goes_on: &dyn Fn() -> bool) -> Report {
    let clock = Clock::start();
    let mut reader = Reader::new(clock.now(), limits);
    let mut findings = Findings::default();
    let program = ladder.name.clone();
    let probe = match ProbeProcess::spawn(ladder, mode, env) {
        Ok(probe) => probe,
        Err(error) => {
            let ending = Ending::NotStarted(error.to_string());
            return Report { program, findings, ending, last_call: String::new(), words: String::new() };
        }
    };
    let ending = loop {
        let said = probe.read();
        for line in reader.feed(clock.now(), said.as_deref().unwrap_or_default()) {
            findings.add(line);
        }
        let now = if goes_on() { clock.now() } else { Duration::MAX };
        if let Some(overrun) = reader.overrun(now) {
            break finish(&probe, &clock, overrun, findings.ended);
        }
        if said.as_ref().is_none_or(Vec::is_empty) {
            if let Some(end) = try_reap(probe.pid) {
                // What it said between our last look and its death.
                while let Some(said) = probe.read().filter(|said| !said.is_empty()) {
                    for line in reader.feed(clock.now(), &said) {
                        findings.add(line);
                    }
                }
                break Ending::Ended(end);
            }
            let left = reader.deadline().saturating_sub(clock.now()).min(GLANCE);
            match said {
                Some(_) => wake::wait_readable(&[probe.as_raw_fd()], Some(left)),
                None => wake::wait_readable(&[], Some(left.min(Duration::from_millis(1)))),
            }
        }
    };
    Report { program, findings, ending, last_call: reader.last_call().to_owned(), words: probe.last_words() }
}

/// Kills a probe that has overrun, and reaps it if it lets itself be reaped.
fn finish(probe: &ProbeProcess, clock: &Clock, overrun: Overrun, ended: bool) -> Ending {
    probe.kill();
    let until = clock.now() + REAP_LIMIT;
    loop {
        if let Some(end) = try_reap(probe.pid) {
            // It had said all, and only took long to leave.
            return if ended { Ending::Ended(end) } else { Ending::Overrun(overrun) };
        }
        if clock.now() >= until {
            return Ending::Stuck(overrun);
        }
        wake::wait_readable(&[], Some(Duration::from_millis(1)));
    }
}

/// How this one child ended, if it has.
fn try_reap(pid: i32) -> Option<End> {
    let mut status: c_int = 0;
    // SAFETY: the status is ours; only this pid is waited for.
    let reaped = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
    match reaped {
        0 => None,
        _ if reaped == pid && libc::WIFSIGNALED(status) => Signal::new(libc::WTERMSIG(status)).map(End::Signal),
        _ if reaped == pid => Some(End::Code(libc::WEXITSTATUS(status) as u8)),
        // Nothing to wait for: somebody ignores SIGCHLD, or has reaped it.
        _ => Some(End::Code(0)),
    }
}

/// Everything the child needs, made before the fork.
struct Start {
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    fds: [RawFd; 3],
    parent: libc::pid_t,
}

/// # Safety
/// In a freshly forked child only. Allocates nothing and takes no lock.
unsafe fn become_probe(start: &Start, candidates: &[Candidate]) -> ! {
    // SAFETY: system calls on descriptors and strings that the parent made; the sets and limits live on this stack.
    unsafe {
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != start.parent {
            libc::_exit(1);
        }
        // The kernel's own call: the C library keeps 32 and 33 to itself, and a zeroed action is the default one.
        let default = [0u64; 4];
        for signal in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), ptr::null::<u64>(), 8);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        for (to, from) in (0..).zip(start.fds) {
            libc::dup2(from, to);
        }
        close_others_on_exec();
        // A crash in the driver's library leaves no core file in the trainer's directory.
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
        let score = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if score >= 0 {
            libc::write(score, c"1000".as_ptr().cast(), 4);
        }
        let (argv, envp) = (start.argv.as_ptr(), start.envp.as_ptr());
        let mut errno = libc::ENOENT;
        for candidate in candidates {
            errno = candidate.exec(argv, envp);
        }
        tell_errno(errno);
        libc::_exit(127)
    }
}

/// Marks every descriptor from 3 up to be closed by the exec.
///
/// # Safety
/// As [`become_probe`].
unsafe fn close_others_on_exec() {
    // SAFETY: plain system calls; the limit lives on this stack.
    unsafe {
        let all = libc::c_uint::MAX;
        if libc::syscall(libc::SYS_close_range, 3, all, libc::CLOSE_RANGE_CLOEXEC) == 0 {
            return;
        }
        // Before Linux 5.11, or forbidden by a seccomp filter.
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        for fd in 3..limit.rlim_cur.clamp(1024, 1 << 20) as c_int {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
}

/// Writes `{"t":"error","fn":"exec","code":N}` to standard output.
///
/// # Safety
/// As [`become_probe`].
unsafe fn tell_errno(errno: c_int) {
    let mut line = *b"{\"t\":\"error\",\"fn\":\"exec\",\"code\":    }\n";
    let mut rest = errno.unsigned_abs() % 10_000;
    let mut at = line.len() - 3;
    while rest > 0 {
        line[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        at -= 1;
    }
    // SAFETY: the buffer is this function's own.
    unsafe { libc::write(1, line.as_ptr().cast(), line.len()) };
}

/// A pipe, both ends above the three standard descriptors and closed on exec: read end, write end.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the array has room for two descriptors, which are ours once returned.
    let (read, write) = unsafe {
        if libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1]))
    };
    Ok((high(read)?, high(write)?))
}

/// Whoever was started without standard descriptors gets its pipes there; the child's dup2 would overwrite them.
fn high(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > 2 {
        return Ok(fd);
    }
    // SAFETY: the descriptor is open; the new one is ours.
    unsafe {
        let new = libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3);
        if new < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(new)) }
    }
}

fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is open; a fresh pipe has no other status flags to keep.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

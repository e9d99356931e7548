//! The probe as a process: started with only the environment, read without blocking, killed, reaped.
//!
//! NVIDIA's library may hang, crash, print or leak only in that process. [`ProbeProcess`] is for a supervisor that
//! polls and reaps itself; [`ask`] runs a probe to its end, for commands that have no other work. Deliberately absent:
//! the meaning of the lines (`rules::gpu`), and a second concurrent probe.
//!
//! libc is used because the child's calls must be async-signal-safe, and because nix's signals leave out the real-time
//! signals.

#![expect(unsafe_code, reason = "fork, exec and the code between them")]

use std::ffi::{CString, c_char, c_int};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{ForkResult, Pid, fork, pipe2, read, setpgid};

use crate::edge::clock::Clock;
use crate::edge::gpu::probe_exec::{Candidate, ProbeProgram};
use crate::edge::io::eventfd;
use crate::edge::process::reaper::{self, Wait};
use crate::edge::process::spawn::{own_pid, pointers};
use crate::rules::gpu::answer::{Ending, Report};
use crate::rules::gpu::protocol::{Findings, Limits, Overrun, Reader};
use crate::rules::process::env::{Changes, Env};
use crate::rules::process::exit::End;

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "__gpu-probe";

/// How long to wait for a killed probe. One that is stuck in the kernel is left behind.
const REAP_LIMIT: Duration = Duration::from_secs(2);
/// How often to check for the death of a probe if another process holds its output open.
const GLANCE: Duration = Duration::from_millis(100);

/// The task of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Report the data of NVML once.
    Discover,
    /// Report the device nodes once.
    Nodes,
    /// Report the GPUs, then events, and a sample of each GPU at this interval.
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

/// A running probe. Its owner reaps `pid`; dropping this closes the pipes and does not end the process.
#[derive(Debug)]
pub struct ProbeProcess {
    /// The process ID, which is also the process group.
    pub pid: i32,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl AsRawFd for ProbeProcess {
    /// For poll(2): readable when the probe has written or has closed its output.
    fn as_raw_fd(&self) -> RawFd {
        self.stdout.as_raw_fd()
    }
}

impl ProbeProcess {
    /// Starts a probe in its own process group, with default signal dispositions, no blocked signals, no descriptors
    /// except three pipes, and the highest OOM score. It is killed when the calling *thread* ends, so call this on the
    /// main thread. If the program cannot be executed, the pipe contains an `error` line of `exec`. Errors: as pipe(2)
    /// and fork(2).
    pub fn spawn(program: &ProbeProgram, mode: Mode, env: &Env) -> io::Result<ProbeProcess> {
        let (stdin, _) = pipe()?;
        let (stdout, out) = pipe()?;
        let (stderr, err) = pipe()?;
        // A library that floods its standard error loses text instead of blocking.
        for fd in [&stdout, &stderr, &err] {
            set_nonblocking(fd)?;
        }
        let terminated = |bytes: Vec<u8>| CString::new(bytes).map_err(io::Error::other);
        let mut argv = vec![terminated(program.name.clone().into_bytes())?, terminated(SUBCOMMAND.into())?];
        for word in mode.words() {
            argv.push(terminated(word.into_bytes())?);
        }
        let envp = env.with(&Changes::default()).into_iter().map(terminated).collect::<io::Result<Vec<_>>>()?;
        let start = Start {
            argv: pointers(&argv),
            envp: pointers(&envp),
            fds: [stdin.as_raw_fd(), out.as_raw_fd(), err.as_raw_fd()],
            parent: own_pid(),
        };
        // SAFETY: the child calls only async-signal-safe functions on data prepared above, then execs or exits.
        match unsafe { fork() }? {
            // SAFETY: as above.
            ForkResult::Child => unsafe { become_probe(&start, &program.candidates) },
            ForkResult::Parent { child } => {
                // The child does the same; the first of the two creates the group.
                let _ = setpgid(child, child);
                Ok(ProbeProcess { pid: child.as_raw(), stdout, stderr })
            }
        }
    }

    /// Reads the output available now. `None` after the probe, and all other processes that hold its output, have
    /// closed it.
    pub fn read(&self) -> Option<Vec<u8>> {
        let mut buffer = [0u8; 16 * 1024];
        loop {
            match read(&self.stdout, &mut buffer) {
                Ok(0) => return None,
                Ok(count) => return Some(buffer[..count].to_vec()),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Some(Vec::new()),
                Err(_) => return None,
            }
        }
    }

    /// Kills the probe and its process group. Call it only before the probe is reaped.
    pub fn kill(&self) {
        // The IDs are not reused before the probe is reaped.
        let pid = Pid::from_raw(self.pid);
        let _ = killpg(pid, Signal::SIGKILL);
        let _ = kill(pid, Signal::SIGKILL);
    }

    /// The last line that the probe or its loader wrote to standard error; at most 200 characters.
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

/// Starts a probe and runs it to its end, bounded by the limits and the time to reap it. The time is up as soon as
/// `may_continue` returns false. Waits for no other child.
pub fn ask(program: &ProbeProgram, mode: Mode, env: &Env, limits: Limits, may_continue: &dyn Fn() -> bool) -> Report {
    let clock = Clock::start();
    let mut reader = Reader::new(clock.now(), limits);
    let mut findings = Findings::default();
    let name = program.name.clone();
    let probe = match ProbeProcess::spawn(program, mode, env) {
        Ok(probe) => probe,
        Err(error) => {
            let ending = Ending::NotStarted(error.to_string());
            return Report { program: name, findings, ending, last_call: String::new(), words: String::new() };
        }
    };
    let ending = loop {
        let output = probe.read();
        for line in reader.feed(clock.now(), output.as_deref().unwrap_or_default()) {
            findings.add(line);
        }
        let now = if may_continue() { clock.now() } else { Duration::MAX };
        if let Some(overrun) = reader.overrun(now) {
            break finish(&probe, &clock, overrun, findings.ended);
        }
        if output.as_ref().is_none_or(Vec::is_empty) {
            if let Some(end) = try_reap(probe.pid) {
                // Output written between the last read and the death.
                while let Some(output) = probe.read().filter(|output| !output.is_empty()) {
                    for line in reader.feed(clock.now(), &output) {
                        findings.add(line);
                    }
                }
                break Ending::Ended(end);
            }
            let left = reader.deadline().saturating_sub(clock.now()).min(GLANCE);
            match output {
                Some(_) => eventfd::wait_readable(&[probe.as_raw_fd()], Some(left)),
                None => eventfd::wait_readable(&[], Some(left.min(Duration::from_millis(1)))),
            }
        }
    };
    Report { program: name, findings, ending, last_call: reader.last_call().to_owned(), words: probe.last_words() }
}

/// Kills a probe that exceeded its time, and reaps it if possible.
fn finish(probe: &ProbeProcess, clock: &Clock, overrun: Overrun, ended: bool) -> Ending {
    probe.kill();
    let until = clock.now() + REAP_LIMIT;
    loop {
        if let Some(end) = try_reap(probe.pid) {
            // The answer was complete; only the exit was slow.
            return if ended { Ending::Ended(end) } else { Ending::Overrun(overrun) };
        }
        if clock.now() >= until {
            return Ending::Stuck(overrun);
        }
        eventfd::wait_readable(&[], Some(Duration::from_millis(1)));
    }
}

/// The end of this child, if it has ended.
fn try_reap(pid: i32) -> Option<End> {
    match reaper::wait_for(pid) {
        Wait::Ended { end, .. } => Some(end),
        Wait::Stopped { .. } | Wait::Nothing => None,
        // No such child: SIGCHLD is ignored, or other code has reaped it.
        Wait::Empty => Some(End::Code(0)),
    }
}

/// Data for the child, prepared before the fork.
struct Start {
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    fds: [RawFd; 3],
    parent: libc::pid_t,
}

/// # Safety
/// Call only in a freshly forked child. It allocates nothing and takes no lock.
unsafe fn become_probe(start: &Start, candidates: &[Candidate]) -> ! {
    // SAFETY: system calls on descriptors and strings that the parent prepared; the sets and limits are on this stack.
    unsafe {
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != start.parent {
            libc::_exit(1);
        }
        // The system call itself, because the C library reserves signals 32 and 33. A zeroed action is the default one.
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
        // A crash in the driver's library must not leave a core file in the trainer's directory.
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
        // Linux before 5.11, or a seccomp filter.
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
    // SAFETY: the buffer is on this stack.
    unsafe { libc::write(1, line.as_ptr().cast(), line.len()) };
}

/// A pipe: read end and write end, both above the three standard descriptors and closed on exec.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    Ok((high(read)?, high(write)?))
}

/// Moves a descriptor above 2. A process started without standard descriptors gets its pipes there, and the child's
/// dup2 would overwrite them.
fn high(fd: OwnedFd) -> io::Result<OwnedFd> {
    // std makes no copy below 3.
    if fd.as_raw_fd() > 2 { Ok(fd) } else { fd.try_clone() }
}

fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    // A new pipe has no other status flags.
    Ok(fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map(drop)?)
}

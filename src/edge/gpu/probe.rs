//! The probe as a process: started with only the environment, read without blocking, killed, reaped.
//!
//! NVIDIA's library may hang, crash, print or leak only in that process. [`ProbeProcess`] is for a supervisor that
//! polls and reaps itself; [`ask`] runs a probe to its end, for commands that have no other work. Deliberately absent:
//! the meaning of the lines (`rules::gpu`), and a second concurrent probe.

use std::ffi::OsString;
use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{Pid, setpgid, write};

use crate::edge::clock::Clock;
use crate::edge::gpu::program::ProbeProgram;
use crate::edge::io::{eventfd, stdio};
use crate::edge::process::reaper::{self, Wait};
use crate::edge::process::signals::Mask;
use crate::edge::process::spawn::{self, Launch};
use crate::rules::gpu::answer::{Ending, Report};
use crate::rules::gpu::protocol::{Findings, Limits, Overrun, Reader};
use crate::rules::process::env::{Changes, Env};
use crate::rules::process::exit::End;
use crate::rules::process::signal::Signal;

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
    fn words(self) -> Vec<OsString> {
        match self {
            Mode::Discover => vec!["discover".into()],
            Mode::Nodes => vec!["nodes".into()],
            Mode::Watch(interval) => vec!["watch".into(), interval.as_millis().to_string().into()],
        }
    }
}

/// A running probe. Its owner reaps `pid`; dropping this closes the pipes and does not end the process.
#[derive(Debug)]
pub struct ProbeProcess {
    /// The process ID, which is also the process group.
    pub pid: i32,
    stdout: PipeReader,
    stderr: PipeReader,
}

impl AsRawFd for ProbeProcess {
    /// For poll(2): readable when the probe has written or has closed its output.
    fn as_raw_fd(&self) -> RawFd {
        self.stdout.as_raw_fd()
    }
}

impl ProbeProcess {
    /// Starts a probe in its own process group, with three pipes and no blocked signals; `probe_main` isolates it further. It
    /// is killed when the calling *thread* ends, so call this on the main thread. If the program cannot be executed, the pipe
    /// contains an `error` line of `exec`. Errors: as pipe(2) and clone(2).
    pub fn spawn(program: &ProbeProgram, mode: Mode, env: &Env) -> io::Result<ProbeProcess> {
        let (stdin, _) = io::pipe()?;
        let (stdout, out) = io::pipe()?;
        let (stderr, err) = io::pipe()?;
        // A library that floods its standard error loses text instead of blocking.
        for fd in [stdout.as_fd(), stderr.as_fd(), err.as_fd()] {
            // A new pipe has no other status flags.
            fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        let argv = [vec![program.name.clone().into(), SUBCOMMAND.into()], mode.words()].concat();
        let launch = Launch {
            argv: &argv,
            env: env.with(&Changes::default()),
            mask: Mask::EMPTY,
            ignore_chld: false,
            new_session: false,
            terminal: None,
            death_signal: Some(Signal::KILL),
            stdin: Some(stdin.into()),
            stdout: Some(out.into()),
            stderr: Some(err.into()),
        };
        let files = program.files.iter().map(|file| file.clone().into_os_string().into_vec()).collect();
        let pid = spawn::launch_unwaited(launch, files, &tell_errno)?;
        // The child does the same; the first of the two creates the group.
        let _ = setpgid(Pid::from_raw(pid), Pid::from_raw(pid));
        Ok(ProbeProcess { pid, stdout, stderr })
    }

    /// Reads the output available now. `None` after the probe, and all other processes that hold its output, have
    /// closed it.
    pub fn read(&self) -> Option<Vec<u8>> {
        let mut buffer = [0u8; 16 * 1024];
        loop {
            match (&self.stdout).read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => return Some(buffer[..count].to_vec()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(Vec::new()),
                Err(_) => return None,
            }
        }
    }

    /// Kills the probe and its process group. Call it only before the probe is reaped.
    pub fn kill(&self) {
        // The IDs are not reused before the probe is reaped.
        let _ = spawn::kill(-self.pid, Signal::KILL);
        let _ = spawn::kill(self.pid, Signal::KILL);
    }

    /// The last line that the probe or its loader wrote to standard error; at most 200 characters.
    pub fn last_words(&self) -> String {
        let mut text = Vec::new();
        let _ = (&self.stderr).take(64 * 1024).read_to_end(&mut text);
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

/// Writes `{"t":"error","fn":"exec","code":N}` to standard output. Runs in the child, so it allocates nothing.
fn tell_errno(errno: i32) {
    let mut line = [0; 64];
    let mut rest = &mut line[..];
    let _ = writeln!(rest, r#"{{"t":"error","fn":"exec","code":{errno}}}"#);
    let length = 64 - rest.len();
    let _ = write(stdio::STDOUT, &line[..length]);
}

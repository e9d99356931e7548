//! A builder for runs of the real binary. It waits for output of the program, never for time.

pub mod blobs;
pub mod bucket;
pub mod cgroup;
pub mod checkpoints;
pub mod documents;
pub mod fake_nvml;
pub mod gang;
pub mod metadata;
pub mod mounts;
pub mod tracer;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The limit for any wait. It is longer than any wait on a busy machine, so reaching it is a failure.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The program under test: the file that TRAINIT names, else the build of this profile.
pub fn binary() -> PathBuf {
    std::env::var_os("TRAINIT").map_or_else(|| env!("CARGO_BIN_EXE_trainit").into(), PathBuf::from)
}

/// Ends a test that cannot be tried here. That is a failure unless TRAINIT_MAY_SKIP is 1: `scripts/test` sets it to 0, so
/// that a machine on which a promise was not tried does not count as one on which it holds.
#[track_caller]
pub fn skip(reason: impl std::fmt::Display) {
    let may_skip = std::env::var("TRAINIT_MAY_SKIP").is_ok_and(|value| value == "1");
    assert!(may_skip, "cannot be tried here: {reason}; make it possible, or set TRAINIT_MAY_SKIP=1");
    eprintln!("skipped: {reason}");
}

/// A command line of trainit. Its environment has only PATH.
pub struct Trainit {
    command: Command,
}

impl Trainit {
    /// `trainit ARGS...`
    pub fn new<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Trainit {
        Trainit::through(&[], args)
    }

    /// `trainit run -- COMMAND...`
    pub fn run<S: AsRef<OsStr>>(command: impl IntoIterator<Item = S>) -> Trainit {
        Trainit::new(["run", "--"]).args(command)
    }

    /// As real PID 1 of a fresh PID namespace with its own /proc.
    pub fn pid1<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Trainit {
        Trainit::through(&["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL"], args)
    }

    /// Started by another program: `PREFIX... trainit ARGS...`
    pub fn through<S: AsRef<OsStr>>(prefix: &[&str], args: impl IntoIterator<Item = S>) -> Trainit {
        let mut command = match prefix.split_first() {
            Some((program, rest)) => {
                let mut command = Command::new(program);
                command.args(rest).arg(binary());
                command
            }
            None => Command::new(binary()),
        };
        command.args(args).env_clear().stdin(Stdio::null());
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        // Tests read the log's fields and the verdict. A simulated platform chooses the format itself.
        let is_simulation = command.get_args().any(|arg| arg == "simulate");
        if !is_simulation {
            command.env("TRAINIT_LOG_FORMAT", "json");
        }
        Trainit { command }
    }

    /// More arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Trainit {
        self.command.args(args);
        self
    }

    /// A variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Trainit {
        self.command.env(name, value);
        self
    }

    /// The working directory.
    pub fn dir(mut self, dir: &Path) -> Trainit {
        self.command.current_dir(dir);
        self
    }

    /// Sets standard input.
    pub fn stdin(mut self, stdin: impl Into<Stdio>) -> Trainit {
        self.command.stdin(stdin);
        self
    }

    /// The command itself, for options that this builder does not have.
    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Starts it with both outputs captured.
    pub fn start(mut self) -> Running {
        let mut child = self
            .command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {:?}: {e}", self.command));
        let stdout = Capture::of(child.stdout.take().unwrap());
        let stderr = Capture::of(child.stderr.take().unwrap());
        Running { child, stdout, stderr }
    }

    /// Runs it to its end.
    pub fn output(self) -> Finished {
        self.start().finish()
    }
}

/// A started trainit. Killed when dropped.
pub struct Running {
    child: Child,
    stdout: Capture,
    stderr: Capture,
}

impl Running {
    /// The process id of what was started (of `unshare` for a PID 1).
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends a signal to what was started.
    pub fn signal(&self, signal: i32) {
        send(self.pid(), signal);
    }

    /// Waits until a line of standard output contains the text; returns the line.
    pub fn after_line(&self, text: &str) -> String {
        self.stdout.wait_for(text, &self.stderr)
    }

    /// Waits until a line of standard error contains the text; returns the line.
    pub fn after_log(&self, text: &str) -> String {
        self.stderr.wait_for(text, &self.stdout)
    }

    /// Standard error so far.
    pub fn log_so_far(&self) -> String {
        self.stderr.text()
    }

    /// Sends SIGTERM and waits for the end.
    pub fn stop(self) -> Finished {
        self.signal(libc::SIGTERM);
        self.finish()
    }

    /// Waits for the end.
    pub fn finish(self) -> Finished {
        self.finish_within(TIMEOUT)
    }

    /// Waits for the end of a program that may take long.
    pub fn finish_within(mut self, limit: Duration) -> Finished {
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                Instant::now() < deadline,
                "still running after {limit:?}\nstdout: {}\nstderr: {}",
                self.stdout.text(),
                self.stderr.text()
            );
            std::thread::park_timeout(Duration::from_millis(2));
        };
        Finished { status, stdout: self.stdout.close(), stderr: self.stderr.close() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A trainit that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Its status.
    pub status: ExitStatus,
    /// Everything it and its children wrote to standard output.
    pub stdout: Vec<u8>,
    /// Everything on standard error.
    pub stderr: Vec<u8>,
}

impl Finished {
    /// The exit code; 128 + n when a signal ended it.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Fails with both outputs unless the code is this.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Finished {
        assert_eq!(self.code(), code, "stdout: {}\nstderr: {}", self.out(), self.err());
        self
    }

    /// Standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// The verdict: the object on the last log line (JSON form).
    #[track_caller]
    pub fn verdict(&self) -> serde_json::Value {
        let err = self.err();
        let last = err.lines().last().unwrap_or_else(|| panic!("no log at all; stdout: {}", self.out()));
        let line: serde_json::Value =
            serde_json::from_str(last).unwrap_or_else(|e| panic!("the last line is no JSON ({e}): {err}"));
        line.get("verdict").unwrap_or_else(|| panic!("no verdict on the last line: {err}")).clone()
    }
}

/// Reads a pipe on a separate thread and lets others wait for its lines.
struct Capture {
    shared: Arc<(Mutex<State>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    closed: bool,
}

impl Capture {
    fn of(pipe: impl Read + Send + 'static) -> Capture {
        let shared = Arc::new((Mutex::new(State::default()), Condvar::new()));
        let ours = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let mut reader = BufReader::new(pipe);
            loop {
                let chunk = reader.fill_buf().map(<[u8]>::to_vec).unwrap_or_default();
                reader.consume(chunk.len());
                let mut state = ours.0.lock().unwrap();
                state.closed = chunk.is_empty();
                state.bytes.extend_from_slice(&chunk);
                ours.1.notify_all();
                if state.closed {
                    return;
                }
            }
        });
        Capture { shared, thread: Some(thread) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shared.0.lock().unwrap().bytes).into_owned()
    }

    #[track_caller]
    fn wait_for(&self, text: &str, other: &Capture) -> String {
        let deadline = Instant::now() + TIMEOUT;
        let mut state = self.shared.0.lock().unwrap();
        loop {
            let all = String::from_utf8_lossy(&state.bytes).into_owned();
            if let Some(line) = all.split_inclusive('\n').find(|l| l.contains(text) && l.ends_with('\n')) {
                return line.to_owned();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !state.closed && !left.is_zero(),
                "{text:?} never came; got: {all}\nthe other stream: {}",
                other.text()
            );
            state = self.shared.1.wait_timeout(state, left).unwrap().0;
        }
    }

    fn close(&mut self) -> Vec<u8> {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        std::mem::take(&mut self.shared.0.lock().unwrap().bytes)
    }
}

/// kill(2).
pub fn send(pid: i32, signal: i32) {
    let status = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status().unwrap();
    assert!(status.success(), "kill -{signal} {pid}");
}

/// Waits until the condition holds; fails after [`TIMEOUT`].
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Fails unless the time since `begun` is short enough for work without a wait on a busy machine. A test uses it to
/// exclude a longer wait. Bounds below 5 s do not hold on a busy machine.
#[track_caller]
pub fn assert_prompt(begun: Instant) {
    assert_within(begun, Duration::from_secs(10));
}

/// Fails unless the time since `begun` is within the limit, which is a promise of trainit and a margin for a busy machine.
#[track_caller]
pub fn assert_within(begun: Instant, limit: Duration) {
    let took = begun.elapsed();
    assert!(took < limit, "took {took:?}, expected at most {limit:?}");
}

/// A temporary directory that other users can enter. TMPDIR may be closed to them.
pub fn shared_dir() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let open = std::fs::Permissions::from_mode(0o755);
    tempfile::Builder::new().prefix("trainit-test-").permissions(open).tempdir_in("/tmp").unwrap()
}

/// Whether a process exists and is not a zombie.
pub fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

/// The oldest child of the process's main thread: the command. A GPU probe may be another child.
pub fn first_child(pid: i32) -> Option<i32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Whether the driver of real GPUs is loaded here, so that a machine without GPUs cannot be tested.
pub fn has_gpus() -> bool {
    let has_driver = std::path::Path::new("/proc/driver/nvidia").exists();
    if has_driver {
        crate::support::skip("a machine without GPUs (this one has an NVIDIA driver)");
    }
    has_driver
}

/// Whether the tests run as root: namespaces, mounts, device nodes.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Waits until a run has reserved space in its run directory, its only wake-up without a cause, and all its threads
/// sleep.
#[track_caller]
pub fn settled(running: &Running, dir: &Path) {
    let sleeps = |task: PathBuf| {
        let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:\tS"))
    };
    eventually("the run settles", || {
        let mut tasks = std::fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap();
        dir.join(".preemption").exists() && tasks.all(|task| sleeps(task.unwrap().path()))
    });
}

/// Waits until the program has stopped itself.
#[track_caller]
pub fn stopped(running: &Running) {
    eventually("the program stops at its fault point", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", running.pid())).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    });
}

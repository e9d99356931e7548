//! No flood from outside delays trainit's deadline: signals, children, output, files, callers, log lines.

use std::fs;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::support::{Finished, Running, Trainit, send};

/// A flood that is handled without a bound delays the deadline by more than this.
const LATE: Duration = Duration::from_secs(45);
const FLOOD_SECONDS: u32 = 90;
const GRACE: &[&str] = &["--stop-grace", "1s"];

/// A trainer that ignores SIGTERM and floods for some time, with this action.
fn flood(action: &str) -> String {
    format!(
        "
import os, signal, sys, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
end = time.monotonic() + {FLOOD_SECONDS}
{action}
print('ready', file=sys.stderr, flush=True)
flood()
time.sleep(1000)
"
    )
}

fn run(options: &[&str], program: &str) -> Trainit {
    Trainit::new(["run"]).args(GRACE).args(options).args(["--", "python3", "-c", program])
}

/// Sends SIGTERM to this process, and checks that the run ends soon after the grace.
fn stops_in_time(running: Running, pid: i32) -> Finished {
    let begin = Instant::now();
    send(pid, libc::SIGTERM);
    let done = running.finish();
    assert!(begin.elapsed() < LATE, "{:?}: {}", begin.elapsed(), done.err());
    done.expect_code(143)
}

#[test]
fn real_time_signals_that_two_processes_queue_without_end() {
    let program = flood("signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 65))\ndef flood(): pass");
    let running = run(&[], &program).start();
    running.after_log("ready");
    let sender = format!(
        "import os, sys, time\nend = time.monotonic() + 3\nprint('up', flush=True)\n\
         while time.monotonic() < end:\n    for signal in range(40, 60): os.kill({}, signal)",
        running.pid()
    );
    let mut senders: Vec<_> =
        (0..2).map(|_| std::process::Command::new("python3").args(["-c", &sender]).spawn().unwrap()).collect();
    for sender in &mut senders {
        sender.wait().unwrap();
    }
    let pid = running.pid();
    assert_eq!(stops_in_time(running, pid).verdict()["child_signal"], libc::SIGKILL);
}

/// Each process of a chain forks the next and ends.
const CHAINS: &str = "
def flood():
    for chain in range(20):
        if os.fork() == 0:
            SESSION
            while time.monotonic() < end:
                if os.fork(): os._exit(0)
            os._exit(0)
";

#[test]
fn chains_of_forks_that_end_faster_than_they_can_be_listed() {
    for session in ["pass", "os.setsid()"] {
        let running = run(&[], &flood(&CHAINS.replace("SESSION", session))).start();
        running.after_log("ready");
        let pid = running.pid();
        stops_in_time(running, pid);
    }
}

#[test]
fn chains_of_forks_below_pid_1() {
    let program = flood(&CHAINS.replace("SESSION", "os.setsid()"));
    let running = Trainit::pid1(["run"]).args(GRACE).args(["--", "python3", "-c", &program]).start();
    running.after_log("ready");
    let inner = crate::support::first_child(running.pid()).unwrap();
    stops_in_time(running, inner);
}

#[test]
fn output_that_is_searched_for_metrics() {
    let action = "
def flood():
    line = b'loss: 0.5\\n' * 4096
    while time.monotonic() < end: os.write(1, line)
";
    for options in [&["--metric", "loss=loss: ([0-9.]+)"][..], &["--nproc", "2"]] {
        let running = run(options, &flood(action)).start();
        running.after_log("ready");
        let pid = running.pid();
        stops_in_time(running, pid);
    }
}

#[test]
fn files_that_are_followed() {
    let action = "
def flood():
    events, records = open('tfevents.1', 'ab'), open('records', 'ab')
    event = open('event', 'rb').read() * 64
    n = 0
    while time.monotonic() < end:
        n += 1
        events.write(event)
        records.write(b'{\"tag\": \"a\", \"value\": 0.5, \"step\": %d}\\n' % n * 1024)
        if n % 1024 == 0: events.truncate(0); records.truncate(0)
";
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("event"), include_bytes!("../../golden/tensorboard/tensorboardX.tfevents")).unwrap();
    let options = ["--tensorboard-dir", ".", "--metric-file", "records"];
    let running = run(&options, &flood(action)).dir(dir.path()).start();
    running.after_log("ready");
    let pid = running.pid();
    stops_in_time(running, pid);
}

#[test]
fn callers_on_the_status_socket() {
    let running = run(&[], &flood("print(os.environ['TRAINIT_SOCKET'], flush=True)\ndef flood(): pass")).start();
    running.after_log("ready");
    let socket = running.after_line("/").trim().to_owned();
    let begin = Instant::now();
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let socket = socket.clone();
            std::thread::spawn(move || {
                while begin.elapsed() < Duration::from_secs(FLOOD_SECONDS.into()) {
                    // After the run nothing listens.
                    if UnixStream::connect(&socket).is_err_and(|e| e.kind() != std::io::ErrorKind::WouldBlock) {
                        return;
                    }
                }
            })
        })
        .collect();
    let pid = running.pid();
    stops_in_time(running, pid);
    callers.into_iter().for_each(|caller| caller.join().unwrap());
}

#[test]
fn lines_for_a_log_that_is_not_read() {
    let program =
        flood("signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 65))\ndef flood(): print('up', flush=True)");
    let (log, log_writer) = std::io::pipe().unwrap();
    let mut trainit = run(&["--log-level", "debug"], &program);
    let (mut said, said_writer) = std::io::pipe().unwrap();
    let mut child = trainit.command().stdout(said_writer).stderr(log_writer).spawn().unwrap();
    drop(trainit);
    std::io::Read::read_exact(&mut said, &mut [0; 3]).unwrap();
    let begin = Instant::now();
    let pid = child.id() as i32;
    while begin.elapsed() < Duration::from_secs(1) {
        for signal in [40, 41, 42] {
            send(pid, signal);
        }
    }
    let begin = Instant::now();
    send(pid, libc::SIGTERM);
    let code = child.wait().unwrap().code();
    assert!(begin.elapsed() < LATE, "{:?}", begin.elapsed());
    assert_eq!(code, Some(143));
    drop(log);
}

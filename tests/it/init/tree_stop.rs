//! The stop of a tree from the top down: a process that handles SIGTERM gets time, and its descendants wait. Also the log
//! lines about processes that were left or killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Finished, Running, Trainit, is_root};

// Python's print is not reentrant, so a trainer whose handler prints says with os.write that it is ready.

/// A folder with programs in it, each executable.
fn programs(all: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in all {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    dir
}

fn start(dir: &Path, options: &[&str], command: &[&str]) -> Running {
    Trainit::new(["run"]).args(options).args(["--"]).args(command).dir(dir).start()
}

/// Lines of standard output that contain the text.
fn count(done: &Finished, text: &str) -> usize {
    done.out().lines().filter(|line| line.contains(text)).count()
}

const WITHOUT_EXEC: &str = "#!/bin/sh\npython3 train.py\necho \"left with $?\"\n";

const WITH_A_POOL: &str = "
import signal, time
from concurrent.futures import ProcessPoolExecutor
stop = []
def batch(n):
    time.sleep(0.1)
    return n
def plain(): signal.signal(signal.SIGTERM, signal.SIG_DFL)
if __name__ == '__main__':
    with ProcessPoolExecutor(2, initializer=plain) as pool:
        signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
        while not stop:
            list(pool.map(batch, range(4)))
            print('step', flush=True)
        print('saved', sum(pool.map(batch, range(4))), flush=True)
";

#[test]
fn a_trainer_with_a_pool_of_workers_saves_behind_a_shell_that_did_not_exec() {
    let dir = programs(&[("train.sh", WITHOUT_EXEC), ("train.py", WITH_A_POOL)]);
    let running = start(dir.path(), &[], &["./train.sh"]);
    running.after_line("step");
    let done = running.stop().expect_code(143);
    assert!(done.out().contains("saved 6"), "{}{}", done.out(), done.err());
}

#[test]
fn a_program_that_a_handler_starts_to_save_gets_time() {
    let trainer = "
import os, signal, subprocess, sys, time
def term(*_):
    print(subprocess.run(['sh', '-c', 'sleep 1; echo saved'], capture_output=True, text=True), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, term)
os.write(1, b'ready\\n')
while True: time.sleep(0.05)
";
    let dir = programs(&[("train.sh", WITHOUT_EXEC), ("train.py", trainer)]);
    let running = start(dir.path(), &[], &["./train.sh"]);
    running.after_line("ready");
    let done = running.stop().expect_code(143);
    assert!(done.out().contains("returncode=0, stdout='saved"), "{}{}", done.out(), done.err());
}

#[test]
fn a_program_that_a_daemon_starts_to_flush_gets_time() {
    let daemon =
        "#!/bin/sh\ntrap 'sh -c \"sleep 1; echo flushed\"; exit' TERM\necho up\nwhile :; do sleep 0.05; done\n";
    for pid1 in [false, true] {
        if pid1 && !is_root() {
            continue;
        }
        let dir = programs(&[("daemon.sh", daemon), ("main.sh", "#!/bin/sh\nsetsid ./daemon.sh &\nexec sleep 1000\n")]);
        let trainit = if pid1 { Trainit::pid1(["run", "--", "./main.sh"]) } else { Trainit::run(["./main.sh"]) };
        let running = trainit.dir(dir.path()).start();
        running.after_line("up");
        let done = if pid1 {
            let inner = crate::support::first_child(running.pid()).unwrap();
            crate::support::send(inner, libc::SIGTERM);
            running.finish()
        } else {
            running.stop()
        };
        assert!(done.expect_code(143).out().contains("flushed"));
    }
}

#[test]
fn the_reader_of_a_pipe_gets_the_trainers_last_output() {
    let trainer = "
import os, signal, sys, time
def term(*_):
    for n in range(20):
        print('saving', n, flush=True)
        time.sleep(0.05)
    print('saved', flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, term)
os.write(1, b'ready\\n')
while True: time.sleep(0.05)
";
    let dir = programs(&[("train.sh", "#!/bin/sh\npython3 train.py | tee log\n"), ("train.py", trainer)]);
    let running = start(dir.path(), &[], &["./train.sh"]);
    running.after_line("ready");
    let done = running.stop().expect_code(143);
    assert!(done.out().contains("saved\n"), "{}{}", done.out(), done.err());
    assert!(fs::read_to_string(dir.path().join("log")).unwrap().ends_with("saved\n"));
}

#[test]
fn a_trainer_below_a_forwarding_launcher_gets_sigterm_once() {
    let launcher = "
import signal, subprocess, sys
trainer = subprocess.Popen([sys.executable, 'train.py'])
signal.signal(signal.SIGTERM, lambda *_: trainer.terminate())
sys.exit(trainer.wait())
";
    let trainer = "
import signal, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
print('ready', flush=True)
while not heard: time.sleep(0.01)
end = time.monotonic() + 1
while time.monotonic() < end: time.sleep(0.01)
print('heard', len(heard), flush=True)
";
    let dir =
        programs(&[("train.sh", "#!/bin/sh\npython3 launch.py\n:\n"), ("launch.py", launcher), ("train.py", trainer)]);
    let running = start(dir.path(), &[], &["./train.sh"]);
    running.after_line("ready");
    let done = running.stop().expect_code(143);
    assert_eq!(count(&done, "heard 1"), 1, "{}", done.out());
}

/// A trainer and two workers that inherit its handler. Each prints how many signals it got.
// Python drops a signal that arrives during a fork, so each worker reports through a pipe that it runs.
const WITH_LOADERS: &str = "
import os, signal, sys, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
there, says = os.pipe()
for worker in 'ab':
    if os.fork() == 0:
        os.write(says, b'.')
        while not heard: time.sleep(0.01)
        time.sleep(0.2)
        print('worker', worker, 'heard', len(heard), flush=True)
        os._exit(0)
for worker in 'ab': os.read(there, 1)
print('ready', flush=True)
while not heard: time.sleep(0.01)
time.sleep(0.7)
print('trainer heard', len(heard), flush=True)
os._exit(0)
";

#[test]
fn workers_that_inherit_the_handler_get_sigterm_once_and_after_the_trainer() {
    let dir = programs(&[("train.sh", WITHOUT_EXEC), ("train.py", WITH_LOADERS)]);
    let running = start(dir.path(), &[], &["./train.sh"]);
    running.after_line("ready");
    let done = running.stop().expect_code(143);
    let lines: Vec<String> = done.out().lines().filter(|line| line.contains("heard")).map(str::to_owned).collect();
    assert_eq!(lines[0], "trainer heard 1", "{lines:?}");
    let mut workers = lines[1..].to_vec();
    workers.sort();
    assert_eq!(workers, ["worker a heard 1", "worker b heard 1"]);
}

/// Prints when it gets SIGTERM, and ends or does not.
fn listener(at_the_signal: &str) -> String {
    format!(
        "
import os, signal, sys, time
begin = time.monotonic()
def term(*_):
    print('heard', flush=True)
    {at_the_signal}
signal.signal(signal.SIGTERM, term)
os.write(1, b'ready\\n')
while True: time.sleep(0.01)
"
    )
}

#[test]
fn behind_a_shell_with_a_trap_that_does_not_forward_the_trainer_gets_sigterm_in_the_last_third() {
    let script = "#!/bin/sh\ntrap 'echo trapped' TERM\npython3 train.py &\nwhile kill -0 $!; do wait; done\nexit 5\n";
    let dir = programs(&[("train.sh", script), ("train.py", &listener("sys.exit(0)"))]);
    let running = start(dir.path(), &["--stop-grace", "6s"], &["./train.sh"]);
    running.after_line("ready");
    let begin = Instant::now();
    running.signal(libc::SIGTERM);
    running.after_line("trapped");
    running.after_line("heard");
    assert!(begin.elapsed() >= Duration::from_secs(4), "{:?}", begin.elapsed());
    let done = running.finish().expect_code(143);
    assert_eq!(done.verdict()["child_code"], 5, "{}", done.err());
    assert_eq!((count(&done, "trapped"), count(&done, "heard")), (1, 1));
}

#[test]
fn a_trainer_that_gets_sigterm_late_keeps_its_workers_while_it_saves() {
    let script = "#!/bin/sh\ntrap 'echo trapped' TERM\npython3 train.py &\nwhile kill -0 $! 2>&-; do wait; done\n";
    let dir = programs(&[("train.sh", script), ("train.py", WITH_A_POOL)]);
    let running = start(dir.path(), &["--stop-grace", "9s"], &["./train.sh"]);
    running.after_line("step");
    let done = running.stop().expect_code(143);
    assert!(done.out().contains("saved 6"), "{}{}", done.out(), done.err());
}

#[test]
fn an_orphan_without_a_handler_does_not_delay_the_stop() {
    let begin = Instant::now();
    let done = Trainit::new(["run", "--stop-grace", "50s", "--", "sh", "-c", "sleep 1000 & sleep 1000 & exit 4"]);
    done.output().expect_code(4);
    assert!(begin.elapsed() < Duration::from_secs(25), "{:?}", begin.elapsed());
}

#[test]
fn processes_killed_at_the_deadline_are_named_and_so_is_the_shell_that_kept_the_signal() {
    let script =
        "#!/bin/sh\ntrap 'echo trapped' TERM\npython3 train.py &\necho \"trainer $!\"\nwhile :; do wait; done\n";
    let dir = programs(&[("train.sh", script), ("train.py", &listener("pass"))]);
    let running = start(dir.path(), &["--stop-grace", "1s"], &["./train.sh"]);
    running.after_line("ready");
    let trainer = running.after_line("trainer ").trim().rsplit(' ').next().unwrap().to_owned();
    let done = running.stop().expect_code(143);
    let log = done.err();
    let killed = log.lines().find(|line| line.contains("the stop grace is over")).unwrap();
    assert!(killed.contains("train.sh (pid ") && killed.contains(&format!("python3 (pid {trainer})")), "{killed}");
    let why = format!(
        "python3 (pid {trainer}) never got SIGTERM before the last third of the grace: its parent train.sh does not \
         forward it: start it with exec, or use --signal-target group"
    );
    assert!(killed.contains(&why), "{killed}");
}

#[test]
fn a_killed_trainer_that_got_sigterm_in_time_is_not_reported_as_late() {
    let dir = programs(&[("train.sh", WITHOUT_EXEC), ("train.py", &listener("pass"))]);
    let running = start(dir.path(), &["--stop-grace", "1s"], &["./train.sh"]);
    running.after_line("ready");
    let log = running.stop().expect_code(143).err();
    assert!(log.contains("SIGKILL for python3 (pid ") && !log.contains("never got SIGTERM"), "{log}");
}

#[test]
fn a_script_that_ends_before_its_trainer_causes_one_warning_with_names() {
    let script = "#!/bin/sh\npython3 train.py &\nuntil [ -e up ]; do sleep 0.05; done\n";
    let trainer = "import time\nopen('up', 'w').close()\ntime.sleep(1000)\n";
    let dir = programs(&[("train.sh", script), ("train.py", trainer)]);
    let log = start(dir.path(), &[], &["./train.sh"]).finish().expect_code(0).err();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("still running in the background")).collect();
    assert!(matches!(warnings[..], [one] if one.contains("python3 (pid ") && one.contains("exec")), "{log}");
    let waits = "#!/bin/sh\n(sleep 0.1) &\nwait\n";
    let dir = programs(&[("train.sh", waits)]);
    let log = start(dir.path(), &[], &["./train.sh"]).finish().expect_code(0).err();
    assert!(!log.contains("background"), "{log}");
}

#[test]
fn with_target_group_all_processes_get_sigterm_at_once_like_under_dumb_init() {
    // The trainer waits for its workers, which would get no signal while it lives.
    let trainer = WITH_LOADERS.replace("time.sleep(0.7)", "os.wait(); os.wait()");
    let dir = programs(&[("train.sh", WITHOUT_EXEC), ("train.py", &trainer)]);
    let running = start(dir.path(), &["--signal-target", "group", "--stop-grace", "50s"], &["./train.sh"]);
    running.after_line("ready");
    let done = running.stop().expect_code(143);
    assert_eq!(count(&done, "heard 1"), 3, "{}", done.out());
    assert_eq!(done.out().lines().last().unwrap(), "trainer heard 1", "{}", done.out());
    assert!(done.verdict()["seconds"].as_f64().unwrap() < 25.0, "{}", done.err());
}

/// A replacement for the C library's clock: when the file exists, the machine was suspended for two hours.
const CLOCK: &str = r#"#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int code = syscall(SYS_clock_gettime, clock, now);
    const char *file = getenv("SUSPENDED");
    if (code == 0 && clock == CLOCK_BOOTTIME && file && access(file, F_OK) == 0) now->tv_sec += 7200;
    return code;
}
"#;

fn clock(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("clock.c"), dir.join("clock.so"));
    fs::write(&source, CLOCK).unwrap();
    let status =
        Command::new("cc").args(["-O1", "-fPIC", "-shared", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(status.success());
    library
}

#[test]
fn a_deadline_that_passed_during_a_suspend_has_expired() {
    let dir = tempfile::tempdir().unwrap();
    let suspended = dir.path().join("suspended");
    let command = "trap '' TERM; echo ready; while :; do sleep 0.01; done";
    let run = Trainit::new(["run", "--stop-grace", "1h", "--", "sh", "-c", command]).env("SUSPENDED", &suspended);
    let running = run.env("LD_PRELOAD", clock(dir.path())).start();
    running.after_line("ready");
    running.signal(libc::SIGTERM);
    running.after_log("SIGTERM received");
    fs::write(&suspended, "").unwrap();
    // Like any event after the suspend.
    running.signal(libc::SIGWINCH);
    let done = running.finish().expect_code(143);
    assert_eq!(done.verdict()["child_signal"], libc::SIGKILL);
}

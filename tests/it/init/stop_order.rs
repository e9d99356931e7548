//! What a stop reaches first: what saves, then what it needs. With real shells, pipes and terminals.

use std::fs;
use std::path::Path;

use crate::support::{Finished, Running, Trainit, first_child, is_root, send};

/// A trainer that saves for half a second at this signal, through this action for each part, and notes it in `saved`.
fn trainer(signal: &str, part: &str) -> String {
    format!(
        "
import os, signal, socket, sys, time
def save(*_):
    for n in range(5):
        {part}
        time.sleep(0.1)
    open('saved', 'w').close()
    sys.exit(0)
signal.signal(signal.{signal}, save)
print('ready', flush=True)
while True: time.sleep(0.01)
"
    )
}

/// Handles SIGTERM by leaving at once. It notes that it got the signal, and whether the trainer had saved.
const SERVICE: &str = "
import os, signal, sys, time
if 'daemon' in sys.argv:
    if os.fork(): os._exit(0)
    os.setsid()
def term(*_):
    open('late' if os.path.exists('saved') else 'early', 'w').close()
    os._exit(0)
signal.signal(signal.SIGTERM, term)
open('served', 'w').close()
while True: time.sleep(0.01)
";

fn folder(programs: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in programs {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

/// Runs a command that says `ready`, and stops it. Every shell passes on the signals that a terminal sends.
fn stopped(dir: &Path, options: &[&str], command: &[&str]) -> Finished {
    let running = started(dir, options, command);
    running.after_line("ready");
    running.stop().expect_code(143)
}

fn started(dir: &Path, options: &[&str], command: &[&str]) -> Running {
    let run = Trainit::through(&["env", "--default-signal"], ["run", "--stop-grace", "50s"]);
    run.args(options).args(["--"]).args(command).dir(dir).start()
}

const UNTIL_SERVED: &str = "until [ -e served ]; do sleep 0.01; done; python3 train.py; echo left";

#[test]
fn a_service_from_the_entry_script_is_stopped_after_the_trainer_has_saved() {
    let train = trainer("SIGTERM", "pass");
    for start in ["python3 service.py &", "python3 service.py daemon;", "(python3 service.py daemon);"] {
        for shell in ["sh", "bash"] {
            let dir = folder(&[("train.py", &train), ("service.py", SERVICE)]);
            let done = stopped(dir.path(), &[], &[shell, "-c", &format!("{start} {UNTIL_SERVED}")]);
            let has = |name| dir.path().join(name).exists();
            assert!(has("saved") && has("late") && !has("early"), "{shell} {start}: {}", done.err());
            assert!(done.verdict()["seconds"].as_f64().unwrap() < 25.0, "{}", done.err());
        }
    }
}

#[test]
fn jobs_that_are_all_in_the_background_are_stopped_at_the_same_time() {
    // Each rank needs the other one for its save.
    let rank = "
import os, signal, sys, time
def save(*_):
    open('told' + sys.argv[1], 'w').close()
    while not os.path.exists('told' + sys.argv[2]): time.sleep(0.01)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
while True: time.sleep(0.01)
";
    for shell in ["sh", "bash"] {
        let dir = folder(&[("rank.py", rank)]);
        let script = "python3 rank.py 0 1 &\npython3 rank.py 1 0 &\nwait";
        let running = started(dir.path(), &[], &[shell, "-c", script]);
        running.after_line("ready");
        running.after_line("ready");
        let done = running.stop().expect_code(143);
        assert!(done.verdict()["seconds"].as_f64().unwrap() < 25.0, "{}", done.err());
    }
}

#[test]
fn the_reader_of_a_pipe_is_left_alone_until_it_has_read_everything() {
    // Slower than the trainer's end, and with a handler of its own.
    let filter = "
import signal, sys, time
if 'handles' in sys.argv: signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
for line in sys.stdin:
    time.sleep(0.05)
    print('filtered', line, end='', flush=True)
";
    let train = trainer("SIGTERM", "print('part', n, flush=True)");
    for handles in ["", "handles"] {
        for script in [
            format!("python3 train.py | python3 filter.py {handles}; true"),
            format!("exec > >(python3 filter.py {handles}); exec python3 train.py"),
        ] {
            let dir = folder(&[("train.py", &train), ("filter.py", filter)]);
            let done = stopped(dir.path(), &[], &["bash", "-c", &script]);
            assert!(done.out().ends_with("filtered part 4\n"), "{script}: {}{}", done.out(), done.err());
            assert!(done.verdict()["seconds"].as_f64().unwrap() < 25.0, "{}", done.err());
        }
    }
}

#[test]
fn a_trainer_whose_input_is_a_pipe_is_stopped_at_once() {
    let train = trainer("SIGTERM", "pass");
    for script in
        ["echo yes | python3 train.py; true", "yes | python3 train.py; true", "python3 train.py <<E\nyes\nE\ntrue"]
    {
        let dir = folder(&[("train.py", &train)]);
        let done = stopped(dir.path(), &[], &["bash", "-c", script]);
        assert!(dir.path().join("saved").exists(), "{script}: {}", done.err());
        assert!(done.verdict()["seconds"].as_f64().unwrap() < 25.0, "{}", done.err());
    }
}

#[test]
fn behind_a_shell_that_ignores_the_signal_the_trainer_gets_it_at_once() {
    let train = trainer("SIGTERM", "pass");
    for command in [["sh", "-c", "trap '' TERM; python3 train.py; true"], ["bash", "-ic", "python3 train.py; true"]] {
        let dir = folder(&[("train.py", &train)]);
        let done = stopped(dir.path(), &[], &command);
        assert!(dir.path().join("saved").exists(), "{command:?}: {}", done.err());
        assert!(done.verdict()["seconds"].as_f64().unwrap() < 25.0, "{}", done.err());
    }
}

#[test]
fn a_rank_behind_a_shell_gets_the_signal_although_another_rank_saves() {
    let rank = "
import os, signal, sys, time
own = os.environ['RANK']
def save(*_):
    open('told' + own, 'w').close()
    while len([name for name in os.listdir('.') if name.startswith('told')]) < 2: time.sleep(0.01)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
while True: time.sleep(0.01)
";
    let dir = folder(&[("rank.py", rank)]);
    let script = "[ $RANK = 0 ] && exec python3 rank.py; python3 rank.py; true";
    let running = started(dir.path(), &["--nproc", "2"], &["sh", "-c", script]);
    running.after_line("ready");
    running.after_line("ready");
    let done = running.stop().expect_code(143);
    assert!(done.verdict()["seconds"].as_f64().unwrap() < 25.0, "{}", done.err());
}

#[test]
fn the_signal_of_the_stop_reaches_a_trainer_behind_a_shell() {
    // A shell that waits for a command catches SIGINT, so the trainer gets it in the last third. It dies of SIGUSR1.
    for (options, signal) in [
        (["--rewrite-signal", "TERM:INT", "--stop-grace", "6s"], "SIGINT"),
        (["--preempt-signal", "USR1", "--stop-grace", "50s"], "SIGUSR1"),
    ] {
        for shell in ["sh", "bash"] {
            let dir = folder(&[("train.py", &trainer(signal, "pass"))]);
            let command = [shell, "-c", "python3 train.py; true"];
            let running = Trainit::through(&["env", "--default-signal"], ["run"]);
            let running = running.args(options).args(["--"]).args(command).dir(dir.path()).start();
            running.after_line("ready");
            let done = running.stop().expect_code(143);
            assert!(dir.path().join("saved").exists(), "{shell} {options:?}: {}", done.err());
            assert!(done.verdict()["seconds"].as_f64().unwrap() < 25.0, "{}", done.err());
        }
    }
}

#[test]
fn what_lives_on_another_terminal_is_stopped_before_the_process_that_holds_the_terminal() {
    // Dies of SIGTERM, and the terminal with it.
    let holder = "
import os, pty, sys
child, terminal = pty.fork()
if child == 0:
    os.execvp('python3', ['python3', 'train.py'])
while True:
    try:
        text = os.read(terminal, 4096)
    except OSError:
        sys.exit(0)
    os.write(1, text.replace(b'\\r', b''))
";
    let train = trainer("SIGTERM", "pass");
    for command in [&["python3", "holder.py"][..], &["sh", "-c", "python3 holder.py; true"]] {
        let dir = folder(&[("train.py", &train), ("holder.py", holder)]);
        let done = stopped(dir.path(), &[], command);
        assert!(dir.path().join("saved").exists(), "{command:?}: {}", done.err());
    }
}

#[test]
fn a_signal_that_comes_late_is_logged_when_it_is_sent_and_the_grace_with_its_setting() {
    let script =
        "trap 'echo trapped' TERM; python3 train.py & while kill -0 $! 2>&-; do wait; done; while :; do wait; done";
    let dir = folder(&[("train.py", &trainer("SIGTERM", "pass"))]);
    let run = Trainit::new(["run", "--stop-grace", "3s", "--", "sh", "-c", script]).dir(dir.path());
    let running = run.start();
    running.after_line("ready");
    running.signal(libc::SIGTERM);
    running.after_log("the grace is nearly over: SIGTERM only now for python3 (pid ");
    assert!(!running.log_so_far().contains("SIGKILL for"), "{}", running.log_so_far());
    let log = running.finish().expect_code(143).err();
    assert!(log.contains("the stop grace is over (--stop-grace 3s): SIGKILL for sh (pid "), "{log}");
}

#[test]
fn names_in_the_log_are_read_before_the_kill_and_cannot_change_the_line() {
    let named = "
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for n in range(4):
    if os.fork() == 0: break
open('/proc/self/comm', 'wb').write('a\\u202eb\\x1b\\n'.encode())
os.write(1, b'up\\n')
time.sleep(1000)
";
    let run = Trainit::new(["run", "--stop-grace", "300ms", "--", "python3", "-c", named]).start();
    (0..5).for_each(|_| drop(run.after_line("up")));
    let log = run.stop().expect_code(143).err();
    let killed = log.lines().find(|line| line.contains("SIGKILL for")).unwrap();
    assert!(killed.matches("a\u{fffd}b\u{fffd} (pid ").count() >= 5, "{killed}");
    assert!(!killed.contains(['\u{202e}', '\u{1b}']) && !killed.contains("? (pid"), "{killed}");
}

#[test]
fn a_service_below_pid_1_is_stopped_after_the_trainer() {
    if !is_root() {
        eprintln!("skipped: needs root for a PID namespace");
        return;
    }
    let dir = folder(&[("train.py", &trainer("SIGTERM", "pass")), ("service.py", SERVICE)]);
    let script = format!("python3 service.py daemon; {UNTIL_SERVED}");
    let running = Trainit::pid1(["run", "--stop-grace", "50s", "--", "bash", "-c", &script]).dir(dir.path()).start();
    running.after_line("ready");
    send(first_child(running.pid()).unwrap(), libc::SIGTERM);
    running.finish().expect_code(143);
    assert!(dir.path().join("late").exists() && !dir.path().join("early").exists());
}

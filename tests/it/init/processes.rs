//! trainit as an init: orphans, the stop of the whole tree, the single deadline, and its behaviour when it is not PID 1.

#![expect(unsafe_code, reason = "what runs between fork and exec, and how full a pipe is")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::init::signals::state_of;
use crate::support::{Trainit, eventually, is_alive, send};

/// Waits for SIGTERM without delay.
const WAIT: &str = "while :; do sleep 1000 & wait $!; done";

#[test]
fn as_pid_1_it_reaps_every_orphan() {
    let script = "for i in 1 2 3 4 5 6 7 8 9; do (setsid sh -c 'exit 0' &); done; \
                  while cat /proc/[0-9]*/stat 2>/dev/null | grep -q ') Z 1 '; do :; done; echo clean";
    let done = Trainit::pid1(["run", "--", "sh", "-c", script]).output().expect_code(0);
    assert_eq!(done.out(), "clean\n");
}

#[test]
fn as_a_subreaper_it_reaps_every_orphan() {
    let script = "(setsid sh -c 'exit 0' &); while ps --ppid $PPID -o stat= | grep -q Z; do :; done; echo clean";
    let done = Trainit::run(["sh", "-c", script]).output().expect_code(0);
    assert_eq!(done.out(), "clean\n");
}

#[test]
fn descendants_that_called_setsid_get_sigterm_when_the_main_child_is_gone() {
    for pid1 in [true, false] {
        let script = "setsid sh -c 'trap \"echo drained; exit\" TERM; echo ready; while :; do sleep 0.01; done' & \
                      read line; exit 7";
        let args = ["run", "--", "sh", "-c", script];
        let mut trainit = if pid1 { Trainit::pid1(args) } else { Trainit::new(args) };
        let (read, write) = std::io::pipe().unwrap();
        trainit.command().stdin(read);
        let running = trainit.start();
        running.after_line("ready");
        drop(write);
        let done = running.finish().expect_code(7);
        assert!(done.out().contains("drained"), "{}", done.out());
    }
}

#[test]
fn a_background_process_gets_time_to_end() {
    let script = "sh -c 'trap \"sleep 0.5; echo saved; exit\" TERM; echo ready; while :; do sleep 0.01; done' & \
                  trap 'exit 5' TERM; while :; do sleep 0.01; done";
    let running = Trainit::run(["sh", "-c", script]).start();
    running.after_line("ready");
    let done = running.stop();
    assert!(done.out().contains("saved"), "{}", done.out());
    assert_eq!(done.code(), 143);
    assert_eq!(done.verdict()["child_code"], 5);
}

#[test]
fn processes_that_ignore_sigterm_are_killed_after_the_grace_and_more_sigterms_do_not_delay_that() {
    // If each SIGTERM moved the deadline, the run would not end.
    let script = "trap '' TERM; setsid sh -c \"trap '' TERM; while :; do kill -TERM $PPID; sleep 0.01; done\" & \
                  while :; do sleep 0.01; done";
    let begun = Instant::now();
    let done = Trainit::new(["run", "--stop-grace", "1s", "--", "sh", "-c", script]).output().expect_code(143);
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(done.verdict()["child_signal"], libc::SIGKILL);
}

#[test]
fn no_process_gets_sigterm_twice() {
    let child = "trap 'echo TERM-$0' TERM; echo ready-$0; while :; do sleep 0.01; done";
    let script = format!(
        "for i in a b c; do sh -c '{}' $i & done; trap 'exit 0' TERM; while :; do sleep 0.01; done",
        child.replace('\'', "'\\''")
    );
    let running = Trainit::new(["run", "--stop-grace", "1s", "--", "sh", "-c", &script]).start();
    for name in ["ready-a", "ready-b", "ready-c"] {
        running.after_line(name);
    }
    let done = running.stop();
    for name in ["TERM-a", "TERM-b", "TERM-c"] {
        assert_eq!(done.out().matches(name).count(), 1, "{}", done.out());
    }
}

#[test]
fn a_process_that_changes_its_group_at_sigterm_gets_no_second_one() {
    // Its handler moves it to its own process group and continues. Meanwhile trainit scans the tree repeatedly.
    let script = "import os, signal, sys, time\n\
                  if os.fork():\n    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n    time.sleep(100)\n\
                  def handler(*_):\n    print('TERM', flush=True)\n    os.setsid() if os.getsid(0) != os.getpid() else 0\n\
                  signal.signal(signal.SIGTERM, handler)\nos.write(1, b'ready\\n')\n\
                  end = time.monotonic() + 100\nwhile time.monotonic() < end: time.sleep(1)\n";
    let running = Trainit::new(["run", "--stop-grace", "1s", "--", "python3", "-c", script]).start();
    running.after_line("ready");
    let done = running.stop();
    assert_eq!(done.out().matches("TERM").count(), 1, "{}", done.out());
}

#[test]
fn only_stopped_processes_are_continued_for_sigterm() {
    let child =
        "trap 'echo cont-$0' CONT; trap 'echo term-$0; exit' TERM; echo ready-$0-$$-; while :; do sleep 0.01; done";
    let child = child.replace('\'', "'\\''");
    let script = format!(
        "bash -c '{child}' stopped & bash -c '{child}' going & trap 'exit 0' TERM; while :; do sleep 0.01; done"
    );
    let running = Trainit::run(["bash", "-c", &script]).start();
    running.after_line("ready-going");
    let line = running.after_line("ready-stopped");
    let pid: i32 = line.split('-').nth(2).unwrap().parse().unwrap();
    send(pid, libc::SIGSTOP);
    eventually("it is stopped", || state_of(pid) == 'T');
    let done = running.stop().expect_code(143);
    for (word, count) in [("term-stopped", 1), ("term-going", 1), ("cont-going", 0)] {
        assert_eq!(done.out().matches(word).count(), count, "{word}: {}", done.out());
    }
}

#[test]
fn with_target_group_each_process_of_the_group_gets_sigterm_at_once_and_once() {
    let script = "sh -c 'trap \"echo child\" TERM; echo ready; while :; do sleep 0.01; done' & \
                  trap 'echo leader; sleep 0.3; exit 0' TERM; while :; do sleep 0.01; done";
    let running =
        Trainit::new(["run", "--stop-grace", "1s", "--signal-target", "group", "--", "sh", "-c", script]).start();
    running.after_line("ready");
    let done = running.stop();
    assert_eq!(done.out().matches("child").count(), 1, "{}", done.out());
    assert_eq!(done.out().matches("leader").count(), 1, "{}", done.out());
}

#[test]
fn the_command_dies_with_a_trainit_that_is_not_pid_1() {
    let running = Trainit::run(["sh", "-c", "echo pid $$; exec sleep 1000"]).start();
    let line = running.after_line("pid ");
    let child: i32 = line.trim_start_matches("pid ").trim().parse().unwrap();
    assert!(is_alive(child));
    running.signal(libc::SIGKILL);
    eventually("the command is gone", || !is_alive(child));
}

#[test]
fn with_an_orphaned_signal_trainit_gets_it_when_its_parent_dies() {
    let command = format!("trap 'echo heard; exit 3' TERM; echo ready; {WAIT}");
    let starter = "\"$0\" \"$@\" & read line";
    let mut trainit =
        Trainit::through(&["sh", "-c", starter], ["run", "--orphaned-signal", "TERM", "--", "bash", "-c"]);
    let (read, write) = std::io::pipe().unwrap();
    trainit.command().arg(command).stdin(read);
    let running = trainit.start();
    running.after_line("ready");
    drop(write);
    running.after_line("heard");
}

#[test]
fn every_signal_that_can_be_caught_reaches_the_command() {
    // KILL and STOP cannot be caught, 32 and 33 belong to the C library, TERM begins the stop, and CHLD means an ended
    // child.
    let signals: Vec<i32> = (1..=64).filter(|s| ![9, 15, 17, 19, 32, 33].contains(s)).collect();
    // A signal that was ignored at the start (HUP under nohup) would not be passed on.
    let script = "import signal\n\
        every = set(range(1, 65)) - {9, 17, 19, 32, 33}\n\
        signal.pthread_sigmask(signal.SIG_BLOCK, every)\n\
        print('ready', flush=True)\n\
        while (got := signal.sigwait(every)) != 15: print(f'got-{got:d}-', flush=True)";
    let options = ["run", "--stop-grace", "20s", "--", "python3", "-c", script];
    let running = Trainit::through(&["env", "--default-signal"], options).start();
    running.after_line("ready");
    for signal in signals {
        send(running.pid(), signal);
        running.after_line(&format!("got-{signal}-"));
    }
    running.stop().expect_code(143);
}

#[test]
fn the_signals_that_a_c_library_reserves_reach_the_command_too() {
    // glibc reserves 32 and 33 for its threads, musl also 34. sigfillset(3) omits them, so trainit would die of them.
    // The libraries unblock them again when a second thread starts, for example for the output of several ranks.
    let processes = [["--nproc", "1"], ["--nproc", "2"]];
    for (signal, nproc) in (32..=34).flat_map(|signal| processes.map(|nproc| (signal, nproc))) {
        let mut trainit = Trainit::new(["run"]).args(nproc).args(["--", "sleep", "1000"]);
        // glibc's posix_spawn, and so cargo, leaves 32 and 33 ignored; only a system call resets them.
        let as_at_boot = move || {
            // The kernel's struct sigaction, all zero: SIG_DFL. sigaction(3) refuses these signals.
            let default = [0u64; 4];
            // SAFETY: the structure is alive and of the kernel's size; nothing is written back.
            unsafe {
                libc::syscall(libc::SYS_rt_sigaction, signal, &raw const default, std::ptr::null_mut::<u64>(), 8)
            };
            Ok(())
        };
        // SAFETY: one system call between fork and exec.
        unsafe { trainit.command().pre_exec(as_at_boot) };
        let running = trainit.start();
        running.after_log("started");
        send(running.pid(), signal);
        let done = running.finish();
        assert_eq!(done.verdict()["child_signal"], signal);
        done.expect_code(128 + signal);
    }
}

#[test]
fn sigterm_before_anything_runs_is_not_lost() {
    for _ in 0..40 {
        let running = Trainit::pid1(["run", "--", "sleep", "1000"]).start();
        // The real PID 1 is the child of unshare. The test may send signals to it as soon as it has blocked them.
        let inner = loop {
            let inner = children_of(running.pid()).first().copied();
            if let Some(inner) = inner.filter(|inner| has_blocked_all(*inner)) {
                break inner;
            }
        };
        // SAFETY: kill takes only integers.
        assert_eq!(unsafe { libc::kill(inner, libc::SIGTERM) }, 0);
        running.finish().expect_code(143);
    }
}

fn has_blocked_all(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap_or_default().trim();
    u64::from_str_radix(mask, 16) == Ok(!(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1)))
}

fn children_of(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|p| p.parse().ok()).collect()
}

#[test]
fn ten_thousand_orphans_leave_no_zombie() {
    let script = "i=0; while [ $i -lt 100 ]; do \
                  (for j in 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 \
                   0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 \
                   0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9; do (: ) & done &) ; i=$((i+1)); done; wait; \
                  while cat /proc/[0-9]*/stat 2>/dev/null | grep -q ') [ZX] 1 '; do :; done; exit 9";
    Trainit::pid1(["run", "--", "sh", "-c", script]).output().expect_code(9);
}

#[test]
fn a_log_whose_reader_has_gone_does_not_end_the_command() {
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    let mut trainit = Trainit::new(["run", "--log-level", "debug", "--", "sh", "-c", "read line; exit 5"]);
    let (stdin, go) = std::io::pipe().unwrap();
    let mut child = trainit.command().stdin(stdin).stderr(write).spawn().unwrap();
    // Each signal causes a log line.
    send(child.id() as i32, libc::SIGCONT);
    drop((go, trainit));
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn a_log_whose_reader_is_slow_does_not_delay_a_signal() {
    let (mut log, mut log_writer) = std::io::pipe().unwrap();
    let mut trainit =
        Trainit::run(["sh", "-c", "trap 'echo got; exit' TERM; echo ready; while :; do sleep 0.01; done"]);
    let mut child = trainit.command().stdout(Stdio::piped()).stderr(log_writer.try_clone().unwrap()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "ready");
    // When trainit sleeps again, the line about the start was written. From here on there is no room for another line.
    eventually("trainit waits", || state_of(child.id() as i32) == 'S');
    let look = log_writer.try_clone().unwrap();
    let full = std::thread::spawn(move || log_writer.write_all(&[b'x'; 1 << 20]));
    eventually("the log is full", || {
        let mut room = libc::pollfd { fd: look.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one pollfd, alive for the call, which does not wait.
        unsafe { libc::poll(&raw mut room, 1, 0) == 0 }
    });
    drop(look);
    send(child.id() as i32, libc::SIGTERM);
    assert_eq!(said.next().unwrap().unwrap(), "got");
    drop(trainit);
    let mut all = Vec::new();
    log.read_to_end(&mut all).unwrap();
    full.join().unwrap().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

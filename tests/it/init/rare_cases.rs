//! Rare cases for an init: a process that SIGKILL does not end, the kernel's OOM killer, a pool of workers that drains,
//! and long silence.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::cgroup::Cgroup;
use crate::support::{Finished, Trainit, assert_prompt, eventually, first_child, is_root, send};

/// A file system on a loop device that can be frozen: a process that writes to it sleeps, and no signal ends it.
struct Freezer {
    dir: tempfile::TempDir,
}

impl Freezer {
    /// `None` if this machine has no loop devices.
    fn new() -> Option<Freezer> {
        let dir = tempfile::tempdir().unwrap();
        let script = "truncate -s 8M img && mkfs.ext4 -q img && mkdir fs && mount -o loop img fs";
        let made = Command::new("sh").args(["-c", script]).current_dir(dir.path()).output().unwrap();
        made.status.success().then_some(Freezer { dir })
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("fs")
    }

    fn run(&self, program: &str, flag: &str) -> bool {
        Command::new(program).arg(flag).arg(self.path()).status().is_ok_and(|status| status.success())
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.run("fsfreeze", "-u");
        let end = Instant::now() + Duration::from_secs(10);
        while !self.run("umount", "-q") && Instant::now() < end {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_process_that_survives_sigkill_is_named_and_left_behind_within_the_limit() {
    let Some(freezer) = Freezer::new() else {
        crate::support::skip("a process stuck in the kernel (no loop device here, or no mkfs.ext4)");
        return;
    };
    let target = freezer.path().join("x");
    let script = "echo ready; read line; exec dd if=/dev/zero of=\"$0\" bs=1k count=1 >/dev/null 2>&1";
    let mut trainit = Trainit::new(["run", "--stop-grace", "200ms", "--", "sh", "-c", script]).args([&target]);
    let (stdin, go) = std::io::pipe().unwrap();
    trainit.command().stdin(stdin);
    let running = trainit.start();
    running.after_line("ready");
    assert!(freezer.run("fsfreeze", "-f"));
    let child = first_child(running.pid()).unwrap();
    drop(go);
    // A process that only waits for its program to be loaded is absent from some of the samples.
    let mut looks = 0;
    eventually("it is stuck", || {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        looks = if stat.contains("(dd) D") { looks + 1 } else { 0 };
        looks == 100
    });
    let start = Instant::now();
    let done = running.stop().expect_code(143);
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    assert_prompt(start);
    assert!(done.err().contains(&format!("pid {child} (dd, in ")), "{}", done.err());
    assert!(done.verdict()["detail"].as_str().unwrap().contains("could not be ended"));
}

/// A process whose second thread lives after its main thread has ended; /proc shows it as a zombie.
const HEADLESS: &str = "
import ctypes, os, threading, time
def live_on():
    while open('/proc/self/stat').read().rsplit(')', 1)[1].split()[0] != 'Z': time.sleep(0.01)
    print('headless', os.getpid(), flush=True)
    time.sleep(1000)
threading.Thread(target=live_on).start()
ctypes.CDLL(None).pthread_exit(None)
";

fn is_there(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_process_whose_main_thread_has_ended_is_stopped_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("headless.py");
    std::fs::write(&program, HEADLESS).unwrap();
    let program = program.to_str().unwrap();
    for how in ["setsid python3", "python3"] {
        // It writes to a file, because the reader of a pipe would notice its end. An earlier attempt has left a file.
        let script = format!(
            "rm -f said; {how} {program} >said & while ! grep -q headless said 2>/dev/null; do sleep 0.01; done; exit 6"
        );
        let again = ["--max-restarts", "1", "--restart-backoff", "10ms..10ms", "--stop-grace", "20s"];
        let mut trainit = Trainit::new(["run"]).args(again).args(["--", "sh", "-c", &script]);
        trainit.command().current_dir(dir.path());
        let done = trainit.output().expect_code(6);
        assert_eq!(done.verdict()["attempts"], 2, "{how}: {}", done.err());
        assert!(done.verdict()["seconds"].as_f64().unwrap() < 15.0, "{how}: {}", done.err());
        let said = std::fs::read_to_string(dir.path().join("said")).unwrap();
        let pid: i32 = said.split_whitespace().last().unwrap().parse().unwrap();
        assert!(!is_there(pid), "{how}: {}", done.err());
    }
}

#[test]
fn out_of_memory_is_distinguished_from_sigkill_by_the_cgroups_counter() {
    let Some(group) = Cgroup::with_limit(64 << 20) else {
        crate::support::skip("out of memory (no memory cgroup can be made here)");
        return;
    };
    let enter = group.enter();
    let run = |script: &str| Trainit::through(&["sh", "-c", &enter], ["run", "--", "python3", "-c", script]).output();
    let verdict = run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)").expect_code(137).verdict();
    assert_eq!((verdict["reason"].as_str(), verdict["oom"].as_bool()), (Some("signalled"), Some(false)));
    let verdict = run("b'x' * (1 << 30)").expect_code(137).verdict();
    assert_eq!((verdict["reason"].as_str(), verdict["oom"].as_bool()), (Some("oom"), Some(true)));
    // A child was killed, and the command reports it with its own exit code.
    let child = "import os, sys\nif os.fork() == 0: b'x' * (1 << 30)\nsys.exit(7 if os.wait()[1] else 0)";
    let verdict = run(child).expect_code(7).verdict();
    assert_eq!((verdict["reason"].as_str(), verdict["child_code"].as_i64()), (Some("oom"), Some(7)));
    assert!(verdict["peak_memory_bytes"].as_u64().unwrap() <= 64 << 20);
}

#[test]
fn without_a_counter_of_oom_kills_the_verdict_says_null() {
    if !is_root() {
        crate::support::skip("a machine without memory cgroups (not root)");
        return;
    }
    let script = "mount -t tmpfs none /sys/fs/cgroup && exec \"$0\" \"$@\"";
    let done = Trainit::through(&["unshare", "--mount", "sh", "-c", script], ["run", "--", "sh", "-c", "exit 3"]);
    let verdict = done.output().expect_code(3).verdict();
    assert_eq!((&verdict["oom"], &verdict["reason"]), (&serde_json::Value::Null, &"failed".into()));
}

#[test]
fn a_pool_of_workers_drains_when_its_master_gets_the_signal() {
    let script = "
import multiprocessing, signal, sys, time
def work(n):
    print('began', flush=True)
    time.sleep(0.3)
    return n
def leave(*_):
    raise SystemExit
if __name__ == '__main__':
    with multiprocessing.Pool(2, signal.signal, (signal.SIGTERM, signal.SIG_DFL)) as pool:
        signal.signal(signal.SIGTERM, leave)
        results = pool.map_async(work, range(4))
        try:
            while True: time.sleep(1)
        except SystemExit:
            # A worker that had been sent SIGTERM too would have died, and its result would never come.
            print('drained', results.get(30), flush=True)
            sys.exit(0)
";
    let running = Trainit::run(["python3", "-c", script]).start();
    running.after_line("began");
    let done = running.stop().expect_code(143);
    assert!(done.out().contains("drained [0, 1, 2, 3]"), "{}", done.out());
    assert_eq!(done.verdict()["child_code"], 0);
}

/// A script that pipes its output to `tee` and then becomes trainit by exec.
fn behind_tee(pid1: bool, log: &Path, command: &str) -> Finished {
    let script = "exec > >(exec tee -a \"$0\") 2>&1; exec \"$@\"";
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL"];
    let bash = ["bash", "-c", script, log.to_str().unwrap()];
    let prefix: Vec<&str> = if pid1 { [&unshare[..], &bash].concat() } else { bash.to_vec() };
    let args = ["run", "--max-restarts", "2", "--restart-backoff", "1ms", "--", "bash", "-c", command];
    Trainit::through(&prefix, args).output()
}

#[test]
fn a_tee_started_before_trainit_survives_restarts_and_gets_the_verdict() {
    for pid1 in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        // An orphan of the attempt is ended, too.
        let command = "echo hello $TRAINIT_ATTEMPT; (setsid sleep 1000 &); [ $TRAINIT_ATTEMPT = 2 ] || exit 3";
        let done = behind_tee(pid1, &log, command).expect_code(0);
        let said = || std::fs::read_to_string(&log).unwrap();
        eventually("the verdict is in the log", || said().contains(r#""reason":"finished""#));
        assert!(said().contains("hello 1\n") && said().contains("hello 2\n"), "{}", said());
        assert!(done.out().contains(r#""attempts":2"#), "{}", done.out());
    }
}

#[test]
fn a_process_that_may_not_be_killed_is_reported_once_and_not_as_stuck() {
    if !is_root() {
        crate::support::skip("needs root to start a process of another user");
        return;
    }
    let another = "setpriv --reuid 65534 sh -c 'trap \"\" TERM; echo other $$; exec sleep 1000 >/dev/null 2>&1' & wait";
    let options = ["run", "--stop-grace", "100ms", "--", "sh", "-c", another];
    let running = Trainit::through(&["setpriv", "--bounding-set", "-kill"], options).start();
    let pid: i32 = running.after_line("other").rsplit(' ').next().unwrap().trim().parse().unwrap();
    let done = running.stop();
    send(pid, libc::SIGKILL);
    let log = done.expect_code(143).err();
    assert_eq!(log.matches("could not be sent").count(), 1, "{log}");
    assert!(log.contains("may not be killed by trainit's user") && log.contains(&format!("pid {pid} (sleep")), "{log}");
    assert!(!log.contains("stuck in the kernel"), "{log}");
}

#[test]
fn without_the_right_to_signal_one_warning_covers_all_processes_and_no_line_claims_a_signal() {
    if !is_root() {
        crate::support::skip("needs root to start processes of another user");
        return;
    }
    let trainer = "trap '' TERM; sleep 1000 >/dev/null 2>&1 & sleep 1000 >/dev/null 2>&1 & echo group $$; exec >/dev/null 2>&1; wait";
    for target in ["leader", "group"] {
        let options = ["run", "--stop-grace", "100ms", "--signal-target", target, "--"];
        let running = Trainit::through(&["setpriv", "--bounding-set", "-kill"], options)
            .args(["setpriv", "--reuid", "65534", "sh", "-c", trainer])
            .start();
        let group: i32 = running.after_line("group").rsplit(' ').next().unwrap().trim().parse().unwrap();
        assert!(group > 1);
        let done = running.stop();
        nix::sys::signal::killpg(nix::unistd::Pid::from_raw(group), nix::sys::signal::SIGKILL).unwrap();
        let log = done.expect_code(143).err();
        let count = if target == "group" { "3 processes" } else { "a process" };
        assert!(log.contains(&format!("SIGTERM could not be sent to {count} of the command's: ")), "{log}");
        assert_eq!(log.matches("could not be sent").count(), 1, "{log}");
        assert!(log.contains("SIGTERM received; no permission to send SIGTERM to the command; SIGKILL in"), "{log}");
        assert!(!log.contains(" sent to the "), "{log}");
        assert_eq!(log.matches("may not be killed by trainit's user").count(), 1, "{log}");
    }
}

//! `trainit status` asks a running trainit. No caller can delay it.

use std::io::Read;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::fake_nvml::FakeNvml;
use crate::support::{Running, Trainit, assert_prompt, eventually, is_root, send, settled};

const LOOP: &str = "while :; do sleep 0.01; done";

/// A run that prints the path of its socket, and that path.
fn started(trainit: Trainit) -> (Running, PathBuf) {
    let running = trainit.start();
    let line = running.after_line("socket=");
    let socket = line.trim().strip_prefix("socket=").unwrap().to_owned();
    (running, PathBuf::from(socket))
}

fn run(flags: &[&str], script: &str) -> (Running, PathBuf) {
    let script = format!("echo socket=$TRAINIT_SOCKET; {script}");
    started(Trainit::new([&["run"], flags, &["--", "sh", "-c", &script]].concat()))
}

fn status(socket: &Path, args: &[&str]) -> crate::support::Finished {
    Trainit::new(["status"]).args(args).env("TRAINIT_SOCKET", socket).output()
}

#[track_caller]
fn object(socket: &Path) -> Value {
    let done = status(socket, &["--json"]).expect_code(0);
    serde_json::from_str(&done.out()).unwrap_or_else(|e| panic!("{e}: {}", done.out()))
}

/// Asks until the condition holds for the answer.
#[track_caller]
fn until(socket: &Path, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    eventually(what, || {
        last = object(socket);
        holds(&last)
    });
    last
}

#[test]
fn a_run_reports_its_status_as_json_as_text_and_as_a_check() {
    let (running, socket) = run(&["--max-restarts", "2"], LOOP);
    let report = until(&socket, "it runs", |report| report["state"] == "running");
    assert_eq!(
        (&report["healthy"], &report["attempt"], &report["restarts_allowed"]),
        (&json!(true), &json!(1), &json!(2))
    );
    assert_eq!((&report["pid"], &report["command"]), (&json!(running.pid()), &json!("sh")));
    assert!(report["uptime_seconds"].is_number() && report["child_pids"][0].as_i64() > Some(1), "{report}");
    let text = status(&socket, &[]).expect_code(0).out();
    assert!(text.starts_with("running (attempt 1, up ") && text.contains("0 of 2 restarts used"), "{text}");
    let check = status(&socket, &["--check"]).expect_code(0).out();
    assert!(check.starts_with("healthy: running") && check.lines().count() == 1, "{check}");
    running.stop().expect_code(143);
}

#[test]
fn only_the_owner_may_use_the_socket_and_it_is_removed_with_the_run() {
    let (running, socket) = run(&[], LOOP);
    let metadata = std::fs::metadata(&socket).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    running.stop().expect_code(143);
    assert!(!socket.parent().unwrap().exists(), "{socket:?}");
    let after = status(&socket, &["--check"]).expect_code(1);
    assert!(after.out().starts_with("unhealthy: no run listens at "), "{}", after.out());
}

#[test]
fn callers_that_never_read_or_flood_delay_neither_signals_nor_each_other() {
    let (running, socket) = run(&[], &format!("trap 'exit 7' USR1; echo ready; {LOOP}"));
    running.after_line("ready");
    let deaf: Vec<UnixStream> = (0..50).filter_map(|_| UnixStream::connect(&socket).ok()).collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    drop(UnixStream::connect(&socket));
                }
            });
        }
        assert_eq!(object(&socket)["state"], "running");
        let begun = Instant::now();
        running.signal(libc::SIGUSR1);
        running.after_log("sh ended");
        assert_prompt(begun);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    drop(deaf);
    running.finish().expect_code(7);
}

#[test]
fn another_user_is_refused() {
    if !is_root() {
        crate::support::skip("needs root to be another user");
        return;
    }
    let (running, socket) = run(&[], LOOP);
    let other = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let ask = || Trainit::through(&other, ["status", "--check"]).env("TRAINIT_SOCKET", &socket).output().expect_code(1);
    assert!(ask().out().contains("another user"), "{}", ask().out());
    // Permission to connect is not permission to receive an answer.
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
    assert!(ask().out().contains("closed the connection without an answer"), "{}", ask().out());
    running.stop().expect_code(143);
}

#[test]
fn a_frozen_agent_is_unhealthy_in_time() {
    let (running, socket) = run(&[], LOOP);
    running.signal(libc::SIGSTOP);
    let done = status(&socket, &["--check"]).expect_code(1);
    assert!(done.out().contains("does not answer in 5 s"), "{}", done.out());
    running.signal(libc::SIGCONT);
    running.stop().expect_code(143);
}

#[test]
fn restarts_and_a_stop_are_in_the_status_while_they_last_and_are_healthy() {
    let script = format!("[ $TRAINIT_ATTEMPT = 1 ] && exit 3; trap 'echo asked' TERM; echo again; {LOOP}");
    let (running, socket) = run(&["--max-restarts", "1", "--restart-backoff", "1s", "--stop-grace", "2s"], &script);
    until(&socket, "it waits", |report| report["state"] == "waiting" && report["healthy"] == true);
    running.after_line("again");
    let report = until(&socket, "it runs again", |report| report["state"] == "running");
    assert_eq!((&report["attempt"], &report["restarts"]), (&json!(2), &json!(1)));
    running.signal(libc::SIGTERM);
    let report = until(&socket, "it stops", |report| report["state"] == "stopping");
    assert!(report["leaving"]["reason"].as_str().unwrap().starts_with("stopped by SIGTERM"), "{report}");
    assert!(report["leaving"]["seconds_left"].as_f64().is_some_and(|left| left <= 2.0), "{report}");
    status(&socket, &["--check"]).expect_code(0);
    running.finish().expect_code(143);
}

#[test]
fn the_last_commit_and_the_work_that_a_death_would_lose_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (ck, store) = (dir.path().join("ck"), format!("file://{}", dir.path().join("store").display()));
    std::fs::create_dir(&ck).unwrap();
    let script = format!("mkdir $TRAINIT_CHECKPOINT_DIR/step-40; echo w >$TRAINIT_CHECKPOINT_DIR/step-40/w; {LOOP}");
    let flags = ["--checkpoint-dir", ck.to_str().unwrap(), "--checkpoint-store", &store];
    let (running, socket) = run(&[&flags[..], &["--commit-interval", "50ms", "--settle", "50ms"]].concat(), &script);
    let report = until(&socket, "a commit", |report| report["checkpoint"]["committed_step"] == 40);
    assert!(report["checkpoint"]["lag_seconds"].as_f64().is_some_and(|lag| lag < 30.0), "{report}");
    assert_eq!(report["checkpoint"]["resumed_step"], Value::Null);
    until(&socket, "in step", |report| report["checkpoint"]["lag_steps"] == 0);
    running.stop().expect_code(143);
}

#[test]
fn a_newest_commit_without_a_step_is_shown_by_its_name_and_not_with_the_previous_step() {
    let dir = tempfile::tempdir().unwrap();
    let (ck, store) = (dir.path().join("ck"), format!("file://{}", dir.path().join("store").display()));
    std::fs::create_dir(&ck).unwrap();
    let save = |name: &str, weights: &str| {
        let unit = ck.join(name);
        std::fs::create_dir_all(&unit).unwrap();
        std::fs::write(unit.join("weights"), weights).unwrap();
        std::fs::write(unit.join("DONE"), "").unwrap();
    };
    let flags = ["--checkpoint-dir", ck.to_str().unwrap(), "--checkpoint-store", &store, "--marker", "DONE"];
    let (running, socket) = run(&[&flags[..], &["--commit-interval", "50ms", "--settle", "50ms"]].concat(), LOOP);
    save("step-40", "40");
    until(&socket, "a step", |report| report["checkpoint"]["committed_step"] == 40);
    std::fs::remove_dir_all(ck.join("step-40")).unwrap();
    save("last", "50");
    let report = until(&socket, "no step", |report| report["checkpoint"]["committed_unit"] == "last");
    assert_eq!(report["checkpoint"]["committed_step"], Value::Null);
    let report = status(&socket, &[]).out();
    assert!(report.contains("last committed, "), "{report}");
    save("last", "60");
    let done = running.stop().expect_code(143);
    assert!(done.err().contains("the newest complete checkpoint is safe"), "{}", done.err());
    assert_eq!(done.verdict()["committed_step"], Value::Null);
}

#[test]
fn metrics_gpus_samples_and_xids_are_reported() {
    let fake = FakeNvml::new(&["gpu1.name Fake H100", "gpu1.util 55"]);
    let dir = tempfile::tempdir().unwrap();
    let script = format!("echo socket=$TRAINIT_SOCKET; echo loss=0.25; {LOOP}");
    let trainit = fake
        .trainit(&["run", "--gpu-interval", "50ms", "--metric", "loss=loss=([0-9.]+)", "--", "sh", "-c", &script])
        .env("CLOUD_ML_HP_METRIC_FILE", dir.path().join("metrics"));
    let (running, socket) = started(trainit);
    let report = until(&socket, "samples", |report| {
        report["gpus"][1]["samples"]["utilization_percent"].as_array().is_some_and(|all| all.len() > 2)
    });
    assert_eq!((&report["metrics"]["loss"], &report["gpus"][1]["name"]), (&json!(0.25), &json!("Fake H100")));
    assert_eq!(
        (&report["gpus"][1]["health"], &report["gpus"][1]["samples"]["utilization_percent"][1]),
        (&json!("ok"), &json!(55))
    );
    fake.play(&["event-1 1 8 13", "gpu0.recovery 0"]);
    let report = until(&socket, "the XID", |report| !report["xids"].as_array().unwrap().is_empty());
    assert_eq!((&report["xids"][0]["xid"], &report["healthy"]), (&json!(13), &json!(true)));
    let text = status(&socket, &[]).expect_code(0).out();
    assert!(
        text.contains("XID         13 x 1 on GPU 1 (GPU-00000001") && text.contains("metrics     loss 0.25"),
        "{text}"
    );
    running.stop().expect_code(143);
}

#[test]
fn a_gpu_that_ends_the_job_is_unhealthy_and_a_watch_without_readings_is_not() {
    let fake = FakeNvml::new(&["nvmlInit_v2 segv"]);
    let script = format!("echo socket=$TRAINIT_SOCKET; {LOOP}");
    let (running, socket) = started(fake.trainit(&["run", "--", "sh", "-c", &script]));
    let report = until(&socket, "blind", |report| report["gpu_problem"].is_string());
    assert!(report["gpu_problem"].as_str().unwrap().contains("SIGSEGV"), "{report}");
    status(&socket, &["--check"]).expect_code(0);
    running.stop().expect_code(143);

    let fake = FakeNvml::new(&[]);
    let script = format!("trap 'echo asked' TERM; echo socket=$TRAINIT_SOCKET; {LOOP}");
    let (running, socket) = started(fake.trainit(&["run", "--stop-grace", "3s", "--", "sh", "-c", &script]));
    until(&socket, "the GPUs", |report| report["gpus"].as_array().is_some_and(|gpus| gpus.len() == 2));
    fake.play(&["event-1 1 8 79"]);
    running.after_line("asked");
    let done = status(&socket, &["--check"]).expect_code(1);
    assert!(
        done.out().starts_with("unhealthy: GPU 1 (GPU-00000001") && done.out().contains("XID 79"),
        "{}",
        done.out()
    );
    running.finish().expect_code(202);
}

#[test]
fn a_run_without_a_directory_continues_after_one_log_line() {
    if !is_root() {
        crate::support::skip("needs root to mount");
        return;
    }
    let script = "for place in /dev/shm /tmp /run; do
        mount --bind $place $place && mount -o remount,bind,ro $place || exit 99
        done; exec \"$@\"";
    let through = ["unshare", "--mount", "sh", "-c", script, "sh"];
    let trainit =
        Trainit::through(&through, ["run", "--", "sh", "-c", "echo [$TRAINIT_SOCKET$TRAINIT_PREEMPTION_FILE]"]);
    let done = trainit.output().expect_code(0);
    assert_eq!(done.out(), "[]\n");
    assert_eq!(done.err().matches("no place for a small directory").count(), 1, "{}", done.err());
}

#[test]
fn a_preemption_is_announced_although_dev_shm_is_full() {
    if !is_root() {
        crate::support::skip("needs root to mount");
        return;
    }
    // It is filled only after the start, as by a data loader.
    let script = "mount -t tmpfs -o size=1m none /dev/shm; exec \"$@\"";
    let through = ["unshare", "--mount", "sh", "-c", script, "sh"];
    let trainer = "trap 'cat $TRAINIT_PREEMPTION_FILE; exit 0' TERM; \
                   until [ -e $(dirname $TRAINIT_PREEMPTION_FILE)/.preemption ]; do sleep 0.01; done; \
                   cat /dev/zero >/dev/shm/full 2>/dev/null; echo full; while :; do sleep 0.01; done";
    let running = Trainit::through(&through, ["run", "--", "sh", "-c", trainer]).start();
    running.after_line("full");
    let done = running.stop().expect_code(143);
    assert!(
        done.out().lines().any(|line| line.starts_with("20") && line.ends_with('Z')),
        "{}\n{}",
        done.out(),
        done.err()
    );
}

#[test]
fn after_a_trainer_clears_dev_shm_its_files_are_created_again_for_the_next_attempt_and_a_stop() {
    let trainer = "trap 'cat $TRAINIT_PREEMPTION_FILE; exit 0' TERM; \
                   if [ $TRAINIT_ATTEMPT = 2 ]; then \
                   [ -S $TRAINIT_SOCKET ] && grep -q . $TRAINIT_HOSTFILE && : >$TRAINIT_HEARTBEAT_FILE || exit 2; fi; \
                   rm -rf ${TRAINIT_SOCKET%/*}; \
                   [ $TRAINIT_ATTEMPT = 1 ] && exit 3; echo cleared; while :; do sleep 0.01; done";
    let cluster = r#"{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}"#;
    let restart = ["--max-restarts", "1", "--restart-backoff", "1ms", "--", "sh", "-c", trainer];
    let running = Trainit::new(["run"]).args(restart).env("TF_CONFIG", cluster).start();
    running.after_line("cleared");
    let done = running.stop().expect_code(143);
    let is_deadline = |line: &str| line.starts_with("20") && line.ends_with('Z');
    assert!(done.out().lines().any(is_deadline), "{}\n{}", done.out(), done.err());
    assert!(done.err().contains("was removed with its directory"), "{}", done.err());
}

#[test]
fn an_idle_run_does_not_wake_up_and_a_request_causes_one_wake_up() {
    let (running, socket) = run(&[], "exec sleep 60");
    let switches = || {
        let text = std::fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        count.trim().parse::<u64>().unwrap()
    };
    settled(&running, socket.parent().unwrap());
    let before = switches();
    // The test shows that nothing happens for some time. There is no event to wait for.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(switches(), before);
    let mut answer = String::new();
    UnixStream::connect(&socket).unwrap().read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("}\n") && switches() <= before + 2, "{answer}");
    send(running.pid(), libc::SIGTERM);
    running.finish().expect_code(143);
}

//! Trainers that show no sign of life, with `--hang-timeout`.

use crate::support::{Trainit, is_alive, is_root, send};

fn watched(timeout: &str, more: &[&str], script: &str) -> Trainit {
    Trainit::new(["run", "--hang-timeout", timeout]).args(more).args(["--", "sh", "-c", script])
}

#[test]
fn a_silent_trainer_is_ended_as_hung_and_the_log_shows_where_it_waits() {
    let done = watched("100ms", &[], "sleep 1000 & exec sleep 1001").output().expect_code(201);
    let verdict = done.verdict();
    assert_eq!((verdict["reason"].as_str(), verdict["child_signal"].as_i64()), (Some("hung"), Some(6)));
    assert!(verdict["detail"].as_str().unwrap().contains("no sign of life"), "{verdict}");
    let is_stack = |line: &&str| line.contains("(sleep): 1 thread asleep in");
    let log = done.err();
    assert_eq!(log.lines().filter(is_stack).count(), 2, "a line for each process: {log}");
    let first = log.lines().skip_while(|line| !line.contains("hangs: no sign of life")).find(is_stack);
    assert!(first.is_some(), "what they are of comes before them: {log}");
}

#[test]
fn a_process_that_survives_sigabrt_is_not_reported_as_killed_after_the_stop_grace() {
    let script = "trap '' ABRT; while :; do sleep 1000; done";
    let done = watched("100ms", &["--stop-grace", "1h"], script).output().expect_code(201);
    assert!(done.err().contains("SIGABRT did not end all processes"), "{}", done.err());
    assert!(!done.err().contains("stop grace is over"), "{}", done.err());
}

#[test]
fn at_a_hang_only_the_processes_that_handle_sigabrt_get_it_so_the_reader_of_a_traceback_lives() {
    let script = "python3 -c 'import time; time.sleep(1000)' 2>&1 | (cat; echo read to the end); echo shell lives";
    let done = watched("400ms", &[], script).output().expect_code(201);
    let out = done.out();
    assert!(out.contains("Fatal Python error: Aborted"), "{out}{}", done.err());
    assert!(out.contains("read to the end\n") && out.contains("shell lives\n"), "{out}{}", done.err());
}

#[test]
fn a_thread_that_computes_without_peers_and_gpus_is_not_hung() {
    let spin = "import time\nend = time.monotonic() + 4\nwhile time.monotonic() < end: pass";
    Trainit::new(["run", "--hang-timeout", "500ms", "--", "python3", "-c", spin]).output().expect_code(0);
}

#[test]
fn a_hung_attempt_is_restarted_while_the_budget_lasts() {
    let script = "[ $TRAINIT_ATTEMPT = 1 ] && exec sleep 1000; echo alive again";
    let more = ["--max-restarts", "1", "--restart-backoff", "1ms"];
    let done = watched("100ms", &more, script).output().expect_code(0);
    assert_eq!((done.out().as_str(), done.verdict()["attempts"].as_u64()), ("alive again\n", Some(2)));
}

#[test]
fn output_is_a_sign_of_life_and_passes_through_unchanged() {
    let script = "for i in 1 2 3 4 5 6 7 8; do echo $i; echo e$i >&2; sleep 0.25; done; printf end";
    let done = watched("1500ms", &[], script).output().expect_code(0);
    assert_eq!(done.out(), "1\n2\n3\n4\n5\n6\n7\n8\nend");
    assert!(done.err().contains("e1\n") && done.err().contains("e8\n"), "{}", done.err());
}

#[test]
fn after_the_first_heartbeat_output_no_longer_counts() {
    let script = "echo '{\"step\": 3}' > $TRAINIT_HEARTBEAT_FILE; while :; do echo busy; sleep 0.01; done";
    let done = watched("400ms", &[], script).output().expect_code(201);
    assert!(done.verdict()["detail"].as_str().unwrap().contains("no heartbeat"), "{}", done.err());
}

#[test]
fn a_trainer_with_heartbeats_is_not_hung_and_a_new_attempt_starts_without_one() {
    let script = "[ -e $TRAINIT_HEARTBEAT_FILE ] && exit 9; \
                  for i in 1 2 3 4 5 6; do touch $TRAINIT_HEARTBEAT_FILE; sleep 0.25; done; [ $TRAINIT_ATTEMPT = 2 ]";
    let more = ["--max-restarts", "1", "--restart-backoff", "1ms"];
    let done = watched("1200ms", &more, script).output().expect_code(0);
    assert_eq!(done.verdict()["attempts"], 2);
}

#[test]
fn a_trainer_that_changed_its_user_can_write_the_heartbeat_and_nothing_else() {
    if !is_root() {
        crate::support::skip("needs root to become another user");
        return;
    }
    let script = "[ -e $TRAINIT_HEARTBEAT_FILE ] && exit 9; \
                  echo '{\"step\": 3}' > $TRAINIT_HEARTBEAT_FILE || exit 8; \
                  rm -f $TRAINIT_SOCKET; [ -e $TRAINIT_SOCKET ] || exit 7; \
                  cp /dev/null $TRAINIT_PREEMPTION_FILE && exit 6; \
                  ls ${TRAINIT_PREEMPTION_FILE%/*} ${TRAINIT_HEARTBEAT_FILE%/*} && exit 5; \
                  while :; do echo busy; sleep 0.01; done";
    // A umask that excludes other users does not matter.
    let masked = ["sh", "-c", "umask 077; exec \"$0\" \"$@\""];
    let options = ["run", "--hang-timeout", "400ms"];
    let more = ["--max-restarts", "1", "--restart-backoff", "1ms", "--"];
    let other = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", script];
    let done = Trainit::through(&masked, options).args(more).args(other).output().expect_code(201);
    assert!(done.verdict()["detail"].as_str().unwrap().contains("no heartbeat"), "{}", done.err());
    assert_eq!(done.verdict()["attempts"], 2, "{}", done.err());
}

#[test]
fn a_trainer_stopped_by_a_signal_is_not_hung() {
    let running = watched("100ms", &[], "echo $$; exec sleep 1000").start();
    let pid: i32 = running.after_line("").trim().parse().unwrap();
    send(pid, libc::SIGSTOP);
    // Enough time passes that an attempt which starts now and is not stopped would hang.
    watched("100ms", &[], "exec sleep 1000").output().expect_code(201);
    assert!(is_alive(pid), "{}", running.log_so_far());
    send(pid, libc::SIGCONT);
    let done = running.finish().expect_code(201);
    assert_eq!(done.verdict()["reason"], "hung");
}

#[test]
fn python_tracebacks_are_enabled_only_with_a_hang_timeout_and_without_a_users_setting() {
    let script = "echo ${PYTHONFAULTHANDLER-unset}";
    assert_eq!(Trainit::run(["sh", "-c", script]).output().out(), "unset\n");
    assert_eq!(watched("1h", &[], script).output().out(), "1\n");
    assert_eq!(watched("1h", &[], script).env("PYTHONFAULTHANDLER", "0").output().out(), "0\n");
}

#[test]
fn without_proc_a_hung_trainer_is_still_aborted_and_the_missing_facts_are_logged() {
    let mounts = "mount -t tmpfs none /proc && exec \"$0\" \"$@\"";
    let hang = ["run", "--hang-timeout", "100ms", "--", "sleep", "1000"];
    for pid1 in [true, false] {
        let namespaces: &[&str] = if pid1 { &["--pid", "--fork", "--kill-child=SIGKILL"] } else { &[] };
        let prefix = [&["unshare", "--mount"], namespaces, &["sh", "-c", mounts]].concat();
        let done = Trainit::through(&prefix, hang).output().expect_code(201);
        assert_eq!(done.verdict()["child_signal"], 6, "{}", done.err());
        assert_eq!(done.err().matches("the hang watch cannot see the threads").count(), 1, "{}", done.err());
    }
}

//! The GPU watch inside a run: the effect of GPU errors on a job, and protection of trainit from the driver.

use std::time::{Duration, Instant};

use crate::support::fake_nvml::FakeNvml;
use crate::support::tracer::Held;
use crate::support::{Trainit, assert_prompt, assert_within, eventually, is_alive, send};

const LOOP: &str = "while :; do sleep 0.01; done";

fn run(fake: &FakeNvml, flags: &[&str], script: &str) -> Trainit {
    let args = [&["run", "--gpu-interval", "100ms", "--gpu-timeout", "500ms", "--log-level", "debug"], flags].concat();
    fake.trainit(&args).args(["--", "sh", "-c", script])
}

#[test]
fn an_xid_that_takes_the_gpu_away_stops_the_trainer_and_leaves_with_202() {
    let fake = FakeNvml::new(&[]);
    let script = format!("trap 'echo saved; exit 0' TERM; echo ready; {LOOP}");
    let running = run(&fake, &[], &script).start();
    running.after_line("ready");
    running.after_log("the GPUs are watched");
    fake.play(&["event-1 1 8 79"]);
    let done = running.finish().expect_code(202);
    assert!(done.out().contains("saved"), "{}", done.out());
    let verdict = done.verdict();
    let detail = verdict["detail"].as_str().unwrap();
    assert_eq!(verdict["reason"], "gpu");
    let gpu = "GPU 1 (GPU-00000001-0000-0000-0000-000000000000, 00000000:05:00.0)";
    assert_eq!(verdict["xids"], serde_json::json!([{"gpu": gpu, "xid": 79, "count": 1}]));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let place = format!("{gpu}: XID 79, GPU has fallen off the bus (host {})", host.trim());
    assert!(detail.starts_with(&place), "{detail}");
}

#[test]
fn the_loss_of_a_gpu_is_reported_once_although_the_trainer_dies_of_it() {
    let fake = FakeNvml::new(&[]);
    let running = run(&fake, &[], &format!("trap 'exit 7' TERM; echo ready; {LOOP}")).start();
    running.after_line("ready");
    running.after_log("the GPUs are watched");
    fake.play(&["event-1 1 8 79"]);
    let done = running.finish().expect_code(202);
    assert_eq!(done.err().matches("a GPU is unfit for training").count(), 1, "{}", done.err());
}

#[test]
fn an_xid_is_logged_when_it_occurs_and_again_as_the_cause_of_the_trainers_death() {
    let fake = FakeNvml::new(&[]);
    let running = run(&fake, &[], &format!("trap 'exit 7' USR1; echo ready; {LOOP}")).start();
    running.after_line("ready");
    running.after_log("the GPUs are watched");
    fake.play(&["event-1 0 8 31"]);
    running.after_log("XID 31, MMU fault");
    running.signal(libc::SIGUSR1);
    let done = running.finish().expect_code(7);
    let log = done.err();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("XID 31, MMU fault")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines[1].contains("XID 31, MMU fault; it is taken as the cause of the command's end"), "{}", lines[1]);
}

#[test]
fn a_failed_event_channel_is_one_warning_in_a_job_and_not_a_reason_to_leave() {
    let fake = FakeNvml::new(&["nvmlEventSetWait_v2 return 999"]);
    let flags = ["--max-restarts", "1", "--restart-backoff", "1ms"];
    let running = run(&fake, &flags, &format!("trap 'exit 9' USR1; echo ready-$TRAINIT_ATTEMPT; {LOOP}")).start();
    running.after_line("ready-1");
    running.after_log("XIDs cannot be seen: nvmlEventSetWait_v2 failed with 999");
    running.signal(libc::SIGUSR1);
    running.after_line("ready-2");
    running.signal(libc::SIGUSR1);
    let done = running.finish().expect_code(9);
    assert_eq!(done.err().matches("XIDs cannot be seen").count(), 1, "{}", done.err());
}

#[test]
fn a_gpu_that_is_missing_at_a_restart_is_noticed_at_once() {
    let fake = FakeNvml::new(&[]);
    let flags = ["--max-restarts", "1", "--restart-backoff", "1ms", "--gpu-interval", "60s"];
    let script = format!("trap 'exit 9' USR1; echo ready-$TRAINIT_ATTEMPT; {LOOP}");
    let running = run(&fake, &flags, &script).start();
    running.after_line("ready-1");
    running.after_log("the GPUs are watched");
    fake.play(&["gpus 1"]);
    running.signal(libc::SIGUSR1);
    let done = running.finish().expect_code(202);
    assert!(done.verdict()["detail"].as_str().unwrap().contains("the driver no longer lists it"), "{}", done.err());
}

#[test]
fn gpu_problems_at_the_start_are_reported() {
    let fake = FakeNvml::new(&["nvmlDeviceGetHandleByIndex_v2@1 return 15"]);
    let running = run(&fake, &[], &format!("trap 'exit 0' USR1; echo ready; {LOOP}")).start();
    running.after_line("ready");
    running.after_log("GPU 1: nvmlDeviceGetHandleByIndex_v2 failed with 15");
    running.signal(libc::SIGUSR1);
    running.finish().expect_code(0);
}

#[test]
fn a_trainer_that_dies_with_a_gpu_lost_from_the_start_is_not_restarted_here() {
    for call in ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"] {
        let fake = FakeNvml::new(&[&format!("{call}@1 return 15")]);
        let flags = ["--max-restarts", "3", "--restart-backoff", "1ms"];
        let running = run(&fake, &flags, &format!("trap 'exit 9' USR1; echo ready; {LOOP}")).start();
        running.after_line("ready");
        running.after_log("GPU is lost");
        running.signal(libc::SIGUSR1);
        let done = running.finish().expect_code(202);
        let (verdict, why) =
            (done.verdict(), format!("GPU 1: unfit for training from the start, {call} failed with 15"));
        assert!(verdict["detail"].as_str().unwrap().starts_with(&why), "{verdict}");
        assert_eq!(verdict["attempts"], 1);
    }
}

#[test]
fn an_xid_without_a_gpu_causes_a_warning_and_a_count_and_stops_nothing() {
    let fake = FakeNvml::new(&[]);
    let running = run(&fake, &[], &format!("trap 'exit 0' USR1; echo ready; {LOOP}")).start();
    running.after_line("ready");
    running.after_log("the GPUs are watched");
    fake.play(&["event-1 -1 8 79"]);
    running.after_log("a GPU that the driver does not name: XID 79, GPU has fallen off the bus");
    running.signal(libc::SIGUSR1);
    let verdict = running.finish().expect_code(0).verdict();
    let gpu = "a GPU that the driver does not name";
    assert_eq!(verdict["xids"], serde_json::json!([{"gpu": gpu, "xid": 79, "count": 1}]));
}

#[test]
fn an_xid_caused_by_the_program_does_not_stop_a_live_trainer() {
    let fake = FakeNvml::new(&[]);
    let script = format!("trap 'exit 0' USR1; echo ready; {LOOP}");
    let running = run(&fake, &[], &script).start();
    running.after_line("ready");
    running.after_log("the GPUs are watched");
    fake.play(&["event-1 0 8 13"]);
    running.after_log("XID 13");
    running.signal(libc::SIGUSR1);
    running.finish().expect_code(0);
}

#[test]
fn a_hanging_driver_is_one_warning_and_delays_neither_signals_nor_the_end() {
    let fake = FakeNvml::new(&["nvmlInit_v2 hang"]);
    let script = format!("trap 'exit 7' USR1; echo ready; {LOOP}");
    let running = run(&fake, &[], &script).start();
    running.after_line("ready");
    running.after_log("the state of the GPUs is unknown");
    let start = Instant::now();
    running.signal(libc::SIGUSR1);
    let done = running.finish().expect_code(7);
    assert_prompt(start);
    assert_eq!(done.err().matches("the state of the GPUs is unknown").count(), 1, "{}", done.err());
}

#[test]
fn a_stop_during_the_discovery_of_required_gpus_ends_at_once() {
    for (flags, signal, code, reason) in [
        (["--require-gpus", "2"], libc::SIGTERM, 143, "stopped"),
        (["--nproc", "gpu"], libc::SIGTERM, 143, "stopped"),
        (["--require-gpus", "2"], libc::SIGINT, 130, "signalled"),
    ] {
        let fake = FakeNvml::new(&["gpus 2", "nvmlInit_v2 hang"]);
        let timeout = ["--gpu-timeout", "60s", "--"];
        let args = [&["run"], &flags[..], &timeout, &["echo", "started"]].concat();
        let running = fake.trainit(&args).start();
        eventually("the driver is asked", || fake.path("trace").exists());
        running.signal(libc::SIGWINCH);
        let asked = Instant::now();
        running.signal(signal);
        let done = running.finish().expect_code(code);
        assert_prompt(asked);
        assert_eq!((done.out().as_str(), done.verdict()["reason"].as_str()), ("", Some(reason)));
        assert_eq!(done.verdict()["attempts"], 0);
    }
}

/// At the start, in the n-th query, in the wait for events; hanging or crashing.
const WAYS: [&str; 8] = [
    "nvmlInit_v2 hang",
    "nvmlInit_v2 segv",
    "nvmlInit_v2 abort",
    "call-9 hang",
    "call-9 segv",
    "nvmlDeviceGetUtilizationRates abort",
    "nvmlEventSetWait_v2 hang",
    "nvmlEventSetWait_v2 segv",
];

#[test]
fn a_driver_that_hangs_or_crashes_anywhere_is_one_warning_and_readings_resume() {
    std::thread::scope(|scope| {
        for way in WAYS {
            scope.spawn(move || {
                let fake = FakeNvml::new(&[way]);
                let running = run(&fake, &[], &format!("trap 'exit 7' USR1; echo ready; {LOOP}")).start();
                running.after_line("ready");
                running.after_log("the state of the GPUs is unknown");
                // More than one probe fails before the driver recovers.
                let probes = |fake: &FakeNvml| {
                    let mut pids: Vec<i32> = fake.calls().into_iter().map(|(pid, _)| pid).collect();
                    pids.dedup();
                    pids
                };
                eventually("another try", || probes(&fake).len() >= 2);
                fake.play(&[]);
                running.after_log("the GPUs are watched again");
                let mut pids = probes(&fake);
                let in_turn = pids.len();
                pids.sort_unstable();
                pids.dedup();
                assert_eq!(pids.len(), in_turn, "{way}: two probes at once: {:?}", fake.calls());
                running.signal(libc::SIGUSR1);
                let done = running.finish().expect_code(7);
                assert_eq!(done.err().matches("the state of the GPUs is unknown").count(), 1, "{way}: {}", done.err());
                assert_eq!(done.verdict()["reason"], "failed", "{way}");
            });
        }
    });
}

#[test]
fn the_probe_dies_with_a_trainit_that_is_killed() {
    let fake = FakeNvml::new(&["nvmlEventSetWait_v2 hang"]);
    let args = ["run", "--gpu-timeout", "50s", "--", "sh", "-c", "echo ready; sleep 60"];
    let running = fake.trainit(&args).start();
    running.after_line("ready");
    eventually("the wait for events", || fake.calls().iter().any(|(_, call)| call == "nvmlEventSetWait_v2"));
    let probe = fake.calls()[0].0;
    send(running.pid(), libc::SIGKILL);
    eventually("the probe is gone", || !is_alive(probe));
}

#[test]
fn an_unknown_error_of_the_driver_never_ends_a_job_by_itself() {
    let fake = FakeNvml::new(&[]);
    let running = run(&fake, &[], &format!("trap 'exit 0' USR1; echo ready; {LOOP}")).start();
    running.after_line("ready");
    running.after_log("the GPUs are watched");
    fake.play(&["all return 999"]);
    running.after_log("failed with 999");
    running.signal(libc::SIGUSR1);
    let done = running.finish().expect_code(0);
    assert_eq!(done.verdict()["reason"], "finished");
}

#[test]
fn the_probe_does_not_count_for_the_tree_and_runs_again_after_a_restart() {
    let fake = FakeNvml::new(&[]);
    let flags = ["--max-restarts", "1", "--restart-backoff", "1ms"];
    let script = format!("trap 'exit 9' USR1; trap 'exit 0' USR2; echo ready-$TRAINIT_ATTEMPT; {LOOP}");
    let running = run(&fake, &flags, &script).start();
    running.after_line("ready-1");
    running.after_log("the GPUs are watched");
    running.signal(libc::SIGUSR1);
    running.after_line("ready-2");
    let start = Instant::now();
    running.signal(libc::SIGUSR2);
    running.finish().expect_code(0);
    assert_prompt(start);
}

#[test]
fn neither_a_restart_nor_the_end_waits_for_an_unkillable_probe() {
    let fake = FakeNvml::new(&["nvmlInit_v2 hang"]);
    let args =
        ["run", "--max-restarts", "1", "--restart-backoff", "1ms", "--stop-grace", "40s", "--gpu-timeout", "50s"];
    let script = format!("trap 'exit 9' USR1; trap 'exit 0' USR2; echo ready-$TRAINIT_ATTEMPT; {LOOP}");
    let running = fake.trainit(&args).args(["--", "sh", "-c", &script]).start();
    running.after_line("ready-1");
    eventually("the driver hangs", || !fake.calls().is_empty());
    let _held = Held::when_killed(fake.calls()[0].0);
    let start = Instant::now();
    running.signal(libc::SIGUSR1);
    running.after_line("ready-2");
    running.after_log("the GPU probe is stuck in the kernel");
    running.signal(libc::SIGUSR2);
    let done = running.finish().expect_code(0);
    assert_within(start, Duration::from_secs(30));
    assert!(!done.err().contains("debugger"), "{}", done.err());
    assert_eq!(fake.calls().len(), 1, "two probes at once: {:?}", fake.calls());
}

#[test]
fn a_note_about_a_program_fault_names_hang_timeout() {
    let fake = FakeNvml::new(&[]);
    let running = run(&fake, &[], &format!("trap 'exit 0' TERM; echo ready; {LOOP}")).start();
    running.after_line("ready");
    running.after_log("the GPUs are watched");
    fake.play(&["event-1 0 8 43"]);
    let line: serde_json::Value = serde_json::from_str(&running.after_log("XID 43")).unwrap();
    assert!(line["message"].as_str().unwrap().ends_with("--hang-timeout"), "{line}");
    running.stop().expect_code(143);
}

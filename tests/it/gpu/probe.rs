//! The GPU probe as a process of its own: a driver that hangs, crashes or prints, and the process's death. The library
//! is a fake; the process is real.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::command::{object, problem};
use crate::support::fake_nvml::FakeNvml;
use crate::support::{Trainit, eventually, is_alive, send};

#[test]
fn a_hang_in_any_call_is_cut_off_at_the_deadline_and_named() {
    let healthy = FakeNvml::new(&[]);
    healthy.gpus();
    let calls = healthy.calls();
    assert!(calls.len() > 20, "{calls:?}");
    assert_eq!((calls[0].1.as_str(), calls[1].1.as_str()), ("nvmlInit_v2", "nvmlSystemGetDriverVersion"));
    // The first call, the last one and some between; each is at another place in the probe.
    for number in [1, 2, 4, 5, 6, calls.len() / 2, calls.len()] {
        let fake = FakeNvml::new(&[&format!("call-{number} hang")]);
        let started = Instant::now();
        let done = fake.trainit(&["gpus", "--json", "--gpu-timeout", "300ms"]).output().expect_code(0);
        let took = started.elapsed();
        let object = object(&done);
        let expected = format!("{} did not return in 0.3 s", calls[number - 1].1);
        assert!(problem(&object).starts_with(&expected), "call {number}: {object}");
        assert!(took >= Duration::from_millis(300), "{took:?}");
        let pid = fake.calls()[0].0;
        assert!(!is_alive(pid), "the probe {pid} still lives");
        if number > 5 {
            assert_eq!(object["gpus"].as_array().unwrap().len(), 2, "call {number}: {object}");
        }
    }
}

#[test]
fn a_crash_in_the_driver_is_reported_with_its_signal_and_place() {
    for (action, signal) in [("segv", "SIGSEGV"), ("abort", "SIGABRT")] {
        for function in ["nvmlInit_v2", "nvmlDeviceGetUtilizationRates"] {
            let fake = FakeNvml::new(&[&format!("{function} {action}")]);
            let object = fake.gpus();
            assert!(problem(&object).contains(signal) && problem(&object).contains(function), "{object}");
            assert!(object["gpus"].as_array().unwrap().iter().all(|gpu| gpu["health"] == "unknown"), "{object}");
        }
    }
}

#[test]
fn a_slow_driver_is_not_treated_as_hanging() {
    let fake = FakeNvml::new(&["nvmlInit_v2 sleep 400", "nvmlDeviceGetName sleep 300"]);
    let done = fake.trainit(&["gpus", "--json", "--gpu-timeout", "10s"]).output().expect_code(0);
    assert_eq!(object(&done)["problem"], Value::Null);
    assert_eq!(object(&done)["gpus"][1]["name"], "Fake GPU");
}

#[test]
fn calls_that_are_each_in_time_are_cut_off_at_three_times_the_limit() {
    let fake = FakeNvml::new(&["all sleep 500"]);
    let done = fake.trainit(&["gpus", "--json", "--gpu-timeout", "2s"]).output().expect_code(0);
    assert!(problem(&object(&done)).contains("more than 6 s in all"), "{}", done.out());
    assert_eq!(object(&done)["gpus"][0]["name"], "Fake GPU", "what was known by then is kept");
}

#[test]
fn a_library_that_prints_cannot_forge_or_break_the_protocol() {
    let object = FakeNvml::new(&["nvmlInit_v2 print", "nvmlDeviceGetName print"]).gpus();
    assert_eq!(object["gpus"].as_array().unwrap().len(), 2);
    assert_eq!((&object["problem"], &object["gpus"][1]["health"]), (&Value::Null, &json!("ok")));
}

#[test]
fn the_probe_inherits_nothing_but_the_environment() {
    let fake = FakeNvml::new(&["nvmlInit_v2 sleep 1"]);
    let ignoring = ["env", "--ignore-signal=PIPE", "--ignore-signal=TERM", "--block-signal=HUP"];
    let mut trainit = Trainit::through(&ignoring, ["gpus", "--json"]);
    trainit = trainit.env("TRAINIT_NVML_LIBRARY", fake.dir_of_library().join("libnvidia-ml.so.1"));
    trainit
        .env("FAKE_NVML", fake.path("scenario"))
        .stdin(std::fs::File::open("/dev/zero").unwrap())
        .output()
        .expect_code(0);
    assert_eq!(fake.state("SigIgn"), "0000000000000000");
    assert_eq!(fake.state("SigBlk"), "0000000000000000");
    assert_eq!(fake.state("pdeathsig"), "9");
    assert_eq!(fake.state("oom"), "1000");
    assert_eq!(fake.state("core"), "0");
    assert_eq!(fake.state("pgid"), fake.state("pid "), "a group of its own");
    let strangers: Vec<String> = fake.states("fd ").into_iter().filter(|fd| !fd.contains(" pipe:")).collect();
    assert!(strangers.is_empty(), "{strangers:?}");
}

#[test]
fn the_probe_dies_with_a_trainit_that_is_killed() {
    let fake = FakeNvml::new(&["nvmlInit_v2 hang"]);
    let running = fake.trainit(&["gpus", "--gpu-timeout", "50s"]).start();
    eventually("nvmlInit_v2 is called", || !fake.calls().is_empty());
    let probe = fake.calls()[0].0;
    send(running.pid(), 9);
    eventually("the probe is gone", || !is_alive(probe));
}

#[test]
fn nvml_is_never_shut_down() {
    let fake = FakeNvml::new(&["nvmlShutdown hang"]);
    assert_eq!(fake.gpus()["problem"], Value::Null);
}

#[test]
fn the_probe_as_a_separate_program_reports_the_same() {
    let fake = FakeNvml::new(&[]);
    let own = env!("CARGO_BIN_EXE_trainit-gpu-probe");
    let done = fake.trainit(&["gpus", "--json"]).env("TRAINIT_GPU_PROBE", own).output().expect_code(0);
    for disposition in ["SigIgn", "SigCgt"] {
        assert_eq!(fake.state(disposition), "0000000000000000", "{disposition}");
    }
    assert_eq!(object(&done), fake.gpus());
}

#[test]
fn a_program_that_is_not_a_probe_is_a_problem_and_not_a_hang() {
    let ask = |program: &str| {
        let args = ["gpus", "--json", "--gpu-timeout", "300ms"];
        let done = Trainit::new(args).env("TRAINIT_GPU_PROBE", program).output().expect_code(0);
        problem(&object(&done)).to_owned()
    };
    assert!(ask("/nowhere/probe").contains("/nowhere/probe could not be started"));
    assert!(ask("/etc/passwd").contains("must not be executed"));
    assert!(ask("/bin/false").contains("exit code 1"));
    assert!(ask("/usr/bin/yes").contains("was silent"));
}

#[test]
fn a_probe_line_of_more_than_64_kib_ends_the_probe() {
    let dir = tempfile::tempdir().unwrap();
    let probe = dir.path().join("probe");
    let script = "#!/bin/sh\necho '{\"t\":\"hello\"}'\nhead -c 70000 /dev/zero\nsleep 60\n";
    std::fs::write(&probe, script).unwrap();
    std::fs::set_permissions(&probe, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let done = Trainit::new(["gpus", "--json"]).env("TRAINIT_GPU_PROBE", &probe).output().expect_code(0);
    assert!(problem(&object(&done)).contains("64 KiB"), "{}", done.out());
}

//! `trainit gpus` with a driver that is healthy, old, unusual or lost. The library is a fake; the dlopen is real.

use serde_json::{Value, json};

use crate::support::fake_nvml::{Driver, FakeNvml};
use crate::support::{Finished, Trainit, has_gpus};

pub fn object(done: &Finished) -> Value {
    serde_json::from_str(&done.out()).unwrap_or_else(|e| panic!("{e}: {}", done.out()))
}

#[track_caller]
pub fn problem(object: &Value) -> &str {
    object["problem"].as_str().unwrap_or_else(|| panic!("no problem in {object}"))
}

#[test]
fn a_healthy_driver_is_reported_in_full() {
    let fake = FakeNvml::new(&["gpu1.name Fake H100", "gpu1.links 4", "gpu1.mig 0", "gpu1.recovery 0", "gpu1.minor 7"]);
    let object = fake.gpus();
    assert_eq!(object["source"], "nvml");
    assert_eq!(object["problem"], Value::Null);
    assert_eq!((&object["driver_version"], &object["cuda_version"]), (&json!("550.54.15"), &json!("12.4")));
    let expected = json!({
        "index": 1, "uuid": "GPU-00000001-0000-0000-0000-000000000000", "name": "Fake H100",
        "pci_bus_id": "00000000:05:00.0", "minor": 7,
        "memory_total_bytes": 16_u64 << 30, "memory_used_bytes": 1 << 30, "memory_reserved_bytes": 300 << 20,
        "utilization_percent": 97, "memory_utilization_percent": 33, "temperature_celsius": 41,
        "power_watts": 70.5, "power_limit_watts": 300.0, "ecc_uncorrected": 0, "throttle_reasons": 0,
        "mig": false, "nvlinks_active": 4, "remap_pending": false, "remap_failed": false, "recovery_action": 0,
        "cuda_visible": true, "health": "ok", "health_reason": null,
    });
    assert_eq!(object["gpus"][1], expected);
    assert_eq!(object["gpus"].as_array().unwrap().len(), 2);
}

#[test]
fn the_table_has_a_line_for_each_gpu_and_one_for_the_driver() {
    let done = FakeNvml::new(&["gpu0.throttle 0x48"]).trainit(&["gpus"]).output().expect_code(0);
    let out = done.out();
    assert!(out.lines().next().unwrap().starts_with("GPU  NAME"), "{out}");
    assert!(out.contains("GPU-00000001-0000-0000-0000-000000000000  1024/16384 MiB  97%   41C   70/300 W"), "{out}");
    assert!(out.contains("driver 550.54.15, CUDA 12.4"), "{out}");
    assert!(out.contains("GPU 0: slowed down: hw-slowdown, hw-thermal"), "{out}");
}

#[test]
fn the_library_is_found_by_the_loader_s_own_search_too() {
    let fake = FakeNvml::new(&[]);
    let args = ["gpus", "--json"];
    let done = Trainit::new(args).env("LD_LIBRARY_PATH", fake.dir_of_library()).env("FAKE_NVML", fake.path("scenario"));
    assert_eq!(object(&done.output().expect_code(0))["gpus"].as_array().unwrap().len(), 2);
}

#[test]
fn the_toolkits_stub_is_never_used() {
    if has_gpus() {
        return;
    }
    let fake = FakeNvml::new(&[]);
    let stubs = fake.path("stubs");
    std::fs::create_dir(&stubs).unwrap();
    std::fs::copy(fake.dir_of_library().join("libnvidia-ml.so.1"), stubs.join("libnvidia-ml.so.1")).unwrap();
    let done = Trainit::new(["gpus", "--json"]).env("LD_LIBRARY_PATH", stubs).env("FAKE_NVML", fake.path("scenario"));
    assert_eq!(object(&done.output().expect_code(0))["source"], "none");
    assert!(fake.calls().is_empty(), "{:?}", fake.calls());
}

#[test]
fn a_machine_without_nvidia_is_not_a_problem_and_exits_with_0() {
    if has_gpus() {
        return;
    }
    let done = Trainit::new(["gpus", "--json"]).output().expect_code(0);
    let expected = json!({"gpus": [], "driver_version": null, "cuda_version": null, "source": "none", "problem": null});
    assert_eq!(object(&done), expected);
}

#[test]
fn the_reason_for_finding_no_gpu_is_on_the_same_line() {
    if has_gpus() {
        return;
    }
    let fake = FakeNvml::new(&["nvmlInit_v2 return 9"]);
    for command in ["gpus", "inspect"] {
        let line = |done: Finished| {
            let text = done.expect_code(0).out();
            text.lines().find(|line| line.starts_with("no GPUs")).unwrap_or_else(|| panic!("{text}")).to_owned()
        };
        let absent = line(Trainit::new([command]).output());
        assert!(absent.starts_with("no GPUs: there is no NVIDIA driver library (libnvidia-ml.so.1), and"), "{absent}");
        let refused = line(fake.trainit(&[command]).output());
        assert!(refused.starts_with("no GPUs: nvmlInit_v2 failed with 9, driver not loaded"), "{refused}");
    }
    let demand = Trainit::new(["inspect", "--require-gpus", "1"]).output().expect_code(125).out();
    assert!(demand.contains("none was found (there is no NVIDIA driver library"), "{demand}");
}

#[test]
fn a_named_library_that_is_missing_is_a_problem() {
    if has_gpus() {
        return;
    }
    let done = Trainit::new(["gpus", "--json"]).env("TRAINIT_NVML_LIBRARY", "/nowhere/libnvidia-ml.so.1").output();
    let object = object(&done.expect_code(0));
    assert!(problem(&object).contains("/nowhere/libnvidia-ml.so.1"), "{object}");
    assert_eq!(object["source"], "none");
}

#[test]
fn a_driver_without_gpus_is_not_a_problem() {
    if has_gpus() {
        return;
    }
    let object = FakeNvml::new(&["gpus 0"]).gpus();
    assert_eq!((&object["gpus"], &object["problem"], &object["source"]), (&json!([]), &Value::Null, &json!("nvml")));
}

#[test]
fn every_refusal_of_nvml_is_a_problem_with_its_meaning() {
    if has_gpus() {
        return;
    }
    let cases = [
        (9, "driver not loaded"),
        (4, "start the container with GPUs"),
        (17, "device cgroup"),
        (999, "lost its devices"),
        (18, "upgraded"),
    ];
    for (code, meaning) in cases.into_iter().chain([(15, "GPU is lost"), (16, "needs a reset"), (3, "3"), (13, "13")]) {
        let object = FakeNvml::new(&[&format!("nvmlInit_v2 return {code}")]).gpus();
        assert!(problem(&object).contains(meaning), "{code}: {object}");
        assert_eq!((&object["source"], &object["gpus"]), (&json!("none"), &json!([])), "{code}");
    }
}

#[test]
fn a_failed_field_is_null_and_no_other_field() {
    let codes = [3, 4, 13, 17, 999, 4711];
    let fields = [
        ("nvmlDeviceGetName", "name"),
        ("nvmlDeviceGetTemperature", "temperature_celsius"),
        ("nvmlDeviceGetPowerUsage", "power_watts"),
        ("nvmlDeviceGetPciInfo_v3", "pci_bus_id"),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", "throttle_reasons"),
        ("nvmlDeviceGetTotalEccErrors", "ecc_uncorrected"),
        ("nvmlDeviceGetUUID", "uuid"),
    ];
    for ((function, field), code) in fields.into_iter().zip(codes.into_iter().cycle()) {
        let object = FakeNvml::new(&[&format!("{function}@0 return {code}")]).gpus();
        let nulls = |gpu: &Value| gpu.as_object().unwrap().values().filter(|v| v.is_null()).count();
        assert_eq!(object["gpus"][0][field], Value::Null, "{object}");
        assert_eq!(nulls(&object["gpus"][0]), nulls(&object["gpus"][1]) + 1, "{function} {code}: {object}");
        assert_eq!(object["problem"], Value::Null);
    }
}

#[test]
fn a_lost_gpu_found_during_the_version_query_does_not_affect_other_gpus() {
    let object = FakeNvml::new(&["nvmlSystemGetDriverVersion return 15"]).gpus();
    assert_eq!((&object["driver_version"], &object["problem"]), (&Value::Null, &Value::Null));
    assert_eq!((&object["cuda_version"], &object["gpus"][1]["health"]), (&json!("12.4"), &json!("ok")));
}

#[test]
fn an_old_driver_without_the_new_memory_call_still_reports_memory() {
    let object = FakeNvml::of(Driver::Old, &[]).gpus();
    assert_eq!(object["gpus"][0]["memory_total_bytes"], 16_u64 << 30);
    assert_eq!(object["gpus"][0]["memory_used_bytes"], 1 << 30);
    assert_eq!(object["gpus"][0]["memory_reserved_bytes"], Value::Null);
    assert_eq!(object["gpus"][0]["health"], "ok");
    let refused = FakeNvml::new(&["nvmlDeviceGetMemoryInfo_v2 return 999"]).gpus();
    assert_eq!(refused["gpus"][0]["memory_total_bytes"], 16_u64 << 30);
}

#[test]
fn garbage_in_a_name_is_made_readable() {
    let no_nul = "ff".repeat(96);
    let escape = format!("gpu1.name-hex {}00", "1b5b324a0a41");
    let fake = FakeNvml::new(&[&format!("gpu0.name-hex {no_nul}"), &escape]);
    let object = fake.gpus();
    assert_eq!(object["gpus"][0]["name"].as_str().unwrap(), "\u{fffd}".repeat(96));
    assert_eq!(object["gpus"][0]["temperature_celsius"], 41);
    let out = fake.trainit(&["gpus"]).output().expect_code(0).out();
    assert!(!out.contains('\x1b') && out.lines().count() == 4, "{out:?}");
}

#[test]
fn a_lost_gpu_is_bad_and_the_other_is_healthy() {
    for (function, code) in [("nvmlDeviceGetHandleByIndex_v2", 15), ("nvmlDeviceGetTemperature", 16)] {
        let object = FakeNvml::new(&[&format!("{function}@1 return {code}")]).gpus();
        assert_eq!(object["gpus"][0]["health"], "ok", "{object}");
        assert_eq!(object["gpus"][1]["health"], "bad", "{object}");
        assert!(problem(&object).contains(&format!("GPU 1: {function} failed with {code}")), "{object}");
    }
}

#[test]
fn the_drivers_own_verdict_is_in_the_health() {
    let object = FakeNvml::new(&["gpu0.recovery 1", "gpu1.recovery 99"]).gpus();
    assert_eq!((&object["gpus"][0]["health"], &object["gpus"][1]["health"]), (&json!("bad"), &json!("warn")));
    assert!(object["gpus"][0]["health_reason"].as_str().unwrap().contains("GPU reset"), "{object}");
}

#[test]
fn cuda_visible_devices_is_joined_by_uuid() {
    let fake = FakeNvml::new(&["gpu0.name A", "gpu1.name B"]);
    let visible = |list: &str| {
        let done = fake.trainit(&["gpus", "--json"]).env("CUDA_VISIBLE_DEVICES", list).output().expect_code(0);
        let gpus = object(&done)["gpus"].clone();
        [gpus[0]["cuda_visible"].clone(), gpus[1]["cuda_visible"].clone()]
    };
    assert_eq!(visible("GPU-00000001"), [json!(false), json!(true)]);
    assert_eq!(visible("0"), [Value::Null, Value::Null], "CUDA's 0 need not be NVML's");
    assert_eq!(visible(""), [json!(false), json!(false)]);
    assert_eq!(visible("MIG-1f8c"), [Value::Null, Value::Null], "an instance of an unknown GPU");
    fake.play(&["gpu0.name A", "gpu1.name A"]);
    assert_eq!(visible("1"), [json!(false), json!(true)], "of one model, numbers are the same to both");
    assert_eq!(visible("1,-1,0"), [json!(false), json!(true)], "what names nothing ends the list");
}

#[test]
fn watch_shows_the_gpus_again_from_one_probe_and_xids_at_once() {
    let fake = FakeNvml::new(&["gpu0.util 11"]);
    let running = fake.trainit(&["gpus", "--watch", "--json", "--gpu-interval", "20ms"]).start();
    running.after_line("\"utilization_percent\":11");
    fake.play(&["gpu0.util 22"]);
    let line = running.after_line("\"utilization_percent\":22");
    assert!(line.ends_with("\"xids\":[]}\n"), "{line}");
    fake.play(&["event-1 1 8 79"]);
    running.after_line(
        "\"xids\":[{\"gpu\":\"GPU 1 (GPU-00000001-0000-0000-0000-000000000000, 00000000:05:00.0)\",\"xid\":79",
    );
    drop(running);
    let mut probes: Vec<i32> = fake.calls().into_iter().map(|(pid, _)| pid).collect();
    probes.dedup();
    assert_eq!(probes.len(), 2, "the first look and the watch: {probes:?}");
    let table = fake.trainit(&["gpus", "--watch", "--gpu-interval", "20ms"]).start();
    table.after_line("XID 79 x 1 on GPU 1 (GPU-00000001");
}

#[test]
fn watch_reports_when_readings_stop_and_when_they_resume() {
    let fake = FakeNvml::new(&[]);
    let args = ["gpus", "--watch", "--json", "--gpu-interval", "50ms", "--gpu-timeout", "300ms"];
    let running = fake.trainit(&args).start();
    running.after_line("\"xids\":[]");
    fake.play(&["nvmlEventSetWait_v2 hang"]);
    let line = running.after_line("nvmlEventSetWait_v2 did not return in 0.3 s");
    let frame: Value = serde_json::from_str(&line).unwrap();
    assert!(frame["gpus"].as_array().unwrap().iter().all(|gpu| gpu["health"] == "unknown"), "{frame}");
    fake.play(&["event-1 0 8 43"]);
    running.after_line("\"problem\":null,\"xids\":[{");
}

#[test]
fn an_answer_that_cannot_be_written_is_an_error_with_its_reason() {
    let mut gpus = Trainit::new(["gpus", "--json"]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let done = gpus.command().stdout(full).output().unwrap();
    let err = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.code() == Some(1) && err.contains("standard output cannot be written"), "{err}");
}

#[test]
fn a_bad_setting_is_125() {
    let done = Trainit::new(["gpus", "--gpu-timeout", "0s"]).output().expect_code(125);
    assert!(done.err().contains("--gpu-timeout") && done.err().contains("at least 10ms"), "{}", done.err());
}

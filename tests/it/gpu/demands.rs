//! `--require-gpus`, and GPUs that are known only by their device nodes.

use serde_json::{Value, json};

use crate::gpu::command::{object, problem};
use crate::support::fake_nvml::{Driver, FakeNvml};
use crate::support::{Trainit, has_gpus, is_root};

/// Runs with a separate /dev and /proc/driver: `setup` is a shell line with `$DEV` as working directory.
fn with_devices(setup: &str) -> Trainit {
    devices(setup, &["gpus", "--json"])
}

fn devices(setup: &str, args: &[&str]) -> Trainit {
    let script = format!(
        "mount -t tmpfs none /proc/driver && mount -t tmpfs none /dev && cd /dev && mkdir -p /proc/driver/nvidia/gpus && \
         {setup} && cd / && exec \"$@\""
    );
    Trainit::through(&["unshare", "--mount", "sh", "-c", &script, "sh"], args)
}

const INFORMATION: &str = "mkdir /proc/driver/nvidia/gpus/0000:00:04.0 && printf 'Model: \\t Tesla T4\\nGPU UUID: \\t \
                           GPU-1f8c\\nBus Location: \\t 0000:00:04.0\\nDevice Minor: \\t 3\\n' \
                           > /proc/driver/nvidia/gpus/0000:00:04.0/information";

#[test]
fn gpus_without_nvml_are_counted_by_their_device_nodes() {
    if has_gpus() {
        return;
    }
    if !is_root() {
        crate::support::skip("needs root for a /dev of its own");
        return;
    }
    // Minor 3 is visible and known; 5 is visible and unknown to /proc; 9 does not open; ctl and uvm are not GPUs.
    let setup = format!("touch nvidiactl nvidia-uvm nvidia3 nvidia5 && mkdir nvidia9 && {INFORMATION}");
    let object = object(&with_devices(&setup).output().expect_code(0));
    assert_eq!(object["source"], "procfs");
    assert!(problem(&object).contains("set NVIDIA_DRIVER_CAPABILITIES=compute,utility"), "{object}");
    let gpus = object["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), 2, "{object}");
    assert_eq!(gpus[0]["name"], "Tesla T4");
    assert_eq!((&gpus[0]["uuid"], &gpus[0]["minor"]), (&json!("GPU-1f8c"), &json!(3)));
    assert_eq!((&gpus[1]["name"], &gpus[1]["minor"], &gpus[1]["index"]), (&Value::Null, &json!(5), &json!(1)));
    assert_eq!(gpus[0]["memory_total_bytes"], Value::Null);
    assert_eq!(gpus[0]["health"], "unknown");
}

#[test]
fn with_a_hanging_nvml_the_device_nodes_are_counted() {
    if !is_root() {
        crate::support::skip("needs root for a /dev of its own");
        return;
    }
    let fake = FakeNvml::new(&["nvmlInit_v2 hang"]);
    let trainit = with_devices("touch nvidiactl nvidia-uvm nvidia0 nvidia1").args(["--gpu-timeout", "300ms"]);
    let library = fake.dir_of_library().join("libnvidia-ml.so.1");
    let done = trainit.env("TRAINIT_NVML_LIBRARY", library).env("FAKE_NVML", fake.path("scenario")).output();
    let object = object(&done.expect_code(0));
    assert_eq!((&object["source"], object["gpus"].as_array().unwrap().len()), (&json!("procfs"), 2), "{object}");
    assert!(problem(&object).starts_with("nvmlInit_v2 did not return in 0.3 s"), "{object}");
}

#[test]
fn a_missing_module_and_missing_nodes_are_distinguished() {
    if !is_root() {
        crate::support::skip("needs root for a /dev of its own");
        return;
    }
    let fake = FakeNvml::new(&["nvmlInit_v2 return 9"]);
    let ask = |setup: &str| {
        let trainit = with_devices(setup).env("TRAINIT_NVML_LIBRARY", fake.dir_of_library().join("libnvidia-ml.so.1"));
        problem(&object(&trainit.env("FAKE_NVML", fake.path("scenario")).output().expect_code(0))).to_owned()
    };
    assert!(ask("rmdir /proc/driver/nvidia/gpus /proc/driver/nvidia").contains("kernel module is not loaded"));
    assert!(ask("true").contains("no device nodes"));
}

#[test]
fn without_proc_the_probe_still_starts() {
    if !is_root() {
        crate::support::skip("needs root to hide /proc");
        return;
    }
    let fake = FakeNvml::new(&[]);
    let hide = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"];
    let trainit = Trainit::through(&hide, ["gpus", "--json"]).env("FAKE_NVML", fake.path("scenario"));
    let done = trainit.env("TRAINIT_NVML_LIBRARY", fake.dir_of_library().join("libnvidia-ml.so.1")).output();
    assert_eq!(object(&done.expect_code(0))["gpus"].as_array().unwrap().len(), 2);
}

#[test]
fn an_unmet_demand_is_125_before_anything_starts_and_says_what_was_found() {
    let fake = FakeNvml::new(&["driver 535.104.05"]);
    let done = fake
        .trainit(&[
            "run",
            "--require-gpus",
            "4",
            "--min-driver",
            "550",
            "--min-gpu-memory",
            "40GiB",
            "--",
            "echo",
            "ran",
        ])
        .output()
        .expect_code(125);
    assert!(!done.out().contains("ran"));
    for words in ["4 needed, 2 found: Fake GPU, Fake GPU", "550 needed, the driver is 535.104.05", "has 16.0 GiB"] {
        assert!(done.err().contains(words), "{words}: {}", done.err());
    }
    assert_eq!(done.verdict()["reason"], "not_started");
}

#[test]
fn a_demand_unmet_only_because_of_a_broken_gpu_is_202_and_names_it() {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for (line, why) in [
        ("gpu0.recovery 1", "the driver asks for recovery action 1, GPU reset"),
        ("gpu0.failed 1", "a faulty memory row could not be replaced"),
        ("nvmlDeviceGetTemperature@0 return 15", "nvmlDeviceGetTemperature failed with 15, GPU is lost"),
    ] {
        let fake = FakeNvml::new(&[line]);
        let run = |count: &str| fake.trainit(&["run", "--require-gpus", count, "--", "echo", "ran"]).output();
        let done = run("2").expect_code(202);
        let gpu = "GPU 0 (GPU-00000000-0000-0000-0000-000000000000, 00000000:04:00.0)";
        let detail = format!("--require-gpus: 2 needed, 1 usable of 2, 1 broken: {gpu}: {why} (host {})", host.trim());
        assert_eq!((&done.verdict()["reason"], &done.verdict()["detail"]), (&json!("gpu"), &json!(detail)));
        assert!(done.out().is_empty());
        assert_eq!(run("3").expect_code(125).verdict()["reason"], "not_started", "whole or not, there are too few");
    }
}

#[test]
fn a_gpu_without_a_handle_is_broken_unless_it_belongs_to_another_container() {
    for code in [2, 3, 15, 17, 999] {
        let fake = FakeNvml::new(&[&format!("nvmlDeviceGetHandleByIndex_v2@0 return {code}")]);
        let done = fake.trainit(&["run", "--require-gpus", "2", "--", "echo", "ran"]).output().expect_code(202);
        let fault = format!("1 usable of 2, 1 broken: GPU 0: nvmlDeviceGetHandleByIndex_v2 failed with {code}");
        assert!(done.err().contains(&fault), "{}", done.err());
    }
    let fake = FakeNvml::new(&["nvmlDeviceGetHandleByIndex_v2@0 return 4"]);
    let run = |count| fake.trainit(&["run", "--require-gpus", count, "--", "echo", "ran"]).output();
    run("1").expect_code(0);
    assert!(run("2").expect_code(125).err().contains("2 needed, 1 found"));
}

#[test]
fn each_process_of_nproc_gets_its_own_mig_instance() {
    let fake = FakeNvml::new(&["gpus 1", "gpu0.mig 1"]);
    let seen = |count: &str| -> Vec<String> {
        let run = ["run", "--output-prefix", "none", "--nproc", count, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"];
        let done = fake.trainit(&run).env("CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2").output().expect_code(0);
        let mut seen: Vec<String> = done.out().lines().map(str::to_owned).collect();
        seen.sort_unstable();
        seen
    };
    assert_eq!(seen("2"), ["MIG-1", "MIG-2"]);
    assert_eq!(seen("gpu"), ["MIG-1", "MIG-2"]);
    assert_eq!(seen("3"), ["MIG-1,MIG-2"; 3], "there are too few");
    let done = fake.trainit(&["run", "--require-gpus", "2", "--", "true"]).output().expect_code(125);
    assert!(done.err().contains("is split into MIG instances"), "{}", done.err());
}

#[test]
fn mig_instances_are_counted_as_for_nproc_and_their_memory_is_unknown() {
    let fake = FakeNvml::new(&["gpus 1", "gpu0.mig 1"]);
    let run = |flags: &[&str]| {
        let args = [&["run", "--nproc", "gpu"], flags, &["--", "echo", "ran"]].concat();
        fake.trainit(&args).env("CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2,MIG-3").output()
    };
    assert_eq!(run(&["--require-gpus", "3"]).expect_code(0).out().lines().count(), 3);
    let done = run(&["--min-gpu-memory", "10GiB"]).expect_code(125);
    assert!(done.err().contains("is split into MIG instances"), "{}", done.err());
}

#[test]
fn with_a_met_demand_the_command_gets_nvmls_count() {
    let fake = FakeNvml::new(&[]);
    let run = ["run", "--require-gpus", "any", "--min-driver", "550", "--", "sh", "-c", "echo gpus=$TRAINIT_GPU_COUNT"];
    let done = fake.trainit(&run).output().expect_code(0);
    assert_eq!(done.out(), "gpus=2\n");
}

#[test]
fn a_demand_on_a_hanging_driver_is_unmet_in_time_with_the_reason() {
    if has_gpus() {
        return;
    }
    let fake = FakeNvml::new(&["nvmlInit_v2 hang"]);
    for (flag, value) in [("--require-gpus", "1"), ("--nproc", "gpu")] {
        let run = ["run", flag, value, "--gpu-timeout", "300ms", "--", "echo", "ran"];
        let done = fake.trainit(&run).output().expect_code(202);
        assert!(done.err().contains("nvmlInit_v2 did not return in 0.3 s"), "{}", done.err());
        assert!(done.out().is_empty() && !done.err().contains("--gpus all"), "{}", done.err());
    }
}

#[test]
fn a_demand_on_a_driver_that_fails_is_202_with_device_nodes_and_without() {
    if has_gpus() {
        return;
    }
    let run = ["run", "--require-gpus", "2", "--min-driver", "535", "--", "echo", "ran"];
    for (line, why) in [
        ("nvmlInit_v2 return 18", "start a new container"),
        ("nvmlInit_v2 return 999", "start a new container"),
        ("nvmlInit_v2 segv", "the NVIDIA driver library crashes here"),
        ("nvmlDeviceGetCount_v2 return 15", "unfit for training until it is repaired"),
        ("nvmlDeviceGetCount_v2 return 16", "unfit for training until it is repaired"),
    ] {
        let fake = FakeNvml::new(&[line]);
        let library = fake.dir_of_library().join("libnvidia-ml.so.1");
        let nodes = is_root().then(|| devices("touch nvidiactl nvidia0 nvidia1", &run));
        let nodes =
            nodes.map(|trainit| trainit.env("TRAINIT_NVML_LIBRARY", library).env("FAKE_NVML", fake.path("scenario")));
        for trainit in [Some(fake.trainit(&run)), nodes].into_iter().flatten() {
            let done = trainit.output().expect_code(202);
            let (verdict, out) = (done.verdict(), done.out());
            let detail = verdict["detail"].as_str().unwrap();
            assert_eq!((&verdict["reason"], out.as_str()), (&json!("gpu"), ""), "{line}");
            assert!(detail.contains(why) && detail.contains("another machine may succeed"), "{detail}");
            assert!(!detail.contains("--gpus all"), "{detail}");
        }
    }
}

#[test]
fn a_demand_is_202_with_device_nodes_but_no_driver_and_125_without_nodes() {
    if has_gpus() {
        return;
    }
    let fake = FakeNvml::new(&["nvmlInit_v2 return 9"]);
    let run = ["run", "--require-gpus", "1", "--", "echo", "ran"];
    let done = fake.trainit(&run).output().expect_code(125);
    assert!(done.err().contains("--gpus all"), "{}", done.err());
    if is_root() {
        let trainit = devices("touch nvidiactl nvidia0", &run).env("FAKE_NVML", fake.path("scenario"));
        let trainit = trainit.env("TRAINIT_NVML_LIBRARY", fake.dir_of_library().join("libnvidia-ml.so.1"));
        let done = trainit.output().expect_code(202);
        assert!(done.err().contains("driver not loaded") && done.out().is_empty(), "{}", done.err());
    }
}

#[test]
fn a_demand_with_a_silent_driver_counts_the_device_nodes_and_says_so() {
    if !is_root() {
        return;
    }
    let fake = FakeNvml::new(&["nvmlInit_v2 hang"]);
    for (number, code) in [("2", 0), ("3", 125)] {
        let run = ["run", "--require-gpus", number, "--gpu-timeout", "300ms", "--", "echo", "ran"];
        let trainit =
            devices("touch nvidiactl nvidia-uvm nvidia0 nvidia1", &run).env("FAKE_NVML", fake.path("scenario"));
        let trainit = trainit.env("TRAINIT_NVML_LIBRARY", fake.dir_of_library().join("libnvidia-ml.so.1"));
        let done = trainit.output().expect_code(code);
        assert_eq!(done.err().contains("the GPUs are only counted"), code == 0, "{}", done.err());
    }
}

#[test]
fn without_a_demand_a_hanging_driver_delays_nothing() {
    let fake = FakeNvml::new(&["nvmlInit_v2 hang"]);
    let done = fake.trainit(&["run", "--", "echo", "ran"]).output().expect_code(0);
    assert_eq!(done.out(), "ran\n");
}

#[test]
fn without_cudas_own_device_node_there_is_one_warning_and_a_number_of_gpus_is_refused() {
    if has_gpus() || !is_root() {
        return;
    }
    let fake = FakeNvml::new(&[]);
    let run = |nodes: &str, flags: &[&str]| {
        let args = [&["run"], flags, &["--", "echo", "ran"]].concat();
        let trainit = devices(nodes, &args).env("FAKE_NVML", fake.path("scenario"));
        trainit.env("TRAINIT_NVML_LIBRARY", fake.dir_of_library().join("libnvidia-ml.so.1")).output()
    };
    let without = "touch nvidiactl nvidia0 nvidia1";
    let done = run(without, &[]).expect_code(0);
    assert_eq!(done.err().matches("/dev/nvidia-uvm, so CUDA finds none").count(), 1, "{}", done.err());
    let done = run(without, &["--require-gpus", "1"]).expect_code(125);
    assert!(
        done.verdict()["detail"]
            .as_str()
            .unwrap()
            .contains("--require-gpus: this container has GPUs but no /dev/nvidia-uvm")
    );
    let with = "touch nvidiactl nvidia-uvm nvidia0 nvidia1";
    for flags in [&[][..], &["--require-gpus", "1"]] {
        let done = run(with, flags).expect_code(0);
        assert!(!done.err().contains("nvidia-uvm"), "{}", done.err());
    }
}

#[test]
fn a_gpu_that_shares_the_machines_memory_meets_a_demand_on_its_size() {
    let old = FakeNvml::of(Driver::Old, &["gpus 1", "nvmlDeviceGetMemoryInfo return 3"]);
    let new = FakeNvml::new(&["gpus 1", "nvmlDeviceGetMemoryInfo return 3", "nvmlDeviceGetMemoryInfo_v2 return 3"]);
    for fake in [old, new] {
        let gpu = &fake.gpus()["gpus"][0];
        assert_eq!((&gpu["memory_total_bytes"], &gpu["memory_shared"]), (&Value::Null, &json!(true)));
        let run = ["run", "--require-gpus", "1", "--min-gpu-memory", "40GiB", "--", "echo", "ran"];
        fake.trainit(&run).output().expect_code(0);
    }
}

#[test]
fn gpus_without_a_configured_fabric_do_not_count_and_the_job_can_be_retried_elsewhere() {
    for driver in [Driver::Current, Driver::Old] {
        for (line, code) in [("gpu1.fabric 1", 202), ("gpu1.fabric 2", 202), ("gpu1.fabric 3", 0), ("gpus 2", 0)] {
            let fake = FakeNvml::of(driver, &[line]);
            let run = ["run", "--require-gpus", "2", "--", "echo", "ran"];
            let done = fake.trainit(&run).output().expect_code(code);
            assert_eq!(done.err().contains("nvidia-fabricmanager"), code != 0, "{line}: {}", done.err());
        }
        let failed = FakeNvml::of(driver, &["gpu0.fabric 3", "gpu0.fabric-status 999"]);
        let run = ["run", "--require-gpus", "any", "--", "echo", "ran"];
        failed.trainit(&run).output().expect_code(0);
        assert!(failed.gpus()["gpus"][0]["health_reason"].as_str().unwrap().contains("nvidia-fabricmanager"));
    }
}

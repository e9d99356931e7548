use super::*;
use crate::gpu::protocol::Line;
use crate::process::signal::Signal;

fn report(lines: &[&str], ending: Ending) -> Report {
    let mut findings = Findings::default();
    for line in lines {
        findings.add(Line::read(line.as_bytes()).unwrap());
    }
    Report { program: "p".into(), findings, ending, last_call: "nvmlX".into(), words: String::new() }
}

fn ended(lines: &[&str]) -> Report {
    report(lines, Ending::Ended(End::Code(0)))
}

fn refused(code: u32, site: &Site) -> String {
    let line = format!(r#"{{"t":"error","fn":"nvmlInit_v2","code":{code}}}"#);
    interpret(ended(&[&line]), None, site).problem.unwrap()
}

const MISSING: &str = r#"{"t":"error","fn":"dlopen","code":12,"message":"no such file"}"#;

#[test]
fn without_a_library_and_device_nodes_there_is_no_gpu() {
    let discovery = interpret(ended(&[MISSING]), Some(Findings::default()), &Site::default());
    assert_eq!((discovery.source, discovery.problem, discovery.gpus.len()), (Evidence::None, None, 0));
}

#[test]
fn the_absence_of_gpus_is_explained_even_if_it_is_not_a_problem() {
    let why = |report, site| {
        let found = interpret(report, None, site);
        (found.problem.is_none(), found.absence.unwrap_or_default())
    };
    let none = Site::default();
    let (no_problem, missing) = why(ended(&[MISSING]), &none);
    assert!(
        no_problem && missing.contains("no NVIDIA driver library") && missing.contains("no device node"),
        "{missing}"
    );
    assert!(why(ended(&[r#"{"t":"driver","count":0}"#, r#"{"t":"end"}"#]), &none).1.contains("driver lists none"));
    assert!(why(ended(&[r#"{"t":"error","fn":"exec","code":2}"#]), &none).1.contains("no dynamic loader"));
    let ending = Ending::Ended(End::Code(127));
    let words = Report { last_call: String::new(), words: "no libc".into(), ..report(&[], ending) };
    assert!(why(words, &none).1.contains("cannot run here (no libc)"));
    assert_eq!(why(ended(&[MISSING]), &Site { control_node: true, ..Site::default() }), (false, String::new()));
}

#[test]
fn device_nodes_without_nvml_say_which_variable_to_set() {
    let mut nodes = Findings::default();
    nodes.add(Line::read(br#"{"t":"gpu","index":0,"name":"T4"}"#).unwrap());
    let site = Site { control_node: true, ..Site::default() };
    let discovery = interpret(ended(&[MISSING]), Some(nodes), &site);
    assert_eq!(discovery.source, Evidence::Procfs);
    let expected = "this container has GPUs but no NVML: set NVIDIA_DRIVER_CAPABILITIES=compute,utility";
    assert!(discovery.problem.unwrap().starts_with(expected));
    assert_eq!(discovery.gpus[0].health, Health::Unknown);
}

#[test]
fn a_named_library_that_is_missing_is_a_problem_even_without_gpus() {
    let site = Site { named_library: Some("/x.so".into()), ..Site::default() };
    assert!(interpret(ended(&[MISSING]), None, &site).problem.unwrap().contains("/x.so"));
}

#[test]
fn every_init_failure_is_explained_for_a_container() {
    let here = Site { control_node: true, module: true, uid: 1000, ..Site::default() };
    assert!(refused(9, &Site::default()).contains("kernel module is not loaded"));
    assert!(refused(9, &Site { module: true, ..Site::default() }).contains("no device nodes"));
    let forbidden = Site { forbidden_node: Some("/dev/nvidia0".into()), ..here.clone() };
    assert!(refused(4, &forbidden).contains("uid 1000 has no access to /dev/nvidia0"));
    assert!(refused(4, &here).contains("device cgroup") && !refused(4, &here).contains("uid"));
    assert!(refused(999, &here).contains("lost its devices"));
    assert!(refused(17, &here).contains("lost its devices"));
    assert!(refused(18, &here).contains("upgraded"));
    assert!(refused(15, &here).contains("lost") && refused(16, &here).contains("reset"));
    for code in [3, 13, 12345] {
        assert!(refused(code, &here).contains(&code.to_string()));
    }
}

#[test]
fn a_failing_driver_is_bad_and_a_machine_without_a_driver_is_not() {
    let nodes = Site { control_node: true, gpu_nodes: 2, ..Site::default() };
    let refused = |call: &str, code: u32, site: &Site| {
        let line = format!(r#"{{"t":"error","fn":"{call}","code":{code}}}"#);
        interpret(ended(&[&line]), None, site).driver
    };
    for site in [&Site::default(), &nodes] {
        for (call, code) in [("nvmlInit_v2", 18), ("nvmlInit_v2", 999), ("nvmlInit_v2", 17)] {
            assert_eq!(refused(call, code, site), Health::Bad, "{code}");
        }
        assert_eq!(refused("nvmlDeviceGetCount_v2", 15, site), Health::Bad);
        assert_eq!(refused("nvmlDeviceGetCount_v2", 16, site), Health::Bad);
        for (call, code) in [("dlopen", 12), ("exec", 18), ("nvmlInit_v2", 4)] {
            assert_eq!(refused(call, code, site), Health::Ok, "{call} {code}");
        }
    }
    assert_eq!(refused("nvmlInit_v2", 9, &Site::default()), Health::Ok, "no driver, and none is expected");
    assert_eq!(refused("nvmlInit_v2", 9, &nodes), Health::Bad);
    assert_eq!(interpret(ended(&[r#"{"t":"driver","count":0}"#, r#"{"t":"end"}"#]), None, &nodes).driver, Health::Ok);
}

#[test]
fn a_driver_that_hangs_or_crashes_is_unknown_and_a_slow_one_with_an_answer_is_not() {
    let with = |lines: &[&str], ending| interpret(report(lines, ending), None, &Site::default()).driver;
    let (function, limit) = ("nvmlX".into(), Duration::from_secs(1));
    let segv = || Ending::Ended(End::Signal(Signal::new(11).unwrap()));
    let lines = [r#"{"t":"driver","count":1}"#, r#"{"t":"gpu","index":0}"#];
    assert_eq!(with(&lines, Ending::Overrun(Overrun::Call { function, limit })), Health::Unknown);
    assert_eq!((with(&[], segv()), with(&lines, segv())), (Health::Unknown, Health::Unknown));
    assert_eq!(with(&[], Ending::Overrun(Overrun::Whole { limit })), Health::Unknown);
    assert_eq!(with(&lines, Ending::Overrun(Overrun::Whole { limit })), Health::Ok);
}

#[test]
fn a_hang_keeps_the_gpus_that_were_known_and_names_the_call() {
    let overrun = Overrun::Call { function: "nvmlDeviceGetName".into(), limit: Duration::from_millis(1500) };
    let lines = [r#"{"t":"driver","count":2}"#, r#"{"t":"gpu","index":0,"uuid":"GPU-a"}"#];
    let discovery = interpret(report(&lines, Ending::Overrun(overrun)), None, &Site::default());
    assert_eq!(discovery.gpus.len(), 2);
    assert!(discovery.gpus.iter().all(|gpu| gpu.health == Health::Unknown));
    assert!(discovery.problem.unwrap().starts_with("nvmlDeviceGetName did not return in 1.5 s"));
}

#[test]
fn a_crash_names_the_signal_and_the_call() {
    let segv = Ending::Ended(End::Signal(Signal::new(11).unwrap()));
    let problem = interpret(report(&[], segv), None, &Site::default()).problem.unwrap();
    assert!(problem.contains("SIGSEGV") && problem.contains("nvmlX"), "{problem}");
}

#[test]
fn a_probe_that_cannot_run_is_a_problem_only_if_gpus_are_expected() {
    let noexec = || ended(&[r#"{"t":"error","fn":"exec","code":2}"#]);
    let here = Site { control_node: true, ..Site::default() };
    assert_eq!(problem(&noexec(), &Site::default()), None);
    assert!(problem(&noexec(), &here).unwrap().contains("no dynamic loader"));
    let half = || Report { last_call: String::new(), ..report(&[], Ending::Ended(End::Code(127))) };
    assert_eq!(problem(&half(), &Site::default()), None);
    assert!(problem(&half(), &here).unwrap().contains("exit code 127"));
}

#[test]
fn a_lost_gpu_stays_in_the_list_and_the_others_are_healthy() {
    let lines = [
        r#"{"t":"driver","count":2}"#,
        r#"{"t":"gpu_error","index":1,"fn":"nvmlDeviceGetHandleByIndex_v2","code":15}"#,
        r#"{"t":"gpu","index":0,"sampled":true}"#,
        r#"{"t":"end"}"#,
    ];
    let discovery = interpret(ended(&lines), None, &Site::default());
    assert_eq!([discovery.gpus[0].health, discovery.gpus[1].health], [Health::Ok, Health::Bad]);
    assert!(discovery.problem.unwrap().contains("GPU 1: nvmlDeviceGetHandleByIndex_v2 failed with 15"));
}

#[test]
fn a_gpu_of_another_container_is_not_listed() {
    let lines = [
        r#"{"t":"driver","count":2}"#,
        r#"{"t":"gpu_error","index":0,"fn":"nvmlDeviceGetHandleByIndex_v2","code":4}"#,
        r#"{"t":"gpu","index":1,"sampled":true}"#,
        r#"{"t":"end"}"#,
    ];
    let discovery = interpret(ended(&lines), None, &Site::default());
    assert_eq!((discovery.gpus.len(), discovery.gpus[0].index, discovery.problem), (1, 1, None));
}

#[test]
fn device_nodes_without_access_through_nvml_are_a_problem() {
    let none = || ended(&[r#"{"t":"driver","count":0}"#, r#"{"t":"end"}"#]);
    let closed = r#"{"t":"gpu_error","index":0,"fn":"nvmlDeviceGetHandleByIndex_v2","code":4}"#;
    let closed = || ended(&[r#"{"t":"driver","count":1}"#, closed, r#"{"t":"end"}"#]);
    let here = Site { control_node: true, gpu_nodes: 3, ..Site::default() };
    assert!(problem(&none(), &here).unwrap().contains("NVML lists no GPU"));
    assert!(problem(&closed(), &here).unwrap().contains("lists 1 GPU but grants access to none"));
    assert_eq!(problem(&none(), &Site { control_node: true, ..Site::default() }), None, "no GPU was requested");
}

use super::super::tally::Tally;
use super::super::{Memory, tests};
use super::*;
use crate::cluster::seat::Seat;
use crate::cluster::spec::Role;
use crate::gang::view::View;
use crate::gpu::ledger::XidCount;

const SECOND: Duration = Duration::from_secs(1);

fn snapshot() -> Snapshot {
    Snapshot { restarts_used: 1, ..tests::snapshot() }
}

fn facts() -> Facts {
    let metrics = [("loss", "0.31"), ("bad", "nan"), ("far", "-inf"), ("word", "best"), ("a \"b\\c\n", "1e3")];
    Facts {
        version: "0.1.0",
        command: "secret".into(),
        now: 4000 * SECOND,
        wall: 1_000_000_000 * SECOND,
        goodput: tests::goodput(4000 * SECOND),
        tally: Tally {
            committed_unit: None,
            committed_at: Some(3965 * SECOND),
            behind: Some(40),
            commits: 12,
            bytes: 12_884_901_888,
            took: Duration::from_millis(30_500),
            last_at: Some(3967 * SECOND),
            failures: [("unreachable", 3), ("denied", 1)].into(),
        },
        memory: Memory { current_bytes: Some(5), peak_bytes: Some(6), limit_bytes: None },
        metrics: metrics.map(|(tag, text)| (tag.to_owned(), text.to_owned())).into(),
        step: Some(560),
        steps_per_second: Some(2.5),
        ..Facts::default()
    }
}

/// The samples without HELP and TYPE.
fn series(snapshot: &Snapshot, facts: &Facts) -> Vec<String> {
    text(snapshot, facts).lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn a_running_job_has_each_sample() {
    let expected = r#"trainit_info{version="0.1.0"} 1
trainit_uptime_seconds 4000
trainit_healthy 1
trainit_state{state="fetching"} 0
trainit_state{state="restoring"} 0
trainit_state{state="gathering"} 0
trainit_state{state="launching"} 0
trainit_state{state="running"} 1
trainit_state{state="stopping"} 0
trainit_state{state="draining"} 0
trainit_state{state="refreshing"} 0
trainit_state{state="waiting"} 0
trainit_state{state="surveying"} 0
trainit_state{state="assembling"} 0
trainit_state{state="arming"} 0
trainit_state{state="flushing"} 0
trainit_state{state="done"} 0
trainit_leaving 0
trainit_attempt 2
trainit_attempt_seconds 3900
trainit_restarts_total 1
trainit_restarts_used 1
trainit_restarts_allowed 3
trainit_goodput_seconds{cause="start"} 100
trainit_goodput_seconds{cause="peers"} 0
trainit_goodput_seconds{cause="restore"} 0
trainit_goodput_seconds{cause="first_step"} 0
trainit_goodput_seconds{cause="repeated"} 0
trainit_goodput_seconds{cause="training"} 3900
trainit_goodput_seconds{cause="commit"} 0
trainit_goodput_seconds{cause="stopped"} 0
trainit_step 560
trainit_steps_per_second 2.5
trainit_checkpoint_resumed_step 400
trainit_checkpoint_committed_step 520
trainit_checkpoint_lag_seconds 35
trainit_checkpoint_lag_steps 40
trainit_checkpoint_commits_total 12
trainit_checkpoint_committed_bytes_total 12884901888
trainit_checkpoint_commit_seconds_total 30.5
trainit_checkpoint_last_commit_timestamp_seconds 999999967
trainit_checkpoint_failures_total{cause="denied"} 1
trainit_checkpoint_failures_total{cause="unreachable"} 3
trainit_memory_bytes 5
trainit_memory_peak_bytes 6
trainit_metric{tag="a \"b\\c\n"} 1000
trainit_metric{tag="bad"} NaN
trainit_metric{tag="far"} -Inf
trainit_metric{tag="loss"} 0.31"#;
    assert_eq!(series(&snapshot(), &facts()).join("\n"), expected);
    assert!(!text(&snapshot(), &facts()).contains("secret"), "the command's arguments are not published");
}

#[test]
fn each_name_is_explained_once_and_before_its_series() {
    let text = text(&snapshot(), &facts());
    let mut watched: Vec<&str> = Vec::new();
    for line in text.lines() {
        let name = line.trim_start_matches("# HELP ").split([' ', '{']).next().unwrap_or_default();
        match line.strip_prefix("# TYPE ") {
            Some(rest) => {
                let (name, kind) = rest.split_once(' ').expect("a kind");
                assert_eq!(kind == COUNTER, name.ends_with("_total"), "{name}");
            }
            None if line.starts_with("# HELP ") => {
                assert!(!watched.contains(&name), "{name} is explained twice");
                watched.push(name);
            }
            None => assert_eq!(watched.last(), Some(&name), "{line}"),
        }
    }
    assert!(text.starts_with("# HELP trainit_info trainit's version\n# TYPE trainit_info gauge\ntrainit_info{"));
    assert!(text.ends_with('\n'));
}

#[test]
fn an_unknown_value_is_omitted() {
    let snapshot = Snapshot { has_store: false, resumed_step: None, is_running: false, ..snapshot() };
    let facts = Facts { memory: Memory::default(), metrics: Default::default(), ..facts() };
    for name in ["checkpoint", "memory", "metric", "gpu", "attempt_seconds", "deadline", "machine"] {
        let found = text(&snapshot, &facts).lines().find(|line| line.contains(&format!("trainit_{name}"))).is_some();
        assert!(!found, "{name}");
    }
}

#[test]
fn a_stop_has_its_deadline_and_a_failure_is_unhealthy() {
    let snapshot = Snapshot {
        state: "stopping",
        leaving: Some("GPU 1: lost".into()),
        is_failing: true,
        kill_at: Some(4025 * SECOND),
        machine_gone_at: Some(3990 * SECOND),
        ..snapshot()
    };
    let all = series(&snapshot, &facts());
    for line in [
        "trainit_healthy 0",
        "trainit_leaving 1",
        "trainit_state{state=\"stopping\"} 1",
        "trainit_deadline_timestamp_seconds 1000000025",
        "trainit_machine_gone_timestamp_seconds 999999990",
    ] {
        assert!(all.iter().any(|l| l == line), "{line}: {all:#?}");
    }
}

#[test]
fn gpus_have_labels_and_an_xid_has_the_labels_of_its_gpu() {
    let gpu = Gpu {
        index: 3,
        uuid: Some("GPU-x".into()),
        name: Some("H100".into()),
        utilization_percent: Some(97),
        memory_used_bytes: Some(1 << 30),
        memory_total_bytes: Some(80 << 30),
        power_watts: Some(70.5),
        health: Health::Bad,
        ..Gpu::default()
    };
    let xid = |gpu: String| XidCount { gpu, xid: 79, count: 2 };
    let xids = vec![xid(gpu.label()), xid("GPU 9 (gone)".into())];
    let gpus = Gpus { gpus: vec![(gpu, Vec::new()), (Gpu::default(), Vec::new())], unavailable: None, xids };
    let all = series(&snapshot(), &Facts { gpus: Some(gpus), ..facts() });
    let of_gpus: Vec<&str> = all.iter().filter_map(|line| line.strip_prefix("trainit_gpu_")).collect();
    let expected = [
        r#"utilization_ratio{gpu="3",uuid="GPU-x",name="H100"} 0.97"#,
        r#"memory_used_bytes{gpu="3",uuid="GPU-x",name="H100"} 1073741824"#,
        r#"memory_total_bytes{gpu="3",uuid="GPU-x",name="H100"} 85899345920"#,
        r#"power_watts{gpu="3",uuid="GPU-x",name="H100"} 70.5"#,
        r#"healthy{gpu="3",uuid="GPU-x",name="H100"} 0"#,
        r#"xids_total{gpu="3",uuid="GPU-x",name="H100",xid="79"} 2"#,
        r#"xids_total{gpu="GPU 9 (gone)",xid="79"} 2"#,
    ];
    assert_eq!(of_gpus, expected);
}

#[test]
fn the_page_for_people_lists_each_series_and_no_other() {
    let gpu = Gpu {
        utilization_percent: Some(1),
        memory_used_bytes: Some(1),
        memory_total_bytes: Some(1),
        power_watts: Some(1.0),
        temperature_celsius: Some(1),
        health: Health::Ok,
        ..Gpu::default()
    };
    let xids = vec![XidCount { gpu: gpu.label(), xid: 79, count: 1 }];
    let gpus = Gpus { gpus: vec![(gpu, Vec::new())], unavailable: None, xids };
    let snapshot = Snapshot { kill_at: Some(SECOND), machine_gone_at: Some(SECOND), ..snapshot() };
    let memory = Memory { limit_bytes: Some(7), ..facts().memory };
    let seat = Seat::new(Role::Worker, 1);
    let member = MemberView { seat, host: "node-7".to_owned(), state: "training", step: None };
    let gang = View { generation: 2, seat, state: "training", members: Some(vec![member]), waiting_for: Vec::new() };
    let text = text(&snapshot, &Facts { gpus: Some(gpus), gang: Some(gang), memory, ..facts() });
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let page = include_str!("../../../../docs/status-page.md");
    let listed = page.lines().filter_map(|line| line.strip_prefix("| `trainit_")?.split('`').next());
    assert_eq!(listed.map(|name| format!("trainit_{name}")).collect::<Vec<_>>(), names.collect::<Vec<_>>());
}

#[test]
fn the_number_of_metrics_on_the_page_is_limited() {
    let metrics = (0..5000).map(|n| (format!("m{n}"), "1".to_owned())).collect();
    let all = series(&snapshot(), &Facts { metrics, ..facts() });
    assert_eq!(all.iter().filter(|line| line.starts_with("trainit_metric{")).count(), METRICS);
}

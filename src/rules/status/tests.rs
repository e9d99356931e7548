use super::*;
use crate::job::goodput::{Cause, Goodput};

const SECOND: Duration = Duration::from_secs(1);

/// A job that trains, resumed from a commit.
pub(super) fn snapshot() -> Snapshot {
    Snapshot {
        state: "running",
        is_running: true,
        attempt: 2,
        restarts_used: 0,
        restarts_allowed: 3,
        attempt_at: Some(100 * SECOND),
        resumed_from: Some("/ck/step-400".into()),
        resumed_step: Some(400),
        committed_step: Some(520),
        has_store: true,
        ..Snapshot::default()
    }
}

/// 100 s of start, and training since then.
pub(super) fn goodput(now: Duration) -> Totals {
    let mut goodput = Goodput::default();
    goodput.enter(100 * SECOND, Cause::Training);
    goodput.totals(now)
}

fn facts() -> Facts {
    Facts {
        version: "0.1.0",
        pid: 1,
        who: Who::default(),
        command: "python".into(),
        children: vec![7, 9],
        now: 4000 * SECOND,
        wall: 1_000_000_000 * SECOND,
        goodput: goodput(4000 * SECOND),
        tally: Tally {
            committed_at: Some(3965 * SECOND),
            committed_unit: Some("step-520".into()),
            behind: Some(40),
            ..Tally::default()
        },
        kept: None,
        memory: Memory::default(),
        metrics: [("loss".to_owned(), "0.31".to_owned()), ("bad".to_owned(), "nan".to_owned())].into(),
        step: Some(560),
        steps_per_second: Some(0.125),
        total_steps: None,
        gpus: None,
        gang: None,
    }
}

fn object(snapshot: &Snapshot, facts: &Facts) -> Value {
    parse(&answer(snapshot, facts)).expect("an answer")
}

#[test]
fn a_running_job_reports_its_state_and_progress() {
    let status = object(&snapshot(), &facts());
    let expected = serde_json::json!({
        "version": "0.1.0", "pid": 1, "state": "running", "healthy": true, "problem": null, "uptime_seconds": 4000.0,
        "command": "python", "child_pids": [7, 9], "attempt": 2, "restarts": 1, "restarts_used": 0, "restarts_allowed": 3,
        "attempt_seconds": 3900.0,
        "goodput": {
            "start": 100.0, "peers": 0.0, "restore": 0.0, "first_step": 0.0, "repeated": 0.0, "training": 3900.0, "commit": 0.0,
            "stopped": 0.0,
        },
        "checkpoint": {"resumed_from": "/ck/step-400", "resumed_step": 400, "committed_step": 520, "committed_unit": "step-520", "lag_seconds": 35.0, "lag_steps": 40},
        "leaving": null, "metrics": {"bad": "nan", "loss": 0.31}, "gpus": null, "gpu_problem": null, "xids": null,
        "step": 560, "steps_per_second": 0.125,
    });
    assert_eq!(status, expected);
    let lines = "running (attempt 2, up 1h 6m): python\n\
                 process     pid 7, 9 for 1h 5m, 0 of 3 restarts used (1 in all)\n\
                 checkpoint  step 520 committed, 35s ago, 40 steps behind, resumed from step 400\n\
                 step        560 (0.125 a second)\n\
                 metrics     bad nan, loss 0.31\n";
    assert_eq!(render(&status), lines);
    assert_eq!(check(&status), (true, "healthy: running (attempt 2, up 1h 6m): python".to_owned()));
}

#[test]
fn a_pace_has_three_digits() {
    let text = |pace| three_digits(pace);
    assert_eq!([text(0.0125), text(2.5), text(1234.4), text(10.0), text(0.0)], ["0.0125", "2.5", "1234", "10", "0"]);
    let shown = render(&object(&snapshot(), &Facts { steps_per_second: None, ..facts() }));
    assert!(shown.contains("step        560\n"), "{shown}");
}

#[test]
fn before_the_first_commit_the_lag_is_all_training_so_far() {
    let tally = Tally { committed_at: Some(3965 * SECOND), ..Tally::default() };
    let shown = render(&object(&Snapshot { committed_step: None, ..snapshot() }, &Facts { tally, ..facts() }));
    assert!(shown.contains("checkpoint  nothing committed, 35s of training would be lost now"), "{shown}");
}

#[test]
fn a_commit_without_a_step_is_called_by_its_name() {
    let tally = Tally { committed_unit: Some("last.pt".into()), ..facts().tally };
    let snapshot = Snapshot { committed_step: None, resumed_step: None, ..snapshot() };
    let shown = render(&object(&snapshot, &Facts { tally, ..facts() }));
    assert!(shown.contains("checkpoint  last.pt committed, 35s ago"), "{shown}");
}

#[test]
fn the_lag_begins_with_the_attempt_if_nothing_was_committed_since() {
    let lag = |committed_at, is_running| {
        let tally = Tally { committed_at, ..Tally::default() };
        let (snapshot, facts) = (Snapshot { is_running, ..snapshot() }, Facts { tally, ..facts() });
        object(&snapshot, &facts)["checkpoint"]["lag_seconds"].clone()
    };
    assert_eq!(lag(None, true), 3900.0);
    assert_eq!(lag(Some(50 * SECOND), true), 3900.0, "the commit belongs to an earlier attempt");
    assert_eq!(lag(None, false), Value::Null, "nothing is being trained");
    let snapshot = Snapshot { has_store: false, ..snapshot() };
    assert_eq!(object(&snapshot, &facts())["checkpoint"], Value::Null);
}

#[test]
fn a_preemption_has_its_deadline_and_is_healthy() {
    let snapshot = Snapshot {
        state: "stopping",
        leaving: Some("preempted (gce preempted)".into()),
        kill_at: Some(4022 * SECOND),
        machine_gone_at: Some(4028 * SECOND),
        ..snapshot()
    };
    let status = object(&snapshot, &facts());
    let expected = serde_json::json!({
        "reason": "preempted (gce preempted)", "deadline": "2001-09-09T01:47:02.000Z", "seconds_left": 22.0,
        "machine_gone": "2001-09-09T01:47:08.000Z",
    });
    assert_eq!(status["leaving"], expected);
    assert!(check(&status).0);
    assert!(
        render(&status).contains("leaving     preempted (gce preempted); SIGKILL at 2001-09-09T01:47:02.000Z (in 22s)")
    );
    let late = Facts { now: 4030 * SECOND, ..facts() };
    assert_eq!(object(&snapshot, &late)["leaving"]["deadline"], "2001-09-09T01:46:32.000Z", "past deadlines too");
}

#[test]
fn a_failing_gpu_is_unhealthy_and_an_unknown_one_is_not() {
    let failing_snapshot = Snapshot { leaving: Some("GPU 1: lost\n".into()), is_failing: true, ..snapshot() };
    let status = object(&failing_snapshot, &facts());
    assert_eq!(check(&status), (false, "unhealthy: GPU 1: lost\\n".to_owned()));
    let gpus = Gpus { unavailable: Some("nvmlInit_v2 did not return in 5 s".into()), ..Gpus::default() };
    let unavailable = object(&snapshot(), &Facts { gpus: Some(gpus), ..facts() });
    assert!(check(&unavailable).0);
    assert!(
        render(&unavailable).contains("no readings at present: nvmlInit_v2 did not return"),
        "{}",
        render(&unavailable)
    );
}

#[test]
fn gpus_have_their_last_samples_and_the_xids() {
    let sample = |n: u32| Sample {
        at: n * SECOND,
        utilization_percent: Some(n),
        memory_used_bytes: Some(1 << 30),
        power_watts: Some(70.5),
        temperature_celsius: None,
    };
    let gpu = Gpu { index: 3, name: Some("H100".into()), utilization_percent: Some(97), ..Gpu::default() };
    let gpus = Gpus {
        gpus: vec![(gpu, (0..300).map(sample).collect())],
        unavailable: None,
        xids: vec![XidCount { gpu: "GPU 3 (GPU-x)".into(), xid: 13, count: 2 }],
    };
    let status = object(&snapshot(), &Facts { gpus: Some(gpus), now: 300 * SECOND, ..facts() });
    let samples = &status["gpus"][0]["samples"];
    assert_eq!(samples["utilization_percent"].as_array().map(Vec::len), Some(SAMPLES));
    assert_eq!((&samples["seconds_ago"][59], &samples["utilization_percent"][59]), (&1.0.into(), &299.into()));
    assert_eq!(samples["temperature_celsius"][0], Value::Null);
    assert_eq!(status["gpus"][0]["index"], 3);
    let text = render(&status);
    assert!(
        text.contains("GPU 3       H100, 97%, unknown") && text.contains("XID         13 x 2 on GPU 3 (GPU-x)"),
        "{text}"
    );
}

#[test]
fn the_answer_of_a_full_machine_fits_a_sockets_buffer() {
    let sample = Sample {
        at: SECOND,
        utilization_percent: Some(100),
        memory_used_bytes: Some(85_899_345_920),
        power_watts: Some(699.123),
        temperature_celsius: Some(100),
    };
    let gpu = Gpu { name: Some("x".repeat(96)), uuid: Some("y".repeat(96)), ..Gpu::default() };
    let gpus = Gpus { gpus: vec![(gpu, vec![sample; 360]); 16], ..Gpus::default() };
    let metrics = (0..5000).map(|n| (format!("{n}-{}", "m".repeat(100)), "0.5".to_owned())).collect();
    let text = answer(&snapshot(), &Facts { gpus: Some(gpus), metrics, ..facts() });
    assert!(text.len() < 100_000, "{}", text.len());
}

#[test]
fn an_invalid_answer_is_an_error_and_never_a_panic() {
    for text in ["", "{", "[]", "{}", "{\"state\":1}", "null"] {
        assert!(parse(text).is_err(), "{text}");
    }
    let odd = parse("{\"state\":\"\\u001b[2J\",\"uptime_seconds\":1e300,\"gpus\":[1],\"xids\":[null],\"leaving\":{}}");
    let text = render(&odd.expect("a state"));
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn the_text_shows_the_gang_and_for_whom_it_waits() {
    let member = |seat: &str, state: &str, step: Value| serde_json::json!({"seat": seat, "host": "pod", "state": state, "step": step});
    let members = [member("chief/0", "ready", Value::Null), member("worker/0", "restoring", 40.into())];
    let mut status = object(&snapshot(), &facts());
    status["gang"] = serde_json::json!({"generation": 2, "seat": "chief/0", "state": "ready", "members": members,
        "waiting_for": ["worker/1"]});
    let text = render(&status);
    let line = "gang        generation 2, chief/0 ready, waits for worker/1; chief/0 on pod ready, \
                worker/0 on pod restoring at step 40\n";
    assert!(text.contains(line), "{text}");
}
